"""Work that goes on beside the rest of a command."""

import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def begin(work: Callable[[], T]) -> Callable[[], T]:
    """Begin something in a thread of its own; the function returned waits for it, and raises what it raised.

    The thread is a daemon: when nobody waits, it keeps nobody at the end of the command.
    """
    done: list[T] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            done.append(work())
        except BaseException as error:  # noqa: BLE001 - crosses over to the caller's thread, and is raised there
            failed.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()

    def wait() -> T:
        thread.join()
        if failed:
            raise failed[0]
        return done[0]

    return wait
