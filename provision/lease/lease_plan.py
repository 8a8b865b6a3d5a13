"""Computes a cluster's lease: at its launch, and after a change. Pure."""

from typing import NamedTuple

from msgspec import Struct

from foundation.durations import render_age, render_duration, render_time
from foundation.errors import ConfigError, UsageError
from provision.lease.config import LeaseConfig
from provision.lease.terms import LAST_MOMENT, End, Lease, find_end, render_number

_SAME_S = 60.0
"""The largest difference between two calculations of the same end of a budget."""
SOON_S = 300.0
"""`cluster lease` asks before a change that ends the cluster earlier than this."""


class Spending(NamedTuple):
    """What a cluster costs per hour while all its nodes run, with disks and addresses, and what it has cost.

    usd_per_hour: None if a price is unknown.
    """

    usd_per_hour: float | None = None
    usd: float = 0.0


def make_lease(config: LeaseConfig, *, now: float, spending: Spending) -> Lease | None:
    """Returns a lease that begins `now`, in seconds since 1970; None if nothing ends the cluster.

    Raises ConfigError for a budget that is spent, or that cannot be enforced because a price is unknown.
    """
    if config.lifetime_s is config.idle_s is config.budget is None:
        return None
    return Lease(
        set_at=float(int(now)),
        until=None if config.lifetime_s is None else float(int(now) + config.lifetime_s),
        idle_s=config.idle_s,
        budget_usd=config.budget,
        budget_until=_plan_budget(config.budget, now=now, spending=spending, key="[lease] budget_usd ="),
        then=config.then,
    )


def begin_lease(config: LeaseConfig, current: Lease | None, *, now: float, spending: Spending) -> Lease | None:
    """Returns the lease of nodes that begin one now. current: the one that has ended earlier nodes. Raises ConfigError.

    The tags may still have the current one. It must not end these nodes, so the new one is later, even without limits.
    """
    lease = make_lease(config, now=now, spending=spending)
    if current is None:
        return lease
    lease = lease or Lease(set_at=float(int(now)))
    return lease._replace(set_at=max(lease.set_at, current.set_at + 1))


def _plan_budget(budget_usd: float | None, *, now: float, spending: Spending, key: str) -> float | None:
    """Returns when a budget will be spent. key: for messages. Raises ConfigError if it is spent, or that is unknown."""
    if budget_usd is None:
        return None
    if spending.usd_per_hour is None:
        raise ConfigError(
            f"{key} {render_number(budget_usd)}: a price is unknown, so the nodes cannot count what they cost",
            hint="limit the lifetime or the idle time instead, or choose another [provision] instance_type or market",
        )
    if spending.usd >= budget_usd:
        raise ConfigError(
            f"{key} {render_number(budget_usd)}: the cluster has already cost ${spending.usd:.2f}",
            hint="raise the budget, or delete the cluster: cluster down",
        )
    return _when_spent(budget_usd, now=now, spending=spending)


def _when_spent(budget_usd: float, *, now: float, spending: Spending) -> float | None:
    if not spending.usd_per_hour:
        return None
    return min(float(int(now + (budget_usd - spending.usd) / spending.usd_per_hour * 3600)), LAST_MOMENT)


class Change(Struct, frozen=True, kw_only=True):
    """A change by `cluster lease`. none: remove all limits. extend_s: extend the deadline, from now if there is none.

    idle_s, budget_usd: None: unchanged; "none": no limit.
    """

    none: bool = False
    extend_s: int | None = None
    idle_s: int | str | None = None
    budget_usd: float | str | None = None

    @property
    def is_empty(self) -> bool:
        """Whether the change is empty."""
        return self == Change()


