"""The known mistakes of mistakes.ini, and how one is found in a line of a job's output. Pure, apart from its reading.

The file is INI, which needs no quotes, because a node's Python may be 3.10, which reads no TOML.
"""

import re
from configparser import ConfigParser
from functools import cache, lru_cache
from pathlib import Path

from msgspec import Struct

# Warnings with another program's error in them: of torchvision's own image reader, and of a plan that cuDNN tries out.
HARMLESS = re.compile(r"Failed to load image Python extension|Plan failed with an? \w+: ")
MOST_SHAPES = 1024
_DIGITS = str.maketrans("123456789", "0" * 9)
_RANK = re.compile(r"^\[rank\d+\]:\s?")


class Mistake(Struct, frozen=True):
    """A section of mistakes.ini. patterns: compiled when a line has one of the needles."""

    needles: tuple[str, ...]
    advice: str
    patterns: tuple[str, ...] = ()
    of_peer: bool = False
    of_memory: bool = False

    def find_groups(self, text: str) -> dict[str, str] | None:
        """The named groups in a line with one of the needles; None if no pattern matches."""
        if not self.patterns:
            return {}
        matches = (re.search(pattern, text) for pattern in self.patterns)
        return next((match.groupdict() for match in matches if match is not None), None)


@cache
def read_mistakes() -> tuple[Mistake, ...]:
    """All known mistakes; the first match counts."""
    parser = ConfigParser(delimiters=("=",), comment_prefixes=("#",), interpolation=None)
    parser.read_string(Path(__file__).with_suffix(".ini").read_text(encoding="utf-8"))
    return tuple(
        Mistake(
            needles=tuple(name.split(" | ")),
            advice=" ".join(row["advice"].split()),
            patterns=tuple(filter(None, row.get("pattern", "").split("\n"))),
            of_peer=row.getboolean("of_peer", False),
            of_memory=row.getboolean("of_memory", False),
        )
        for name, row in parser.items()
        if name != parser.default_section
    )


@cache
def _read_shapes() -> tuple[str, ...]:
    """All needles, with 0 for each digit."""
    return tuple(needle.translate(_DIGITS) for mistake in read_mistakes() for needle in mistake.needles)


@lru_cache(MOST_SHAPES)
def _may_show_mistake(shape: str) -> bool:
    """Whether lines with this text, with 0 for each digit, may show a mistake."""
    return any(needle in shape for needle in _read_shapes())


def find_mistake(text: str) -> tuple[Mistake, dict[str, str]] | None:
    """The first mistake that a line shows, and the named groups for its advice; None for harmless lines."""
    if not _may_show_mistake(text.translate(_DIGITS)):  # most of a log's lines differ in numbers alone
        return None
    for mistake in read_mistakes():
        for needle in mistake.needles:
            groups = mistake.find_groups(text) if needle in text else None
            if groups is not None:
                return None if HARMLESS.search(text) else (mistake, groups)
    return None


def without_rank(text: str) -> str:
    """A line without the prefix that PyTorch gives the lines of a traceback, "[rank0]: "."""
    return _RANK.sub("", text)
