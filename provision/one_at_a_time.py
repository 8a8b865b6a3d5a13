"""One command at a time in a folder, each in its turn."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from provision.progress import Event, Report


@contextmanager
def one_at_a_time(folder: Path, *, does: str, report: Report) -> Iterator[None]:
    """Wait while another command is at work in the folder; does: what it does there, "downloads a dataset".

    The lock is the kernel's, on the folder: it ends with the process that holds it, however that ends. Raises OSError.
    """
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report(Event(kind="info", what=f"waiting for another command that {does}"))
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
