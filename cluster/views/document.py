"""Typed views as documents for --json. Pure."""

from datetime import UTC, datetime
from typing import Any

import msgspec

MOMENTS = frozenset(
    {"at", "budget_until", "ended_at", "held_at", "launched_at", "set_at", "since", "started_at", "submitted_at"}
    | {"until"}
)
"""The keys of times, in seconds since the epoch."""


def as_document(view: object, *, rounded: bool = True) -> dict[str, Any]:
    """Returns a view, or a dict of views, with its times in ISO 8601 and its US dollars rounded to a millionth.

    rounded: False leaves amounts as they are, for records that others have written.
    """

    def convert(value: Any, key: str) -> Any:
        if isinstance(value, dict):
            return {name: convert(below, name) for name, below in value.items()}
        if isinstance(value, list | tuple):
            return [convert(below, key) for below in value]
        if isinstance(value, datetime):
            return value.isoformat()
        if isinstance(value, int | float) and key in MOMENTS:
            return iso_time(value)
        return round(value, 6) if rounded and isinstance(value, float) and "usd" in key else value

    document: dict[str, Any] = convert(msgspec.to_builtins(view, builtin_types=(datetime,)), "")
    return document


def pick(view: object, names: str) -> dict[str, Any]:
    """Returns some attributes of a view, by name."""
    return {name: getattr(view, name) for name in names.split()}


def iso_time(at: float | None) -> str | None:
    """Returns seconds since the epoch in ISO 8601, with milliseconds, in UTC."""
    return None if at is None else datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")
