"""Locks that end with the process that holds them. Python 3.6 and later, standard library only."""

import fcntl
import os
import time


class Lock(object):
    """One lock, on a file that stays. Its holder's children do not inherit it."""

    def __init__(self, path):
        self._path = path
        self._descriptor = None

    def take_now(self):
        """Take it if nobody has it; returns whether it is ours. Raises OSError."""
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            os.close(descriptor)
            return False
        self._descriptor = descriptor
        return True

    def take(self, timeout_s, pause_s=0.01):
        """Wait for it; returns whether it is ours. Raises OSError."""
        deadline = time.monotonic() + timeout_s
        while not self.take_now():
            if time.monotonic() > deadline:
                return False
            time.sleep(pause_s)
        return True

    def release(self):
        """Let go of it, if it is ours."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.release()


def is_held(path):
    """Whether somebody has the lock of this path; not when there is no such file."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)  # which two that look do not see of each other
    except (BlockingIOError, PermissionError):
        return True
    finally:
        os.close(descriptor)
    return False
