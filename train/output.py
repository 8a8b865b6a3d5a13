"""A job's log as lines for people: who said what, and which of it somebody wants to see."""

import re
from dataclasses import dataclass
from datetime import datetime

from provision.errors import UsageError
from train.events import Event, Process, Role

SINCE_PATTERN = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)(s|m|h|d)")
SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def render_line(event: Event, *, head: str = "node-0") -> str | None:
    """An event of the log as a line: "[worker 0 node-1] text". Pure; None for one that is no output.

    What the supervisor says is marked with the name of the node that it runs on, `head`.
    """
    if event.kind == "line" and event.process is not None:
        return f"[{event.process.tag}] {event.text}"
    if event.kind == "say":
        return f"[supervisor {head}] {event.text}"
    if event.kind == "warnings" and event.warnings:
        return f"[supervisor {head}] warning: {'; '.join(event.warnings)}"
    if event.kind == "damaged":
        return f"[cluster] {event.text}"
    return None


@dataclass(frozen=True, kw_only=True, slots=True)
class Selection:
    """Which lines of a log somebody wants to see; what is left empty selects nothing out.

    since: seconds since the epoch. What the supervisor itself says belongs to every rank and role.
    """

    ranks: frozenset[int] = frozenset()
    roles: frozenset[Role] = frozenset()
    since: float | None = None

    def takes(self, event: Event) -> bool:
        """Whether it is among them. A rank that is not known yet is none of those asked for."""
        if self.since is not None and event.at < self.since:
            return False
        if event.process is None or event.kind != "line":
            return True
        return self._takes_process(event.process)

    def _takes_process(self, process: Process) -> bool:
        if self.roles and process.role not in self.roles:
            return False
        return not self.ranks or process.rank in self.ranks


def parse_since(text: str, *, now: float) -> float:
    """A moment as `--since` takes it: "90s", "10m", "2h", "1d" before now, or a date and time as ISO 8601 has them.

    now: seconds since the epoch, as is what it returns. A time without a zone is this machine's.
    Raises UsageError.
    """
    match = SINCE_PATTERN.fullmatch(text.strip())
    if match is not None:
        return now - float(match[1]) * SECONDS[match[2]]
    try:
        return datetime.fromisoformat(text.strip()).timestamp()
    except (ValueError, OverflowError, OSError) as error:
        raise UsageError(f'--since "{text}": must be like 90s, 10m, 2h or 1d, or like 2026-11-21T10:00') from error
