"""What a known mistake is, and how it is found in a line of a job's output. Pure."""

import re
from collections.abc import Iterable, Mapping

from msgspec import Struct

# Warnings with another program's error in them: of torchvision's own image reader, and of a plan that cuDNN tries out.
HARMLESS = re.compile(r"Failed to load image Python extension|Plan failed with an? \w+: ")
_RANK = re.compile(r"^\[rank\d+\]:\s?")


class Mistake(Struct, frozen=True):
    """A mistake that shows in a line of output.

    pattern: a regular expression, compiled when a line has the needle; None: the needle suffices. link: to more
    information. of_peer: the line says that another process is gone or late, so that it is not the first to fail.
    """

    needle: str
    advice: str
    pattern: str | None = None
    link: str | None = None
    of_peer: bool = False


def find_mistake(text: str, mistakes: Iterable[Mistake]) -> tuple[Mistake, dict[str, str]] | None:
    """The first mistake that a line shows, and the named groups of its pattern; None for harmless lines."""
    for mistake in mistakes:
        groups = find_groups(mistake, text) if mistake.needle in text else None
        if groups is not None:
            return None if HARMLESS.search(text) else (mistake, groups)
    return None


def find_groups(mistake: Mistake, text: str) -> dict[str, str] | None:
    """The named groups in a line with the needle; None if the pattern does not match."""
    if mistake.pattern is None:
        return {}
    match = re.search(mistake.pattern, text)
    return match.groupdict() if match is not None else None


def render_advice(mistake: Mistake, groups: Mapping[str, str]) -> str:
    """The advice for a line with these groups."""
    advice = mistake.advice
    for name, value in groups.items():
        advice = advice.replace(f"{{{name}}}", value)
    return f"{advice} ({mistake.link})" if mistake.link else advice


def without_rank(text: str) -> str:
    """A line without the prefix that PyTorch gives the lines of a traceback, "[rank0]: "."""
    return _RANK.sub("", text)
