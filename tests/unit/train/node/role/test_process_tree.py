"""Processes that are ended step by step, on a machine that lets us wait in between."""

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bootstrap.node import process_tree
from train.job.plan import new_job_id
from train.node.programs import CODE_DIR

STUBBORN, OTHER = (7, 1, "stubborn"), (8, 1, "another's")


class Machine:
    """Processes that only SIGKILL ends, and a clock that goes when it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        self.left = [STUBBORN]
        self.told: list[tuple[list[int], signal.Signals]] = []
        monkeypatch.setattr(process_tree.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(process_tree, "tell", self.tell)

    def tell(self, pids: list[int], number: signal.Signals) -> None:
        if pids:
            self.told.append((pids, number))
        if number == signal.SIGKILL:
            self.left = [entry for entry in self.left if entry[0] not in pids]

    def find(self) -> list[tuple[int, int, str]]:
        return list(self.left)


def test_it_looks_once_more_after_the_last_signal_however_long_it_was_kept_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = Machine(monkeypatch)
    ending = process_tree.Ending(machine.find)
    assert ending.go_on()
    machine.now += 60.0
    assert ending.go_on()
    machine.now += 60.0
    assert not ending.go_on()
    assert ending.left == []
    assert machine.told == [([7], signal.SIGTERM), ([7], signal.SIGKILL)]


def test_what_does_not_end_is_given_up_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch)
    ending = process_tree.Ending(lambda: [STUBBORN])
    steps = 0
    while ending.go_on():
        machine.now += 0.5
        steps += 1
    assert (steps, ending.left, machine.now) == (8, [STUBBORN], 104.0)
    assert machine.told == [([7], signal.SIGTERM), ([7], signal.SIGKILL)]


def test_what_is_spared_is_waited_for_and_told_only_when_it_is_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch)
    machine.left = [STUBBORN, OTHER]
    ending = process_tree.Ending(machine.find, lambda _: [OTHER] if machine.now < 101.0 else [])
    for told in ([([7], signal.SIGTERM)], [([7], signal.SIGTERM)], [([7], signal.SIGTERM), ([8], signal.SIGTERM)]):
        assert ending.go_on()
        assert machine.told == told
        machine.now += 0.5
    machine.left = []
    assert not ending.go_on()


def test_what_is_spared_to_the_end_is_not_told_as_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody else ends it: it is not that it would not end."""
    machine = Machine(monkeypatch)
    ending = process_tree.Ending(lambda: [STUBBORN, OTHER], lambda _: [OTHER])
    while ending.go_on():
        machine.now += 0.5
    assert ending.left == [STUBBORN]
    assert machine.told == [([7], signal.SIGTERM), ([7], signal.SIGKILL)]


def test_a_sudo_that_does_not_end_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that asks a name server; it belongs to root, and is not ours to kill."""
    sudo = tmp_path / "sudo"
    sudo.write_text(
        f"#!/bin/sh\necho $$ $* >{tmp_path}/asked.new; mv {tmp_path}/asked.new {tmp_path}/asked\nexec sleep 60\n"
    )
    sudo.chmod(0o755)

    def refuse(pid: int, number: int) -> None:
        raise PermissionError(errno.EPERM, f"{pid} {number}")

    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(process_tree, "ROOT_TIMEOUT_S", 1.0)
    with monkeypatch.context() as refusing:
        refusing.setattr(process_tree.os, "kill", refuse)
        process_tree.tell([7, 8], signal.SIGTERM)
    while not (tmp_path / "asked").exists():
        time.sleep(0.02)
    pid, *words = (tmp_path / "asked").read_text().split()
    assert words[-4:] == ["kill", "15", "7", "8"]
    assert process_tree.start_time(int(pid)) is not None
    os.kill(int(pid), signal.SIGKILL)


def test_a_stopped_process_of_root_receives_sigterm_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sudo = tmp_path / "sudo"
    sudo.write_text('#!/bin/sh\nshift\nexec "$@"\n')
    sudo.chmod(0o755)

    def refuse(pid: int, number: int) -> None:
        raise PermissionError(errno.EPERM, f"{pid} {number}")

    script = "trap 'echo told; exit 3' TERM; echo waits; while :; do sleep 0.05; done"
    with subprocess.Popen(["/bin/sh", "-c", script], stdout=subprocess.PIPE, text=True) as root:
        assert root.stdout.readline() == "waits\n"
        root.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, root.pid, os.WSTOPPED | os.WNOWAIT)
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
        with monkeypatch.context() as refusing:
            refusing.setattr(process_tree.os, "kill", refuse)
            process_tree.tell([root.pid], signal.SIGTERM)
        try:
            assert root.wait(timeout=10) == 3
        finally:
            root.kill()


def test_all_processes_of_a_job_are_found_and_ended() -> None:
    """Also one that ignores SIGTERM, and one in a session of its own, and one without the job's environment."""
    job = new_job_id()
    program = "trap '' TERM; setsid sleep 600 & env -i sleep 601 & echo ready; while :; do sleep 1; done"
    child = process_tree.start(["/bin/sh", "-c", program], {**os.environ, process_tree.JOB_VARIABLE: job}, "/")
    assert child.stdout.readline() == b"ready\n"
    deadline = time.monotonic() + 10
    wanted = {"/bin/sh -c " + program, "sleep 600", "sleep 601"}
    while not command_lines(job) >= wanted and time.monotonic() < deadline:  # a fork is "/bin/sh" at first
        time.sleep(0.02)
    assert command_lines(job) >= wanted
    first, left = process_tree.end(job)
    assert len(first) >= 3  # the loop's own sleep may just be between two of its lives
    assert left == []
    assert process_tree.find(job) == []
    child.wait()
    child.stdout.close()


def command_lines(job: str) -> set[str]:
    return {words for _, _, words in process_tree.find(job)}


def test_a_process_dies_with_the_program_that_started_it() -> None:
    program = f"""
import sys, time
sys.path.insert(0, {CODE_DIR!r})
from bootstrap.node import process_tree
from train.job.plan import new_job_id
from train.node.programs import CODE_DIR
child = process_tree.start(["sleep", "600"], {{"PATH": "/usr/bin:/bin"}}, "/")
print(child.pid, flush=True)
time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as parent:
        pid = int(parent.stdout.readline())
        parent.kill()
    gone(pid)


def gone(pid: int) -> None:
    deadline = time.monotonic() + 10
    while process_tree.start_time(pid) is not None:
        assert time.monotonic() < deadline
        time.sleep(0.02)
