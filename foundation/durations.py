"""Parses and renders durations, and renders times."""

import re
import time

MAX_DURATION_S = 30 * 86400
_DURATION = r"([1-9][0-9]*)(s|m|h|d)"
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def parse_duration(value: int | str) -> int | None:
    """The seconds in "90m", "2h", "1d", "45s" or a number; None for "none". Pure. Raises ValueError."""
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


def render_rounded(seconds: float) -> str:
    """The duration to the second; from one hour on, down to the minute: "45 s", "2 min 3 s", "1 h 20 min". Pure."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def render_minutes(seconds: float) -> str:
    """The duration in whole minutes, rounded down, from two on: "119 s", "3 min", "1 h 20 min", "2 h". Pure."""
    if seconds < 120:
        return f"{int(seconds)} s"
    hours, minutes = divmod(int(seconds // 60), 60)
    return " ".join(filter(None, [f"{hours} h" if hours else "", f"{minutes} min" if minutes else ""]))


def render_age(seconds: float) -> str:
    """The duration for a table, in its two largest units: 42s, 5m10s, 3h07m, 2d04h. Pure."""
    whole = max(0, int(seconds))
    minutes, s = divmod(whole, 60)
    hours, m = divmod(minutes, 60)
    days, h = divmod(hours, 24)
    if days:
        return f"{days}d{h:02}h"
    if hours:
        return f"{hours}h{m:02}m"
    if minutes:
        return f"{minutes}m{s:02}s"
    return f"{s}s"


def render_time(at: float) -> str:
    """A time in this machine's time zone, which it names: "2026-11-27 13:41 EST". at: seconds since the epoch."""
    return time.strftime("%Y-%m-%d %H:%M %Z", time.localtime(at))
