"""Kernel locks on files and folders, on this machine and on the nodes. A lock ends with the process that holds it."""

import fcntl
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def locked(path: Path, *, wait: bool = True, make: bool = True) -> Iterator[int]:
    """Holds the lock of an existing folder, or of a file; yields the open descriptor.

    wait: wait until the lock is free; otherwise raise BlockingIOError. make: create a missing file. Raises OSError.
    """
    flags = os.O_RDONLY | os.O_DIRECTORY if path.is_dir() else os.O_RDWR | (os.O_CREAT if make else 0)
    descriptor = _open_locked(path, flags, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def remove_unheld(paths: Iterable[Path]) -> None:
    """Deletes the files that nobody holds locked: they are unfinished, and who wrote them was killed."""
    for path in paths:
        with suppress(OSError), locked(path, wait=False, make=False):
            path.unlink()


class FileLock:
    """A lock on a file, for programs that wait for a limited time. The file is never deleted."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._descriptor: int | None = None

    def take_now(self) -> bool:
        """Tries once; returns whether the lock was taken. Raises OSError."""
        try:
            self._descriptor = _open_locked(self._path, os.O_RDWR | os.O_CREAT, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            return False
        return True

    def take(self, timeout_s: float, pause_s: float = 0.01) -> bool:
        """Tries for timeout_s seconds; returns whether the lock was taken. Raises OSError."""
        deadline = time.monotonic() + timeout_s
        while not self.take_now():
            if time.monotonic() > deadline:
                return False
            time.sleep(pause_s)
        return True

    def release(self) -> None:
        """Releases the lock, if held."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> "FileLock":  # noqa: PYI034 - typing has Self since Python 3.11
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


def is_held(path: str) -> bool:
    """Whether a process holds the lock of this file; False if the file does not exist."""
    try:  # a shared lock: two programs that check at once do not see each other
        os.close(_open_locked(path, os.O_RDWR, fcntl.LOCK_SH | fcntl.LOCK_NB))
    except FileNotFoundError:
        return False
    except (BlockingIOError, PermissionError):
        return True
    return False


def _open_locked(path: str | Path, flags: int, operation: int) -> int:
    """Opens and locks; returns the descriptor. Raises OSError; BlockingIOError if another process holds the lock."""
    descriptor = os.open(path, flags | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, operation)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
