"""The terms of a cluster's lease: when its nodes end by themselves. Their text is in the user data and in EC2's tags.

    set=2026-11-25T15:00:00Z until=2026-11-26T03:00:00Z idle=3600 budget=200 spent=2026-11-27T09:00:00Z then=down
    end=1795921200 why=lifetime

A change has a later `set`; of two texts, the later one counts. The nodes (node/lease.sh) read `end`, `why`, `idle` and
`then`. Pure.
"""

import calendar
import time
from typing import NamedTuple

MAX_TEXT = 256  # characters of a tag's value
_MOMENT = "%Y-%m-%dT%H:%M:%SZ"
LAST_MOMENT = 253402300799.0
"""The end of the year 9999: later moments have no such text."""


class Lease(NamedTuple):
    """When a cluster ends by itself. Times are seconds since 1970.

    set_at: when these terms were set. until: the end of the lifetime. idle_s: how long the cluster may be idle.
    budget_usd: what it may cost, which it will have cost at budget_until. then: "down" or "stop".
    """

    set_at: float = 0.0
    until: float | None = None
    idle_s: float | None = None
    budget_usd: float | None = None
    budget_until: float | None = None
    then: str = "down"

    @property
    def limits(self) -> bool:
        """Whether any limit ends the cluster."""
        return self.until is not None or self.idle_s is not None or self.budget_usd is not None


class End(NamedTuple):
    """The deadline. at: seconds since 1970. why: "lifetime" or "budget"."""

    at: float
    why: str


def render_moment(at: float) -> str:
    """Returns seconds since 1970 in the form 2026-11-25T15:00:00Z."""
    return time.strftime(_MOMENT, time.gmtime(at))


def render_lease(lease: Lease) -> str:
    """Returns the lease as text of at most MAX_TEXT characters."""
    end = find_end(lease)
    words = [
        ("set", render_moment(lease.set_at)),
        ("until", None if lease.until is None else render_moment(lease.until)),
        ("idle", render_number(lease.idle_s)),
        ("budget", render_number(lease.budget_usd)),
        ("spent", None if lease.budget_until is None else render_moment(lease.budget_until)),
        ("then", lease.then),
        ("end", None if end is None else f"{end.at:.0f}"),
        ("why", None if end is None else end.why),
    ]
    return " ".join(f"{key}={value}" for key, value in words if value is not None)


def parse_lease(text: str) -> Lease | None:
    """Parses the text of render_lease; None if it is not such a text. Skips unknown keys."""
    words: dict[str, str] = {}
    for word in text.split():
        key, _, value = word.partition("=")
        words[key] = value
    try:
        lease = Lease(
            set_at=parse_moment(words["set"]),
            until=parse_moment(words["until"]) if "until" in words else None,
            idle_s=_positive(words.get("idle")),
            budget_usd=_positive(words.get("budget")),
            budget_until=parse_moment(words["spent"]) if "spent" in words else None,
            then=words["then"],
        )
    except (KeyError, ValueError, OverflowError):
        return None
    return lease if lease.then in ("down", "stop") else None


def find_newest(texts: list[str]) -> Lease | None:
    """Returns the lease that was set last; None if no text is a lease."""
    found = [lease for lease in map(parse_lease, texts) if lease is not None]
    return max(found, key=lambda lease: lease.set_at) if found else None


def find_end(lease: Lease) -> End | None:
    """Returns the deadline: the end of the lifetime, or the time at which the budget is spent. None without one."""
    ends = [(lease.until, "lifetime"), (lease.budget_until, "budget")]
    return min((End(at, why) for at, why in ends if at is not None), default=None)


def render_number(value: float | None) -> str | None:
    """Returns a number with all its digits, up to millionths, as in cluster.toml: "200", "12345.67"."""
    return None if value is None else f"{value:.6f}".rstrip("0").rstrip(".")


def _positive(text: str | None) -> float | None:
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
