"""The same work for many nodes at once, with every failure told."""

import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from provision.errors import ClusterError

MAX_PARALLEL = 64
LOOK_EVERY_S = 0.5

T = TypeVar("T")


def on_all(items: Sequence[T], work: Callable[[T], object], *, name: Callable[[T], str]) -> None:
    """Do `work` for every item side by side; collect every failure, and raise them as one ClusterError.

    The threads are daemons: Ctrl-C is not kept waiting by a node that does not answer.
    """
    waiting: queue.SimpleQueue[T] = queue.SimpleQueue()
    for item in items:
        waiting.put(item)
    failures: dict[str, BaseException] = {}

    def work_off() -> None:
        while True:
            try:
                item = waiting.get_nowait()
            except queue.Empty:
                return
            try:
                work(item)
            except BaseException as error:  # noqa: BLE001 - crosses over to the caller's thread, and is raised there
                failures[name(item)] = error

    threads = [threading.Thread(target=work_off, daemon=True) for _ in range(min(MAX_PARALLEL, len(items)))]
    for thread in threads:
        thread.start()
    for thread in threads:
        while thread.is_alive():  # a signal that comes just before a wait is noticed only after it
            thread.join(LOOK_EVERY_S)
    _raise_all(failures, of=len(items))


def _raise_all(failures: Mapping[str, BaseException], *, of: int) -> None:
    for error in failures.values():
        if not isinstance(error, ClusterError):
            raise error
    errors = [error for error in failures.values() if isinstance(error, ClusterError)]
    if len(errors) == 1:
        raise errors[0]
    if errors:
        # The same failure on every node (a package index out of reach) is told once.
        told = list(dict.fromkeys(str(error) for error in errors))
        if len(told) == 1:
            raise errors[0]
        summary = "\n".join(told)
        raise ClusterError(f"{len(errors)} of {of} nodes failed:\n{summary}", hint=errors[0].hint)
