"""The events of a job's log, which node/job/events.py reads, as lines of text, and which of them to show."""

import re
from datetime import datetime

from foundation.errors import UsageError
from node.job.events import Event, EventReader
from node.protocol import LogWanted, Process

__all__ = ["ALL", "Event", "EventReader", "Process", "is_wanted", "parse_since", "render_line"]
ALL = LogWanted()
SINCE_PATTERN = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)(s|m|h|d)")
SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def render_line(event: Event, *, head: str = "node-0") -> str | None:
    """An event as a line, "[worker 0 node-1] text"; None for one without output, and for warnings. Pure.

    head: the supervisor's node, for its own lines.
    """
    if event.kind == "line" and event.process is not None:
        return f"[{event.process.tag}] {event.text}"
    if event.kind == "message":
        return f"[supervisor {head}] {event.text}"
    if event.kind == "damaged":
        return f"[cluster] {event.text}"
    return None


def is_wanted(event: Event, wanted: LogWanted) -> bool:
    """Whether an event is among the wanted lines, or none of output. Pure."""
    if wanted.since is not None and event.at < wanted.since:
        return False
    is_output = event.process is not None and event.kind in ("line", "bar")
    return not is_output or wanted.takes_lines_of(event.process)


def parse_since(text: str, *, now: float) -> float:
    """The time of `--since`: "90s", "10m", "2h", "1d" before now, or an ISO 8601 date and time.

    now: seconds since the epoch, like the result. A time without a zone is local. Raises UsageError.
    """
    match = SINCE_PATTERN.fullmatch(text.strip())
    if match is not None:
        return now - float(match[1]) * SECONDS[match[2]]
    try:
        return datetime.fromisoformat(text.strip()).timestamp()
    except (ValueError, OverflowError, OSError) as error:
        raise UsageError(f'--since "{text}": must be a time such as 90s, 10m, 2h, 1d or 2026-11-21T10:00') from error
