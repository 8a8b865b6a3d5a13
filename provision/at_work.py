"""Whether a command is changing the cluster just now, on this machine."""

import fcntl
import os

from provision.files import ClusterFiles


def find_command_at_work(files: ClusterFiles) -> int | None:
    """The process that holds the cluster's lock; None when nobody does, as far as this user may look.

    The lock itself is tried only while the process that wrote its id there lives: trying means holding it for a
    moment, and an `up` at that moment would be refused.
    """
    try:
        handle = os.open(files.lock_file, os.O_RDONLY | os.O_CLOEXEC)  # as ClusterFiles.locked has it
    except (FileNotFoundError, PermissionError):
        return None
    try:
        text = os.pread(handle, 32, 0).decode(errors="replace").strip()
        if not text.isdecimal() or not _lives(int(text)):
            return None
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return int(text)
    else:
        return None
    finally:
        os.close(handle)


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
