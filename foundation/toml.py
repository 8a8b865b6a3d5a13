"""Parses TOML that others may have written."""

import re
import tomllib
from collections import Counter
from typing import Any

MOST_BYTES = 256 << 10
"""The size of a file of settings, for read_bounded."""


def parse_toml(text: str) -> dict[str, Any]:
    """Returns the table. Pure. Raises ValueError, which is tomllib's if the text is not valid TOML."""
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("tables and lists are nested too deeply") from None


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
