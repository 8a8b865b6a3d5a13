"""The errors of what users import: the base of every error of this project, and the one for what does not exist.

foundation/errors.py has the whole tree.
"""

from __future__ import annotations


class ClusterError(Exception):
    """What happened and where; `hint` is the next thing to do, a command where there is one."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return self.message  # callers may have added to it


class NotFoundError(ClusterError):
    """What was named does not exist."""
