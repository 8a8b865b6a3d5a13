"""The clusters of a region, as text and as JSON. Pure."""

from collections import Counter
from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any

from msgspec import Struct

from cluster.views.document import as_document, pick
from cluster.views.layout import render_table
from cluster.views.status import lease_document, render_usd, untrusted_document
from foundation.durations import render_age, render_duration
from provision.lease.terms import Lease, find_end, find_newest
from provision.membership import describe_untrusted
from provision.model import ClusterState
from provision.preflight.prices import USD_PER_ADDRESS_HOUR, Prices, disk_rate
from provision.status import add_up


class RegionClusters(Struct, frozen=True, kw_only=True):
    """The clusters of a region. keys_here: names of clusters whose private key is on this machine.

    usd_per_gib_month: the price of disks. price_note: a note to add to prices.
    """

    region: str
    clusters: Sequence[ClusterState]
    prices: Prices
    keys_here: Collection[str]
    now: datetime
    usd_per_gib_month: float | None = None
    price_note: str = ""

    def find_price(self, cluster: ClusterState) -> float | None:
        """Returns what a cluster's instances, addresses and disks cost per hour now; None if unknown."""
        running = [each for each in cluster.instances if each.state in {"pending", "running"}]
        places = [(each.market, each.instance_type, each.zone) for each in running if not each.is_block]
        addresses = USD_PER_ADDRESS_HOUR * sum(each.public_ip is not None for each in running)
        disks = disk_rate(cluster.disks_gib, self.usd_per_gib_month) if cluster.disks_gib else 0.0
        return add_up([*(self.prices.get(place) for place in places), addresses, disks])


def render_clusters(found: RegionClusters, *, columns: int | None = None) -> str:
    """Renders a table of clusters; one sentence when there are none. columns: the width that the table fits into."""
    if not found.clusters:
        return f"no clusters in {found.region}"
    rows = [("NAME", "NODES", "TYPE", "AGE", "ENDS", "DISKS", "PRICE/h", "OWNER", "KEY")]
    for cluster in found.clusters:
        ages = [(found.now - node.launched_at).total_seconds() for node in cluster.instances]
        runs = any(node.state not in {"stopping", "stopped"} for node in cluster.instances)
        rows.append(
            (
                cluster.name,
                render_counts(cluster),
                ", ".join(_types(cluster)) or "-",
                render_age(max(ages)) if ages else "-",
                render_end(find_lease(cluster) if runs else None, now=found.now.timestamp()),
                f"{cluster.disks_gib} GiB" if cluster.disks_gib else "-",
                render_usd(found.find_price(cluster)),
                render_owner(cluster.owner),
                "here" if cluster.name in found.keys_here else "-",
            )
        )
    lines = [render_table(rows, columns=columns, drop=("TYPE", "AGE", "OWNER"))]
    lines += [line for cluster in found.clusters if (line := _warn(cluster, found.keys_here))]
    return "\n".join([*lines, *([f"({found.price_note})"] if found.price_note else [])])


def find_lease(cluster: ClusterState) -> Lease | None:
    """Returns the newest lease of a cluster's instances; None without a lease."""
    return find_newest([node.lease for node in cluster.instances if node.lease])


def render_end(lease: Lease | None, *, now: float) -> str:
    """Returns when a cluster ends, for a table: its deadline, such as "3h07m", else "idle 1h" or "-"."""
    if lease is None:
        return "-"
    end = find_end(lease)
    if end is not None:
        return render_age(end.at - now) if end.at - now >= 1 else "now"
    return "-" if lease.idle_s is None else f"idle {render_duration(lease.idle_s)}"


def list_document(found: RegionClusters) -> list[dict[str, Any]]:
    """Returns the output of `cluster list --json`."""
    return [
        as_document(
            {
                **pick(cluster, "name owner"),
                "ending": tuple(cluster.ending),
                "node_counts": Counter(node.state for node in cluster.instances),
                "instance_types": _types(cluster),
                "launched_at": min((node.launched_at for node in cluster.instances), default=None),
                "disks_gib": cluster.disks_gib,
                "usd_per_hour": found.find_price(cluster),
                "simulated": bool(found.price_note),
                "lease": lease_document(find_lease(cluster), now=found.now.timestamp()),
                "key_here": cluster.name in found.keys_here,
                "untrusted": [untrusted_document(instance) for instance in cluster.untrusted],
                "region": found.region,
            }
        )
        for cluster in found.clusters
    ]


def render_counts(cluster: ClusterState) -> str:
    """Returns the number of instances by state: "2 running", "1 running, 1 stopped" or "none"."""
    counts = Counter[str](node.state for node in cluster.instances)
    if cluster.ending:
        counts["shutting-down"] = len(cluster.ending)
    return ", ".join(f"{count} {state}" for state, count in sorted(counts.items())) or "none"


def render_owner(arn: str | None) -> str:
    """Returns the last part of an ARN, or of any other value of the tag; "unknown" without one."""
    return (arn or "").rpartition("/")[2].rpartition(":")[2] or "unknown"


def _warn(cluster: ClusterState, keys_here: Collection[str]) -> str | None:
    """Returns a line about untrusted instances; None without any, or if the cluster's key is not on this machine."""
    if not cluster.untrusted or cluster.name not in keys_here:
        return None
    return f"{cluster.name}: {describe_untrusted(cluster.untrusted)} (cluster status says why)"


def _types(cluster: ClusterState) -> list[str]:
    return sorted({node.instance_type for node in cluster.instances})
