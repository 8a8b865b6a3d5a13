"""How the packages report what they are doing."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

Kind = Literal["start", "done", "same", "failed", "info", "warn"]


@dataclass(frozen=True, kw_only=True, slots=True)  # msgspec would make `cluster --help` slower
class Event:
    """Something happened.

    kind: `start` a step began; `done` it changed something; `same` there was nothing to change; `failed` it ended
    without success, which an error explains, or another step repeats; `info` and `warn` are messages for the user.
    what: the step or the message, in a few words, without secrets.
    where: the node or resource concerned, if there is one.
    duration_s: how long a finished step took, in seconds.
    """

    kind: Kind
    what: str
    where: str | None = None
    duration_s: float | None = None


Report = Callable[[Event], None]


def silent(_event: object) -> None:
    """A Report that ignores all events."""
