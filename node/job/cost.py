"""Computes what a job's nodes have cost. Pure."""

from collections.abc import Iterable

from node.protocol import JobHost, Record


def cost_of(hosts: Iterable[JobHost], seconds: float) -> float | None:
    """What the nodes among these hosts cost in this time, in US dollars; None if a price is unknown, or without nodes.

    The user's own hosts do not count.
    """
    prices = {host.name: host.usd_per_hour for host in hosts if host.own_host is None}
    known = [price for price in prices.values() if price is not None]
    if not prices or len(known) < len(prices):
        return None
    return sum(known) * max(seconds, 0.0) / 3600


def find_cost(record: Record, now: float) -> float | None:
    """What a job's nodes have cost since it got them, up to its end or now; None as in cost_of. Pure.

    Between two attempts, the job has the nodes that it has not lost. For an ended attempt, the cost in the record
    counts.
    """
    if record.held_at is None:
        return None
    end = record.ended_at or now
    if not record.attempts:
        return cost_of(record.nodes, end - record.held_at)
    total = 0.0
    for attempt, following in zip(record.attempts, (*record.attempts[1:], None), strict=True):
        kept = [host for host in record.nodes if host.name not in attempt.lost]
        until = end if following is None else following.started_at
        during, after = attempt.cost_usd, 0.0 if not kept else cost_of(kept, until - (attempt.ended_at or until))
        if attempt.ended_at is None:
            during = cost_of(record.nodes, end - attempt.started_at)
        if during is None or after is None:
            return None
        total += during + after
    return total