def change_lease(current: Lease | None, change: Change, *, now: float, spending: Spending, then: str) -> Lease:
    """Returns the lease after a change. then: of cluster.toml, for a cluster without a lease.

    spending: only a new budget needs it. The new lease is always later than the current one, whatever the clocks show.
    Raises UsageError, ConfigError.
    """
    if change.none and change != Change(none=True):
        raise UsageError("cluster lease --none removes all limits; it takes no others", hint="cluster lease --help")
    old = current or Lease(then=then)
    changed = Lease(then=old.then) if change.none else old
    if change.extend_s is not None:
        changed = changed._replace(until=max(old.until or 0.0, float(int(now))) + change.extend_s)
    if change.idle_s is not None:
        changed = changed._replace(idle_s=None if isinstance(change.idle_s, str) else float(change.idle_s))
    if change.budget_usd is not None:
        budget = None if isinstance(change.budget_usd, str) else change.budget_usd
        until = _plan_budget(budget, now=now, spending=spending, key="--budget")
        changed = changed._replace(budget_usd=budget, budget_until=until)
    return changed._replace(set_at=max(float(int(now)), old.set_at + 1))


def find_near_end(current: Lease | None, changed: Lease, *, now: float) -> str | None:
    """Returns when and why a change ends the cluster, if that is within SOON_S: "in 1s: idle = 1s". Otherwise None.

    Returns None if the cluster ends as early without the change. A change counts as use, so the idle time begins `now`.
    """
    end = _find_first_end(changed, now=now)
    if end is None or end.at - now >= SOON_S:
        return None
    before = None if current is None else _find_first_end(current, now=now)
    if before is not None and before.at <= end.at:
        return None
    why = {
        "lifetime": "its lifetime",
        "idle": f"idle = {render_duration(changed.idle_s or 0)}",
        "budget": f"the budget of ${render_number(changed.budget_usd)}",
    }[end.why]
    return f"{_render_when(end.at, now=now)}: {why}"


def _find_first_end(lease: Lease, *, now: float) -> End | None:
    """Returns the first end of a cluster that is idle from `now` on."""
    idle = None if lease.idle_s is None else End(now + lease.idle_s, "idle")
    return min((end for end in (find_end(lease), idle) if end is not None), default=None)


def update_budget(lease: Lease, spending: Spending, *, now: float) -> Lease:
    """Returns the lease after the nodes have changed; the same object if its budget lasts as long, or is unknown."""
    if lease.budget_usd is None or spending.usd_per_hour is None:
        return lease
    until = _when_spent(lease.budget_usd, now=now, spending=spending)
    if until == lease.budget_until or abs((until or 0.0) - (lease.budget_until or 0.0)) < _SAME_S:
        return lease
    return lease._replace(set_at=max(float(int(now)), lease.set_at + 1), budget_until=until)


def describe_lease(lease: Lease | None, *, now: float) -> str:
    """Describes when the cluster ends, without a subject: "ends in 11h59m (2026-11-26 03:00 UTC), ..."."""
    if lease is None or not lease.limits:
        return "none: only cluster down ends the nodes"
    parts = []
    if lease.until is not None:
        parts.append(f"{_render_when(lease.until, now=now)} ({render_time(lease.until)})")
    if lease.idle_s is not None:
        parts.append(f"after {render_duration(lease.idle_s)} without use")
    if lease.budget_usd is not None:
        left = "" if lease.budget_until is None else f" ({_render_when(lease.budget_until, now=now)})"
        parts.append(f"at ${render_number(lease.budget_usd)}{left}")
    verb = "stops" if lease.then == "stop" else "ends"
    return f"{verb} {', or '.join(parts)}"


def describe_config(config: LeaseConfig, *, now: float) -> str:
    """Describes the lease that a launch begins."""
    until = None if config.lifetime_s is None else now + config.lifetime_s
    lease = Lease(until=until, idle_s=config.idle_s, budget_usd=config.budget, then=config.then)
    return describe_lease(lease, now=now)


def _render_when(at: float, *, now: float) -> str:
    return "now" if at - now < 1 else f"in {render_age(at - now)}"
