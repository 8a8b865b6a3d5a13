"""The errors of the modules that users import. foundation/errors.py has the whole hierarchy."""

from __future__ import annotations


class ClusterError(Exception):
    """An error whose message says what happened, and where. hint: the next step for the user, if possible a command."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return self.message  # callers may have added to it


class NotFoundError(ClusterError):
    """The named thing does not exist."""
