"""Lengths of time as people write them: "90m", "2h", "1d", "45s"."""

import re

MAX_DURATION_S = 30 * 86400
_DURATION = r"([1-9][0-9]*)(s|m|h|d)"
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def parse_duration(value: int | str) -> int | None:
    """Seconds of "90m", "2h", "1d", "45s" or a number; None for "none". Pure. Raises ValueError."""
    if value == "none":
        return None
    if isinstance(value, str):
        found = re.fullmatch(_DURATION, value)
        if found is None:
            raise ValueError('must be a time such as "90m", "2h", "1d", or "none"')
        value = int(found[1]) * _UNITS[found[2]]
    if not 1 <= value <= MAX_DURATION_S:
        raise ValueError("must be from 1 second to 30 days")
    return value


def render_duration(seconds: float) -> str:
    """The shortest text that parse_duration reads as this number of seconds: 5400 is "90m". Pure."""
    whole = round(seconds)
    unit = next(unit for unit in ("d", "h", "m", "s") if whole % _UNITS[unit] == 0)
    return f"{whole // _UNITS[unit]}{unit}"
