"""The state of a cluster as text and as JSON. Pure."""

from datetime import UTC, datetime
from typing import Any

from provision.model import ClusterState, Node


def render_nodes(state: ClusterState, *, now: datetime | None = None) -> str:
    """A table of the nodes; one sentence when there are none."""
    if not state.nodes:
        ending = f"; {len(state.ending)} instances are shutting down" if state.ending else ""
        return f"cluster {state.name} has no nodes{ending}"
    moment = now or datetime.now(UTC)
    rows: list[tuple[str, ...]] = [("NODE", "ROLE", "STATE", "TYPE", "ZONE", "PRIVATE", "PUBLIC", "AGE", "INSTANCE")]
    rows += [_row(node, moment) for node in state.nodes]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    return "\n".join(line.rstrip() for line in lines)


def status_document(state: ClusterState) -> dict[str, Any]:
    """What `cluster status --json` prints."""
    return {
        "name": state.name,
        "nodes": [
            {
                "name": node.name,
                "role": node.role,
                "state": node.state,
                "instance_id": node.instance_id,
                "instance_type": node.instance_type,
                "zone": node.zone,
                "private_ip": node.private_ip,
                "public_ip": node.public_ip,
                "launched_at": node.launched_at.isoformat(),
            }
            for node in state.nodes
        ],
        "ending": list(state.ending),
    }


def render_age(seconds: float) -> str:
    """A duration in the two largest units that it has: 42s, 5m10s, 3h07m, 2d04h."""
    whole = max(0, int(seconds))
    minutes, s = divmod(whole, 60)
    hours, m = divmod(minutes, 60)
    days, h = divmod(hours, 24)
    if days:
        return f"{days}d{h:02}h"
    if hours:
        return f"{hours}h{m:02}m"
    if minutes:
        return f"{minutes}m{s:02}s"
    return f"{s}s"


def _row(node: Node, now: datetime) -> tuple[str, ...]:
    return (
        node.name,
        node.role,
        node.state,
        node.instance_type,
        node.zone,
        node.private_ip or "-",
        node.public_ip or "-",
        render_age((now - node.launched_at).total_seconds()),
        node.instance_id,
    )
