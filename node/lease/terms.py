"""The terms of a cluster's lease: when its nodes end by themselves. Their text is in the user data and in EC2's tags.

    set=2026-11-25T15:00:00Z until=2026-11-26T03:00:00Z idle=3600 budget=200 then=down rate=1.23 stopped=0.05 spent=7.5

A change has a later `set`; of two texts, the later one counts. Pure. Runs here and on the nodes: Python 3.6, standard
library only.
"""

import calendar
import time
from typing import Dict, List, NamedTuple, Optional

MAX_TEXT = 256  # characters of a tag's value
WARN_S = 600.0
_MOMENT = "%Y-%m-%dT%H:%M:%SZ"


class Lease(NamedTuple):
    """When a cluster ends by itself. Times are seconds since 1970.

    set_at: when these terms were set. until: the deadline. idle_s: how long the cluster may be idle. then: "down" or
    "stop". usd_per_hour, stopped_usd_per_hour: the cost of all nodes with their disks and addresses while they run, and
    while they are stopped; None if unknown. spent_usd: their cost until set_at.
    """

    set_at: float = 0.0
    until: Optional[float] = None
    idle_s: Optional[float] = None
    budget_usd: Optional[float] = None
    then: str = "down"
    usd_per_hour: Optional[float] = None
    stopped_usd_per_hour: Optional[float] = None
    spent_usd: float = 0.0

    @property
    def limits(self) -> bool:
        """Whether any limit ends the cluster."""
        return self.until is not None or self.idle_s is not None or self.budget_usd is not None


class End(NamedTuple):
    """A coming end. why: "lifetime", "idle" or "budget". left_s: seconds; for idle, if the cluster stays idle."""

    why: str
    left_s: float


def render_moment(at: float) -> str:
    """Returns seconds since 1970 in the form 2026-11-25T15:00:00Z."""
    return time.strftime(_MOMENT, time.gmtime(at))


def render_lease(lease: Lease) -> str:
    """Returns the lease as text of at most MAX_TEXT characters."""
    words = [
        ("set", render_moment(lease.set_at)),
        ("until", None if lease.until is None else render_moment(lease.until)),
        ("idle", _number(lease.idle_s)),
        ("budget", _number(lease.budget_usd)),
        ("then", lease.then),
        ("rate", _number(lease.usd_per_hour)),
        ("stopped", _number(lease.stopped_usd_per_hour)),
        ("spent", _number(lease.spent_usd) if lease.spent_usd else None),
    ]
    return " ".join("{}={}".format(key, value) for key, value in words if value is not None)


def parse_lease(text: str) -> Optional[Lease]:
    """Parses the text of render_lease; None if it is not such a text. Skips unknown keys."""
    words: Dict[str, str] = {}
    for word in text.split():
        key, _, value = word.partition("=")
        words[key] = value
    try:
        lease = Lease(
            set_at=parse_moment(words["set"]),
            until=parse_moment(words["until"]) if "until" in words else None,
            idle_s=_positive(words.get("idle")),
            budget_usd=_positive(words.get("budget")),
            then=words["then"],
            usd_per_hour=_positive(words.get("rate")),
            stopped_usd_per_hour=_positive(words.get("stopped")),
            spent_usd=_positive(words.get("spent")) or 0.0,
        )
    except (KeyError, ValueError, OverflowError):
        return None
    return lease if lease.then in ("down", "stop") else None


def find_newest(texts: List[str]) -> Optional[Lease]:
    """Returns the lease that was set last; None if no text is a lease."""
    found = [lease for lease in map(parse_lease, texts) if lease is not None]
    return max(found, key=lambda lease: lease.set_at) if found else None


def spent_at(lease: Lease, now: float) -> float:
    """Returns the cost of the cluster until `now`, if its nodes have run since set_at. Unknown prices count as 0."""
    return lease.spent_usd + max(now - lease.set_at, 0.0) * (lease.usd_per_hour or 0.0) / 3600.0


def find_ends(lease: Lease, until_left_s: Optional[float], idle_for_s: Optional[float], spent_usd: float) -> List[End]:
    """Returns the coming ends, the earliest first.

    until_left_s: seconds to the deadline. idle_for_s: how long the whole cluster has been idle; None if unknown.
    """
    ends = []
    if until_left_s is not None:
        ends.append(End("lifetime", until_left_s))
    if lease.idle_s is not None and idle_for_s is not None:
        ends.append(End("idle", lease.idle_s - idle_for_s))
    if lease.budget_usd is not None and lease.usd_per_hour:
        ends.append(End("budget", (lease.budget_usd - spent_usd) / lease.usd_per_hour * 3600.0))
    return sorted(ends, key=lambda end: end.left_s)


def is_near(lease: Lease, end: End) -> bool:
    """Returns whether to warn of an end: ten minutes before it; for a short idle time, in its second half."""
    if end.why == "idle" and lease.idle_s is not None:
        return end.left_s <= min(WARN_S, lease.idle_s / 2)
    return end.left_s <= WARN_S


def _number(value: Optional[float]) -> Optional[str]:
    return None if value is None else "{:.6f}".format(value).rstrip("0").rstrip(".")


def _positive(text: Optional[str]) -> Optional[float]:
    """Raises ValueError if the text is not a number of at least 0."""
    if text is None:
        return None
    value = float(text)
    if not 0 <= value < float("inf"):
        raise ValueError(text)
    return value


def parse_moment(text: str) -> float:
    """Parses the text of render_moment. Raises ValueError, OverflowError."""
    return float(calendar.timegm(time.strptime(text, _MOMENT)))
