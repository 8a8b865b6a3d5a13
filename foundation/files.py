"""Files that are there in whole or as they were before, and commands that take turns in a folder."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from foundation.file_lock import locked
from foundation.progress import Event, Report

UNFINISHED = ".new-"
"""How the names of files begin that are being written; a process that is killed leaves them."""


def write_whole(path: Path, data: bytes, *, to_disk: bool = False, mode: int = 0o600) -> None:
    """Write a file, for its owner alone unless `mode` says more, and rename it. Its folder has to be there.

    to_disk: a power failure, too, leaves one or the other. Raises OSError, and then leaves nothing behind.
    """
    descriptor, new = tempfile.mkstemp(dir=path.parent, prefix=UNFINISHED)
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(descriptor, mode)
            file.write(data)
            if to_disk:
                file.flush()
                os.fsync(file.fileno())
        Path(new).replace(path)
        if to_disk:  # the name is safe only when the folder is
            folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
    except BaseException:
        Path(new).unlink(missing_ok=True)
        raise


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """A file to write, which becomes `path` where the block ends well, and is removed where not. Makes the folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, new = tempfile.mkstemp(dir=path.parent, prefix=UNFINISHED)
    os.close(descriptor)
    try:
        yield Path(new)
        Path(new).replace(path)
    finally:
        Path(new).unlink(missing_ok=True)


@contextmanager
def one_at_a_time(folder: Path, *, does: str, report: Report) -> Iterator[None]:
    """Wait while another command is at work in the folder; does: what it does there, "downloads a dataset".

    Raises OSError.
    """
    with ExitStack() as stack:
        try:
            stack.enter_context(locked(folder, wait=False))
        except BlockingIOError:
            report(Event(kind="info", what=f"waiting for another command that {does}"))
            stack.enter_context(locked(folder))
        yield
