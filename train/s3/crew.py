"""Threads that carry out tasks, of which some bring more."""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TypeVar

from train.s3.lanes import BUSY

Task = Callable[[], None]
Check = Callable[[], None]
"""For what takes long, now and then: raises Stopped."""
Item = TypeVar("Item")
Result = TypeVar("Result")
LEAVE_S = 2.0
"""How long an interrupted crew waits for requests that are on their way."""
_LOOK_S = 0.1
_GROW_EVERY_S = 0.01


class Stopped(Exception):
    """The crew was told to stop while a task was at work."""


def gather(work: Callable[[Item, Check], Result], items: Sequence[Item], *, first: int, most: int) -> list[Result]:
    """What work gives for each item, in their order, by threads that become more while they wait.

    work: given the crew's check, too, to be stopped by. Raises what work raises.
    """
    results: dict[int, Result] = {}
    crew = Crew(first, most=most)

    def work_on(number: int) -> None:
        results[number] = work(items[number], crew.check)

    crew.run(partial(work_on, number) for number in range(len(items)))
    return [results[number] for number in range(len(items))]


class Crew:
    """So many threads. A task may add others, which come before those that wait: what was begun is finished first.

    most: as many there may become while they wait. The more threads, the more of Python's time goes into taking turns,
    so that tasks that wait for nobody are done sooner by a few.
    """

    def __init__(self, size: int, *, most: int = 0) -> None:
        self._size = size
        self._most = most
        self._looked = (0.0, 0.0)  # the time, and this process's CPU time, when it was last thought about growing
        # One lock, and who waits for what: else whoever has started the crew would be woken by every task.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._ended = threading.Condition(self._lock)
        self._urgent: deque[Task] = deque()
        self._waiting: Iterator[Task] = iter(())
        self._at_work = 0
        self._alive = 0
        self._stopped = False
        self._broken: BaseException | None = None

    def run(self, tasks: Iterable[Task]) -> None:
        """Carry out all tasks and all that they add. Raises what a task raises, and then tells the others to stop."""
        self._waiting = iter(tasks)
        self._looked = (time.monotonic(), time.process_time())
        try:
            for _ in range(self._size):
                self._start_thread()
            self._wait()
        except BaseException:  # an interrupt
            self._stop(None)
            self._wait(LEAVE_S)
            raise
        if self._broken is not None:
            raise self._broken

    def _start_thread(self) -> None:
        self._count(1)  # before: an interrupt comes out of start(), too, when the thread is at work already
        try:
            threading.Thread(target=self._live, daemon=True).start()
        except RuntimeError:  # there are too many
            self._count(-1)
            raise

    def _grow(self) -> None:
        """Become twice as many, unless the process is busy."""
        with self._lock:
            now, cpu_s = time.monotonic(), time.process_time()
            before, cpu_before_s = self._looked
            if now - before < _GROW_EVERY_S or self._stopped:
                return
            self._looked = (now, cpu_s)
            if cpu_s - cpu_before_s > BUSY * (now - before):
                return
            try:
                for _ in range(min(self._alive, self._most - self._alive)):
                    self._start_thread()
            except RuntimeError:  # there are too many: it goes on with those that there are
                self._most = 0

    def _count(self, more: int) -> None:
        with self._lock:
            self._alive += more
            self._ended.notify_all()

    def _wait(self, timeout_s: float | None = None) -> None:
        """Until no thread works any more. Not by join, which takes a thread for ended once it was interrupted itself.

        https://github.com/python/cpython/issues/90882
        """
        with self._lock:
            # A signal that comes just before Python begins to wait is not looked at before the wait ends.
            while not self._ended.wait_for(lambda: not self._alive, timeout_s or _LOOK_S) and timeout_s is None:
                pass

    @property
    def is_idle(self) -> bool:
        """Whether no task is at work."""
        with self._lock:
            return not self._at_work

    def add(self, tasks: Iterable[Task]) -> None:
        """More tasks, before all others: called by a task."""
        with self._lock:
            self._urgent.extendleft(reversed(list(tasks)))
            self._changed.notify_all()

    def check(self) -> None:
        """For tasks that take long, now and then. Raises Stopped."""
        if self._stopped:
            raise Stopped

    def _stop(self, error: BaseException | None) -> None:
        with self._lock:
            self._stopped = True
            self._broken = self._broken or error
            self._changed.notify_all()

    def _live(self) -> None:
        try:
            self._work()
        except BaseException as error:  # noqa: BLE001 - of who makes the tasks: raised by run
            self._stop(error)
        finally:
            self._count(-1)

    def _work(self) -> None:
        while (task := self._take()) is not None:
            try:
                task()
            except Stopped:
                return
            except BaseException as error:  # noqa: BLE001 - raised by run
                self._stop(error)
            finally:
                with self._lock:
                    self._at_work -= 1
                    if not self._at_work:
                        self._changed.notify_all()
            if self._alive < self._most:
                self._grow()

    def _take(self) -> Task | None:
        """The next task; None when there will be no more."""
        with self._lock:
            while not self._stopped:
                task = self._urgent.popleft() if self._urgent else next(self._waiting, None)
                if task is not None:
                    self._at_work += 1
                    return task
                if not self._at_work:
                    return None
                self._changed.wait()
        return None
