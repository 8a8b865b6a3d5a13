"""Threads: parallel AWS calls, the same work for many items, and one function in the background."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:  # with logging, a sixth of the start time of a job's process, which needs only map_in_threads
    from concurrent.futures import Future, ThreadPoolExecutor

T = TypeVar("T")
Item = TypeVar("Item")
Result = TypeVar("Result")

MAX_THREADS = 8
"""botocore keeps ten connections for each client; more threads would wait for a connection."""


def bounded_pool(threads: int = MAX_THREADS) -> ThreadPoolExecutor:
    """A pool for calls that wait for the network, such as AWS calls of 100 to 300 ms.

    Submit in a `with` block, and read the results after it in the order of submission: then the same errors always
    give the same message, whichever call was faster.
    """
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 - see above

    return ThreadPoolExecutor(max_workers=threads, thread_name_prefix="pool")


def run_in_thread(work: Callable[[], T]) -> Future[T]:
    """Runs `work` in a daemon thread, which the program does not wait for at exit."""
    from concurrent.futures import Future  # noqa: PLC0415 - see above

    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001 - raised again in the thread that asks for the result
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


class Once(Generic[Item, Result]):
    """Results of work that is done once for each key, even if many threads ask for it at the same time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._futures: dict[Item, Future[Result]] = {}

    def get(self, key: Item, work: Callable[[], Result]) -> Result:
        """The result of `work`, which the first caller of a key starts. Raises its error, for every caller."""
        with self._lock:
            if key not in self._futures:
                self._futures[key] = run_in_thread(work)
            future = self._futures[key]
        return future.result()


CHECK_EVERY_S = 0.5
"""Waits are short because a signal that arrives just before a wait is handled only after it."""
Check = Callable[[], None]
"""Long-running work calls it regularly. Raises StoppedError when the result is no longer needed."""


class StoppedError(Exception):
    """The work was cancelled: another task failed, or the user pressed Ctrl-C."""


def map_in_threads(work: Callable[[Item, Check], Result], items: Sequence[Item], *, threads: int) -> list[Result]:
    """The results of work(item, check) for all items, in their order.

    The first error, in the order of items, stops the other threads and is raised. An interrupt of the waiting thread
    does the same, without waiting for work that hangs: the threads are daemons, and `check` raises in them.
    """
    return _Pool(work, items).run(min(threads, len(items)))


class _Pool(Generic[Item, Result]):
    def __init__(self, work: Callable[[Item, Check], Result], items: Sequence[Item]) -> None:
        self._work = work
        self._items = items
        self._numbers = iter(range(len(items)))
        self._lock = threading.Lock()
        self._results: dict[int, Result] = {}
        self._errors: dict[int, BaseException] = {}
        self._stopped = threading.Event()
        self._ended = threading.Semaphore(0)

    def run(self, count: int) -> list[Result]:
        try:
            for _ in range(count):
                threading.Thread(target=self._work_until_done, daemon=True).start()
            for _ in range(count):
                while not self._ended.acquire(timeout=CHECK_EVERY_S):
                    pass
        finally:
            self._stopped.set()
        if self._errors:
            raise self._errors[min(self._errors)]
        return [self._results[number] for number in range(len(self._items))]

    def _work_until_done(self) -> None:
        try:
            while not self._stopped.is_set():
                with self._lock:
                    number = next(self._numbers, None)
                if number is None:
                    return
                self._do(number)
        finally:
            self._ended.release()

    def _do(self, number: int) -> None:
        try:
            self._results[number] = self._work(self._items[number], self._check)
        except BaseException as error:  # noqa: BLE001 - raised by the waiting thread
            if isinstance(error, StoppedError) and self._stopped.is_set():
                return  # stopped by this pool, which has the reason; otherwise, an outer pool stopped it
            self._errors[number] = error
            self._stopped.set()

    def _check(self) -> None:
        if self._stopped.is_set():
            raise StoppedError
