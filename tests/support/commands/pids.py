"""Processes of this machine, by pid."""

from pathlib import Path


def is_running(pid: int) -> bool:
    """Whether a process is running. A zombie is not: it has ended, but its parent has not waited for it yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
