"""How the sandbox reports what it does."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True, slots=True)
class Event:
    """Something happened.

    kind: `start` a step began; `done` it ended; `same` there was nothing to do; `info` and `warn` are messages.
    duration_s: how long a finished step took, in seconds.
    """

    kind: Literal["start", "done", "same", "info", "warn"]
    what: str
    duration_s: float | None = None


Report = Callable[[Event], None]


def silent(_event: object) -> None:
    """A Report that ignores all events."""
