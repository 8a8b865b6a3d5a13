"""Parses TOML that others may have written: in limited time, and with limited nesting."""

import tomllib
from collections.abc import Iterable
from typing import Any

MOST_BYTES = 256 << 10
"""The size of a file of settings, for read_bounded."""
MOST_DOTS = 1000
"""The dots in a line. tomllib's time for a key grows with the square of its parts."""
MOST_LEVELS = 16


def parse_toml(text: str) -> dict[str, Any]:
    """Returns the table. Pure. Raises ValueError, which is tomllib's if the text is not valid TOML."""
    for number, line in enumerate(text.splitlines(), start=1):
        if line.count(".") > MOST_DOTS:
            raise ValueError(
                f"more than {MOST_DOTS} dots in a line; break it into several (at line {number}, column 1)"
            )
    try:
        table = tomllib.loads(text)
    except RecursionError:
        raise ValueError(TOO_DEEP) from None
    level: list[Any] = [table]
    for _ in range(MOST_LEVELS):
        level = [below for one in level for below in _find_below(one)]
    if level:
        raise ValueError(TOO_DEEP)
    return table


TOO_DEEP = "tables and lists are nested too deeply"


def _find_below(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()
