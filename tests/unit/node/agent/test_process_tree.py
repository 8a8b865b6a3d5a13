"""Processes are ended step by step, with a simulated clock and with real processes."""

import errno
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from node.setup import process_tree

STUBBORN, OTHER = (7, 1, "stubborn"), (8, 1, "another's")


class Machine:
    """Processes that only SIGKILL ends, and a clock that only the test moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        self.left = [STUBBORN]
        self.told: list[tuple[list[int], signal.Signals]] = []
        monkeypatch.setattr(time, "monotonic", lambda: self.now)
        monkeypatch.setattr(process_tree, "signal_all", self.signal_all)

    def signal_all(self, pids: list[int], number: signal.Signals) -> None:
        if pids:
            self.told.append((pids, number))
        if number == signal.SIGKILL:
            self.left = [entry for entry in self.left if entry[0] not in pids]

    def find(self) -> list[tuple[int, int, str]]:
        return list(self.left)


def test_a_process_that_does_not_end_is_reported_as_left(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch)
    ending = process_tree.Ending(lambda: [STUBBORN])
    steps = 0
    while ending.go_on():
        machine.now += 0.5
        steps += 1
    assert (steps, ending.left, machine.now) == (8, [STUBBORN], 104.0)
    assert machine.told == [([7], signal.SIGTERM), ([7], signal.SIGKILL)]


def refuse(pid: int, number: int) -> None:
    raise PermissionError(errno.EPERM, f"{pid} {number}")


def test_a_stopped_process_of_root_receives_sigterm_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sudo").write_text('#!/bin/sh\nshift\nexec "$@"\n')
    (tmp_path / "sudo").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    script = "trap 'echo told; exit 3' TERM; echo waits; while :; do sleep 0.05; done"
    with subprocess.Popen(["/bin/sh", "-c", script], stdout=subprocess.PIPE, text=True) as root:
        assert root.stdout.readline() == "waits\n"
        root.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, root.pid, os.WSTOPPED | os.WNOWAIT)
        with monkeypatch.context() as refusing:
            refusing.setattr(os, "kill", refuse)
            process_tree.signal_all([root.pid], signal.SIGTERM)
        try:
            assert root.wait(timeout=10) == 3
        finally:
            root.kill()


def test_the_parent_may_read_the_memory_of_what_it_starts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With ptrace_scope 1, which this kernel may lack, the command has to allow it before it runs."""
    calls = tmp_path / "calls"

    class Libc:
        def prctl(self, *words: int) -> None:
            with calls.open("a") as stream:
                stream.write(f"{words[:2]}\n")

    monkeypatch.setattr(process_tree, "_LIBC", Libc())
    with process_tree.start(["true"], {}, "/") as child:
        child.wait()
    assert calls.read_text().splitlines()[0] == str((process_tree.PR_SET_PTRACER, os.getpid()))
