"""The clusters of a region as text and as JSON. Pure."""

from collections import Counter
from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any

from cluster.status import render_age, render_table, render_usd
from provision.allocation import Prices, add_up, reckon_cost
from provision.listing import ClusterSummary
from provision.membership import describe_untrusted


def render_clusters(
    clusters: Sequence[ClusterSummary], *, region: str, prices: Prices, keys_here: Collection[str], now: datetime
) -> str:
    """A table; one sentence when there are none. keys_here: names of clusters whose private key is on this machine."""
    if not clusters:
        return f"no clusters in {region}"
    rows = [("NAME", "NODES", "TYPE", "AGE", "PRICE/h", "OWNER", "KEY")]
    for cluster in clusters:
        ages = [(now - node.launched_at).total_seconds() for node in cluster.instances]
        rows.append(
            (
                cluster.name,
                render_counts(cluster),
                ", ".join(_types(cluster)) or "-",
                render_age(max(ages)) if ages else "-",
                render_usd(_usd_per_hour(cluster, prices, now)),
                render_owner(cluster.owner),
                "here" if cluster.name in keys_here else "-",
            )
        )
    return "\n".join([render_table(rows), *(line for cluster in clusters if (line := _warn(cluster, keys_here)))])


def list_document(
    clusters: Sequence[ClusterSummary], *, prices: Prices, keys_here: Collection[str], now: datetime
) -> list[dict[str, Any]]:
    """What `cluster list --json` prints."""
    return [
        {
            "name": cluster.name,
            "node_counts": dict(Counter(node.state for node in cluster.instances)),
            "ending": cluster.ending,
            "instance_types": _types(cluster),
            "launched_at": min((node.launched_at.isoformat() for node in cluster.instances), default=None),
            "usd_per_hour": _usd_per_hour(cluster, prices, now),
            "owner": cluster.owner,
            "key_here": cluster.name in keys_here,
            "untrusted": [instance.instance_id for instance in cluster.untrusted],
        }
        for cluster in clusters
    ]


def render_counts(cluster: ClusterSummary) -> str:
    """2 running; or 1 running, 1 stopped; or none."""
    counts = Counter[str](node.state for node in cluster.instances)
    if cluster.ending:
        counts["shutting-down"] = cluster.ending
    return ", ".join(f"{count} {state}" for state, count in sorted(counts.items())) or "none"


def render_owner(arn: str | None) -> str:
    """The last part of an ARN, or what else the tag holds."""
    return (arn or "").rpartition("/")[2].rpartition(":")[2] or "unknown"


def _warn(cluster: ClusterSummary, keys_here: Collection[str]) -> str | None:
    """A line about the instances that are not trusted; None for a cluster that this machine has no key of."""
    if not cluster.untrusted or cluster.name not in keys_here:
        return None
    return f"{cluster.name}: {describe_untrusted(cluster.untrusted)} (cluster status says why)"


def _types(cluster: ClusterSummary) -> list[str]:
    return sorted({node.instance_type for node in cluster.instances})


def _usd_per_hour(cluster: ClusterSummary, prices: Prices, now: datetime) -> float | None:
    return add_up([reckon_cost(node, prices=prices, now=now).usd_per_hour for node in cluster.instances])
