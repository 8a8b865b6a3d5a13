"""Talks with a server, many side by side in one thread.

A talk is a generator that yields what it waits for. Threads that each do a little take turns at Python's lock, so that
two are hardly faster than one; here whichever talk can go on does, and nobody waits for a turn.
"""

import select
import socket
import time
from collections.abc import Generator, Iterator
from itertools import islice
from typing import NamedTuple, TypeVar

Result = TypeVar("Result")
_GROW_EVERY_S = 0.01
_JUDGE_EVERY_S = 0.25
_LOOK_S = 1.0
_SOON_S = 15.0
"""An answer that took longer is no reason to wait for more: it may be a slow line that they wait for."""
BUSY = 0.5
"""Of a core: a process that takes less can wait for more answers at the same time."""
HELD_UP = 0.5
"""Of the time: who neither waits for an answer nor works for so long waits for files."""


class Wait(NamedTuple):
    """For a socket to be ready. events: those of select.poll; timeout_s: then the talk gets a TimeoutError."""

    connection: socket.socket
    events: int
    timeout_s: float


Talk = Generator[Wait, None, Result]


class Task(NamedTuple):
    """A talk that has not begun, and how many bytes it will hold in memory."""

    size_bytes: int
    talk: Talk[None]


def finish(talk: Talk[Result]) -> Result:
    """Carry on a talk to its end, and nothing beside it. Raises what it raises."""
    try:
        wait = next(talk)
        while True:
            poll = select.poll()
            poll.register(wait.connection, wait.events)
            wait = next(talk) if poll.poll(wait.timeout_s * 1000) else talk.throw(TimeoutError())
    except StopIteration as end:
        result: Result = end.value
        return result
    finally:
        talk.close()


class Lanes:
    """A few talks at a time, and more while the process waits for answers.

    first, most: how many; bytes_at_once: what all hold together, or one that is alone holds more.
    """

    def __init__(self, *, first: int, most: int, bytes_at_once: int) -> None:
        self._count = first
        self._most = most
        self._most_bytes = bytes_at_once
        self._held_bytes = 0
        self._poll = select.poll()
        self._waiting: dict[int, tuple[Task, float, float]] = {}  # since when, until when, by the socket's descriptor
        self._answered = False  # since there have been so many
        self._pace = _Pace()
        self._looked = 0.0

    def run(self, tasks: Iterator[Task]) -> None:
        """Carry on talks to their ends. Raises what one raises; then the others end where they are.

        It takes no more of them when it is held up, by slow files for example: threads can wait for several at once.
        """
        try:
            for task in islice(tasks, 1):
                self._start(task)
            # Not before: a look-up of names, and what else is done by the first one alone, is no hold-up.
            self._pace.begin()
            following = next(tasks, None)
            while following is not None or self._waiting:
                while following is not None and self._has_room(following):
                    self._start(following)
                    following = None if self._pace.is_held_up else next(tasks, None)
                if self._waiting:
                    self._wait()
        finally:
            for task, *_ in self._waiting.values():
                task.talk.close()

    def _has_room(self, task: Task) -> bool:
        if not self._waiting:
            return True
        return len(self._waiting) < self._count and self._held_bytes + task.size_bytes <= self._most_bytes

    def _wait(self) -> None:
        """For any of them, and carry it on."""
        began = time.monotonic()
        ready = self._poll.poll(_LOOK_S * 1000)
        now = time.monotonic()
        self._pace.note_wait(began, now)
        # Bytes that wait in this machine for a slow line look like those that a far server thinks about.
        if self._pace.has_time and self._answered:
            self._count = min(2 * self._count, self._most)
            self._answered = False
        for descriptor, _ in ready:
            self._carry_on(*self._take(descriptor))
        # Late is who was so before the poll: what has come since then is there, however late this process notices it.
        if began - self._looked >= _LOOK_S:
            self._looked = began
            for descriptor in [descriptor for descriptor, (*_, until) in self._waiting.items() if until <= began]:
                self._carry_on(*self._take(descriptor), TimeoutError())

    def _start(self, task: Task) -> None:
        self._held_bytes += task.size_bytes
        self._carry_on(task, time.monotonic())

    def _take(self, descriptor: int) -> tuple[Task, float]:
        self._poll.unregister(descriptor)
        task, began, _ = self._waiting.pop(descriptor)
        return task, began

    def _carry_on(self, task: Task, began: float, error: Exception | None = None) -> None:
        try:
            wait = next(task.talk) if error is None else task.talk.throw(error)
        except StopIteration:
            self._held_bytes -= task.size_bytes
            self._answered |= error is None and time.monotonic() - began < _SOON_S
            return
        descriptor = wait.connection.fileno()
        self._waiting[descriptor] = (task, began, time.monotonic() + wait.timeout_s)
        self._poll.register(descriptor, wait.events)


class _Pace:
    """What the time goes into: waiting for answers, work, or something else."""

    def begin(self) -> None:
        """Now."""
        self.is_held_up = False
        self.has_time = False
        self._looked = self._judged = (time.monotonic(), time.process_time())
        self._waited_s = 0.0

    def note_wait(self, began: float, now: float) -> None:
        """Nothing was there to do from `began` on until now."""
        self._waited_s += now - began
        self.has_time = False
        looked, looked_cpu_s = self._looked
        if now - looked < _GROW_EVERY_S:
            return
        cpu_s = time.process_time()
        self.has_time = cpu_s - looked_cpu_s < BUSY * (now - looked)
        self._looked = (now, cpu_s)
        judged, judged_cpu_s = self._judged
        if now - judged >= _JUDGE_EVERY_S:
            elsewhere_s = now - judged - self._waited_s - (cpu_s - judged_cpu_s)
            self.is_held_up = elsewhere_s > HELD_UP * (now - judged)
            self._judged = (now, cpu_s)
            self._waited_s = 0.0
