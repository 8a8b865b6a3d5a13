"""Work for several processes, its results in order, and never more than a few of them in memory."""

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

from provision.errors import ClusterError

Task = TypeVar("Task")
Result = TypeVar("Result")
_AHEAD = 4
"""Tasks for each process that are begun before their results are asked for."""


def map_in_order(work: Callable[[Task], Result], tasks: Iterable[Task], *, processes: int) -> Iterator[Result]:
    """work(task) for each task, in the tasks' order; `work` must be a module's function.

    With one process it is done here. Raises what `work` raises, and ClusterError where a process is killed.
    """
    if processes == 1:
        yield from map(work, tasks)
        return
    # Not forked: this process has threads. A new Python takes a tenth of a second.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(processes, mp_context=context, initializer=_end_with_parent)
    waiting: deque[Future[Result]] = deque()
    try:
        for task in tasks:
            waiting.append(pool.submit(work, task))
            if len(waiting) >= processes * _AHEAD:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    except BrokenProcessPool as error:
        raise ClusterError("a process of this command was killed", hint="is there memory enough?") from error
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _end_with_parent() -> None:
    """Otherwise a process whose parent was killed waits for tasks for ever. Ctrl-C is the parent's business."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def watch() -> None:
        parent = multiprocessing.parent_process()
        if parent is not None:
            parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
