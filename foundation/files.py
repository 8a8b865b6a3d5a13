"""Bounded reads, atomic writes, and a lock that lets one command at a time work in a folder."""

import errno
import fcntl
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from foundation.file_lock import locked
from foundation.progress import Event, Report

UNFINISHED = ".new-"
"""Prefix of files that are being written; a killed process leaves them behind."""
MOST_BYTES = 1 << 20


def read_bounded(path: Path, *, most_bytes: int = MOST_BYTES) -> bytes:
    """The content of a file that others may have made. Raises OSError, also for a larger file, a device and a FIFO."""
    with open(path, "rb", opener=_open_at_once) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        data = file.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise OSError(errno.EFBIG, f"larger than {most_bytes >> 10} KiB", str(path))
    return data


def _open_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # a FIFO would wait for a writer


def refuse_special(path: Path) -> None:
    """Raises OSError for a device or a pipe, such as /dev/null, which a new file must not replace."""
    if path.exists() and not path.is_file() and not path.is_dir():
        raise OSError(errno.EINVAL, "not a regular file", str(path))


def write_whole(path: Path, data: bytes, *, to_disk: bool = False, mode: int = 0o600) -> None:
    """Writes a file atomically, in an existing folder; by default only its owner can read it.

    to_disk: atomic even across a power failure. Raises OSError, and then leaves nothing behind.
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
        if to_disk:  # the new name is on disk only when the folder is
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
    """Yields a file to write. It becomes `path` if the block succeeds, and is removed if not. Creates the folder.

    It is locked meanwhile: see remove_unheld.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, new = tempfile.mkstemp(dir=path.parent, prefix=UNFINISHED)
    try:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield Path(new)
        Path(new).replace(path)
    finally:
        Path(new).unlink(missing_ok=True)
        os.close(descriptor)


@contextmanager
def one_at_a_time(folder: Path, *, does: str, report: Report) -> Iterator[None]:
    """Waits while another command works in the folder, then locks it. Creates the folder.

    does: what the other command does, such as "downloads a dataset". Raises OSError.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # `down` may have just removed it
    with ExitStack() as stack:
        try:
            stack.enter_context(locked(folder, wait=False))
        except BlockingIOError:
            report(Event(kind="info", what=f"waiting for another command that {does}"))
            stack.enter_context(locked(folder))
        yield
