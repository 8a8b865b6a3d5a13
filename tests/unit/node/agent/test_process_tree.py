"""Processes are ended step by step, with a simulated clock and with real processes."""

import asyncio
import os
import signal
import time
from pathlib import Path

import pytest

from node.children import end_processes
from node.setup import process_tree

STUBBORN = (7, 1, "stubborn")


class Machine:
    """Notes signals, and has a clock that moves with each pause."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        self.told: list[tuple[list[int], signal.Signals]] = []
        monkeypatch.setattr(time, "monotonic", lambda: self.now)
        monkeypatch.setattr(asyncio, "sleep", self.sleep)
        monkeypatch.setattr(process_tree, "signal_all", self.signal_all)

    async def sleep(self, _: float) -> None:
        self.now += 0.5

    def signal_all(self, pids: list[int], number: signal.Signals) -> None:
        if pids:
            self.told.append((pids, number))


def test_a_process_that_does_not_end_is_reported_as_left(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(monkeypatch)
    assert asyncio.run(end_processes(lambda: [STUBBORN])) == [STUBBORN]
    assert machine.now == 104.0
    assert machine.told == [([7], signal.SIGTERM), ([7], signal.SIGKILL)]


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
