"""The errors that a user of the sandbox can cause or see.

All have a message, which says what happened, a hint, which is the next command to run, and the command's exit code.
"""


class SandboxError(Exception):
    """The sandbox cannot run on this machine, or one of its parts failed. hint: the next command to run."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        if hint:
            self.add_note(f"try: {hint}")  # for tracebacks: a program does not print the hint


class UsageError(SandboxError):
    """The command line cannot be understood, or a question needs a terminal."""

    exit_code = 2


class NotFoundError(SandboxError):
    """The named thing does not exist."""
