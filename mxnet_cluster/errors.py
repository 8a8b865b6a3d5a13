"""The errors of the modules that users import; foundation/errors.py has the whole tree."""

from __future__ import annotations


class ClusterError(Exception):
    """What happened and where; hint: what to do next, if possible a command."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return self.message  # callers may have added to it


class NotFoundError(ClusterError):
    """The named thing does not exist."""
