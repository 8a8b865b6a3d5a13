"""The costs of clusters, as text and as JSON. Pure."""

from collections.abc import Sequence
from typing import Any

from cluster.views.document import as_document, pick
from cluster.views.layout import render_table
from cluster.views.status import render_usd
from foundation.durations import render_age, render_time
from provision.cost.bill import ClusterBill, NodeBill
from provision.model import Market
from provision.status import add_up

MARKETS: tuple[Market, ...] = ("on-demand", "spot")


def render_costs(
    name: str, bills: Sequence[ClusterBill], *, now: float, price_note: str = "", columns: int | None = None
) -> str:
    """Renders the current cluster by node, then earlier clusters, one line each. bills: in chronological order."""
    current = [bill for bill in bills if bill.ended_at is None]
    earlier = [bill for bill in bills if bill.ended_at is not None]
    lines = [_render_cluster(bill, now=now, columns=columns) for bill in current]
    if not current:
        lines = [f"cluster {name} does not exist now"]
    if earlier:
        lines += ["", "earlier clusters of this name", _render_earlier(earlier, columns=columns)]
    if len(bills) > 1:
        lines.append(f"total  {render_usd(add_up([bill.cost_usd for bill in bills]))}")
    notes = "; ".join(filter(None, [price_note, "without traffic, images, S3 objects, EFS and FSx"]))
    return "\n".join([*lines, f"({notes})"] if bills else lines)


def _render_cluster(bill: ClusterBill, *, now: float, columns: int | None) -> str:
    heading = ("NODE", "TYPE", "MARKET", "STATE", "RAN", "INSTANCE", "DISK", "ADDRESS", "TOTAL", "PRICE/h")
    rows = [heading, *(_row(node) for node in bill.nodes)]
    rows += [
        ("volume", volume.volume_id, "", "", "", "", render_usd(volume.cost_usd), "", render_usd(volume.cost_usd),
         render_usd(volume.usd_per_hour))
        for volume in bill.volumes
    ]  # fmt: skip
    lines = [render_table(rows, columns=columns, drop=("TYPE", "MARKET", "RAN", "ADDRESS", "DISK", "STATE"))]
    lines.append(
        f"cluster  {render_usd(bill.cost_usd)} so far, {render_usd(bill.usd_per_hour)} per hour now; "
        f"{bill.ran_s / 3600:.2f} node hours in {render_age(now - bill.launched_at)}"
    )
    return "\n".join([*lines, *_render_unseen(bill)])


def _row(node: NodeBill) -> tuple[str, ...]:
    return (
        node.name,
        node.instance_type,
        node.market,
        node.state,
        render_age(node.ran_s),
        render_usd(node.instance_usd),
        render_usd(node.disk_usd),
        render_usd(node.address_usd),
        render_usd(node.cost_usd),
        "-" if node.ended_at is not None else render_usd(node.usd_per_hour),
    )


def _render_unseen(bill: ClusterBill) -> list[str]:
    """Returns the line about nodes whose end was not observed, because none of our commands ended them."""
    names = [node.name for node in bill.nodes if node.unseen_usd >= 0.005]
    if not names:
        return []
    which = ", ".join(names)
    return [f"unknown  when {which} ended: up to {render_usd(bill.unseen_usd)} more (counted until last seen)"]


def _render_earlier(bills: Sequence[ClusterBill], *, columns: int | None) -> str:
    heading = ("FROM", "TO", "INSTANCES", "NODE HOURS", "ON DEMAND", "SPOT", "TOTAL")
    rows = [
        (
            *("-" if at is None else render_time(at) for at in (bill.launched_at, bill.ended_at)),
            str(len(bill.nodes)),
            f"{bill.ran_s / 3600:.2f}",
            *(render_usd(bill.of_market(market)) for market in MARKETS),
            render_usd(bill.cost_usd),
        )
        for bill in bills
    ]
    lines = [render_table([heading, *rows], columns=columns, drop=("NODE HOURS", "SPOT", "ON DEMAND"))]
    return "\n".join([*lines, *(line for bill in bills for line in _render_unseen(bill))])


def cost_document(name: str, bills: Sequence[ClusterBill], *, now: float, price_note: str = "") -> dict[str, Any]:
    """Returns the output of `cluster cost --json`. Amounts are in US dollars, null if a price is unknown."""
    current = next((bill for bill in reversed(bills) if bill.ended_at is None), None)
    return as_document(
        {
            "cluster": name,
            "at": now,
            "simulated": bool(price_note),
            "cost_usd": add_up([bill.cost_usd for bill in bills]),
            "usd_per_hour": add_up([bill.usd_per_hour for bill in bills]),
            "current": None if current is None else _document(current),
            "earlier": [_document(bill) for bill in bills if bill is not current],
        }
    )


def _document(bill: ClusterBill) -> dict[str, Any]:
    nodes = bill.nodes
    return {
        **pick(bill, "launched_at ended_at cost_usd usd_per_hour unseen_usd"),
        "on_demand_usd": bill.of_market("on-demand"),
        "spot_usd": bill.of_market("spot"),
        "instances_usd": add_up([node.instance_usd for node in nodes]),
        "disks_usd": add_up([node.disk_usd for node in nodes] + [volume.cost_usd for volume in bill.volumes]),
        "addresses_usd": add_up([node.address_usd for node in nodes]),
        "nodes": [{**as_document(node), "cost_usd": node.cost_usd} for node in nodes],
        "volumes": bill.volumes,
    }
