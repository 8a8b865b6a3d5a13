"""What an entry of the tables of known mistakes is."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mistake:
    """What can be read in a line of output.

    pattern: a regular expression, compiled when a line has the needle; None, the needle is enough.
    link: where more can be read.
    """

    needle: str
    advice: str
    pattern: str | None = None
    link: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Ending:
    """How a process ends: with one of these exit codes; 128 + N is signal N."""

    codes: frozenset[int]
    advice: str
