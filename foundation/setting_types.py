"""What a class of settings is made of; settings.py checks tables against it. The nodes import this module, too."""

import math
from collections.abc import Iterator
from collections.abc import Set as AbstractSet

from msgspec import Struct

ALONE = "a single value is a list of one"
"""Marks the annotation of a list."""
HIDDEN = "never shown: may be a secret"
"""Marks the annotation of a value."""


class Settings(Struct, frozen=True, kw_only=True):
    """A table of valid settings; only `check` creates one from a user's input."""

    def conflicts(self, given: AbstractSet[str]) -> Iterator[str]:  # noqa: ARG002 - for the subclasses
        """Yields a message for each invalid combination of valid settings. `given`: the keys in the table."""
        yield from ()


class Shape(Struct, frozen=True):
    """Marks the annotation of text, all of which `pattern` must match.

    `words`: what the pattern allows, if the description says less.

    Meta also has a pattern, but compiles it in every run, whether the key is set or not.
    """

    pattern: str
    words: str = ""


def finite(value: float) -> float:
    """Returns the number. Raises ValueError for an infinite one, which TOML allows and Meta cannot exclude."""
    if not math.isfinite(value):
        raise ValueError("must be finite")
    return value


def check_command(command: str) -> str:
    """Returns a command, such as an entry of setup, unchanged. Pure. Raises ValueError if no shell can run it."""
    if not command.strip():
        raise ValueError("an empty command")
    if "\0" in command:
        raise ValueError("a command with a NUL byte")
    return command
