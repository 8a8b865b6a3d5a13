"""Processes are ended step by step, with a simulated clock and with real processes."""

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from node.programs import CODE_DIR
from node.setup import process_tree
from train.job.plan import new_job_id
from waits import until

STUBBORN, OTHER = (7, 1, "stubborn"), (8, 1, "another's")


class Machine:
    """Processes that only SIGKILL ends, and a clock that only the test moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        self.left = [STUBBORN]
        self.told: list[tuple[list[int], signal.Signals]] = []
        monkeypatch.setattr(time, "monotonic", lambda: self.now)
        monkeypatch.setattr(process_tree, "tell", self.tell)

    def tell(self, pids: list[int], number: signal.Signals) -> None:
        if pids:
            self.told.append((pids, number))
        if number == signal.SIGKILL:
            self.left = [entry for entry in self.left if entry[0] not in pids]

    def find(self) -> list[tuple[int, int, str]]:
        return list(self.left)


def test_it_looks_once_more_after_the_last_signal_however_late(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch)
    ending = process_tree.Ending(machine.find)
    for _ in range(2):
        assert ending.go_on()
        machine.now += 60.0
    assert not ending.go_on()
    assert ending.left == []
    assert machine.told == [([7], signal.SIGTERM), ([7], signal.SIGKILL)]


def test_a_process_that_does_not_end_is_reported_as_left(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch)
    ending = process_tree.Ending(lambda: [STUBBORN])
    steps = 0
    while ending.go_on():
        machine.now += 0.5
        steps += 1
    assert (steps, ending.left, machine.now) == (8, [STUBBORN], 104.0)
    assert machine.told == [([7], signal.SIGTERM), ([7], signal.SIGKILL)]


def test_spared_processes_get_no_signal_until_they_are_no_longer_spared(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch)
    machine.left = [STUBBORN, OTHER]
    ending = process_tree.Ending(machine.find, lambda _: [OTHER] if machine.now < 101.0 else [])
    for told in ([([7], signal.SIGTERM)], [([7], signal.SIGTERM)], [([7], signal.SIGTERM), ([8], signal.SIGTERM)]):
        assert ending.go_on()
        assert machine.told == told
        machine.now += 0.5
    machine.left = []
    assert not ending.go_on()


def test_spared_processes_are_not_reported_as_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another program ends the spared processes."""
    machine = Machine(monkeypatch)
    ending = process_tree.Ending(lambda: [STUBBORN, OTHER], lambda _: [OTHER])
    while ending.go_on():
        machine.now += 0.5
    assert ending.left == [STUBBORN]
    assert machine.told == [([7], signal.SIGTERM), ([7], signal.SIGKILL)]


def test_a_sudo_that_does_not_end_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For example, a sudo that waits for a name server. It belongs to root, so process_tree cannot kill it."""
    asked = tmp_path / "asked"
    make_sudo(tmp_path, monkeypatch, f"echo $$ $* >{asked}.new; mv {asked}.new {asked}\nexec sleep 60\n")
    monkeypatch.setattr(process_tree, "ROOT_TIMEOUT_S", 1.0)
    with monkeypatch.context() as refusing:
        refusing.setattr(os, "kill", refuse)
        process_tree.tell([7, 8], signal.SIGTERM)
    until(asked.exists)
    pid, *words = asked.read_text().split()
    assert words[-4:] == ["kill", "15", "7", "8"]
    assert process_tree.start_time(int(pid)) is not None
    os.kill(int(pid), signal.SIGKILL)


def make_sudo(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    (folder / "sudo").write_text(f"#!/bin/sh\n{text}")
    (folder / "sudo").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def refuse(pid: int, number: int) -> None:
    raise PermissionError(errno.EPERM, f"{pid} {number}")


def test_a_stopped_process_of_root_receives_sigterm_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_sudo(tmp_path, monkeypatch, 'shift\nexec "$@"\n')
    script = "trap 'echo told; exit 3' TERM; echo waits; while :; do sleep 0.05; done"
    with subprocess.Popen(["/bin/sh", "-c", script], stdout=subprocess.PIPE, text=True) as root:
        assert root.stdout.readline() == "waits\n"
        root.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, root.pid, os.WSTOPPED | os.WNOWAIT)
        with monkeypatch.context() as refusing:
            refusing.setattr(os, "kill", refuse)
            process_tree.tell([root.pid], signal.SIGTERM)
        try:
            assert root.wait(timeout=10) == 3
        finally:
            root.kill()


def test_all_processes_of_a_job_are_found_and_ended() -> None:
    """This includes one that ignores SIGTERM, one in its own session, and one without the job's environment."""
    job = new_job_id()
    program = "trap '' TERM; setsid sleep 600 & env -i sleep 601 & echo ready; while :; do sleep 1; done"
    child = process_tree.start(["/bin/sh", "-c", program], {**os.environ, process_tree.JOB_VARIABLE: job}, "/")
    assert child.stdout.readline() == b"ready\n"
    wanted = {"/bin/sh -c " + program, "sleep 600", "sleep 601"}  # a forked process is "/bin/sh" at first
    until(lambda: {words for _, _, words in process_tree.find(job)} >= wanted)
    first, left = process_tree.end(job)
    assert len(first) >= 3  # the loop's `sleep 1` may just have ended
    assert left == process_tree.find(job) == []
    child.wait()
    child.stdout.close()


def test_a_process_dies_with_the_program_that_started_it() -> None:
    program = f"""
import sys, time
sys.path.insert(0, {CODE_DIR!r})
from node.setup import process_tree
child = process_tree.start(["sleep", "600"], {{"PATH": "/usr/bin:/bin"}}, "/")
print(child.pid, flush=True)
time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as parent:
        pid = int(parent.stdout.readline())
        parent.kill()
    until(lambda: process_tree.start_time(pid) is None)
