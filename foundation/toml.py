"""Parses TOML that others may have written, with limited nesting."""

import re
import tomllib
from collections import Counter
from collections.abc import Iterable
from typing import Any

MOST_BYTES = 256 << 10
"""The size of a file of settings, for read_bounded."""
MOST_LEVELS = 16


def parse_toml(text: str) -> dict[str, Any]:
    """Returns the table. Pure. Raises ValueError, which is tomllib's if the text is not valid TOML."""
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


_NAME = r"""\s*([\w."'-]+)\s*"""
_HEADING = re.compile(rf"\s*(\[\[?){_NAME}\]")
_KEY = re.compile(rf"{_NAME}=")


def find_line(text: str, key: str) -> int | None:
    """Returns the line of a dotted key such as "volumes[0].mount", or of the table or key around it. Pure.

    None if it is nowhere. tomllib tells no lines; text of several lines that looks like a key is taken for one.
    """
    table, places, tables = "", dict[str, int](), Counter[str]()
    for number, line in enumerate(text.splitlines(), start=1):
        if (heading := _HEADING.match(line)) is not None:
            table = heading[2] if heading[1] == "[" else f"{heading[2]}[{tables[heading[2]]}]"
            tables[heading[2]] += 1
            places.setdefault(heading[2], number)
            places.setdefault(table, number)
        elif (found := _KEY.match(line)) is not None:
            places.setdefault(f"{table}.{found[1]}" if table else found[1], number)
    while key and key not in places:
        key = key.rpartition(".")[0]
    return places.get(key)
