"""The end of a cluster, proven: what was deleted, and what a fresh look still found."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from provision.describe import Resource, find_leftovers
from provision.plan import Plan
from provision.steps import DeleteKeyPair, DeleteSecurityGroup, ForgetFiles, TerminateInstances
from provision.wait import poll

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client

LEFTOVERS_TIMEOUT_S = 60.0
"""Volumes and interfaces vanish from EC2's lists a little later than their instance."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Receipt:
    """What `down` did.

    leftovers: what carries the cluster's tag after all; empty when everything went well.
    node_hours: running time of all nodes together. cost_usd: None when prices are not known.
    """

    cluster: str
    deleted: tuple[Resource, ...]
    leftovers: tuple[Resource, ...]
    node_hours: float
    cost_usd: float | None = None


def make_receipt(ec2: EC2Client, *, plan: Plan, now: datetime) -> Receipt:
    """The receipt of a plan that was carried out. Looks until nothing is left, LEFTOVERS_TIMEOUT_S at most.

    Raises AwsError.
    """
    return Receipt(
        cluster=plan.cluster,
        deleted=deleted_by(plan),
        leftovers=_wait_for_nothing(ec2, name=plan.cluster),
        node_hours=_node_hours(plan, now=now),
    )


def deleted_by(plan: Plan) -> tuple[Resource, ...]:
    """What the steps of a plan delete."""
    deleted: list[Resource] = []
    for step in plan.steps:
        match step:
            case TerminateInstances():
                deleted.extend(Resource(kind="instance", resource_id=node.instance_id) for node in step.nodes)
            case DeleteSecurityGroup():
                deleted.append(Resource(kind="security group", resource_id=step.group_id))
            case DeleteKeyPair():
                deleted.append(Resource(kind="key pair", resource_id=step.key_name))
            case ForgetFiles():
                deleted.append(Resource(kind="local files", resource_id="private key, known hosts"))
            case _:
                pass
    return tuple(deleted)


def render_receipt(receipt: Receipt) -> str:
    """The receipt as text."""
    if not receipt.deleted and not receipt.leftovers:
        return f"cluster {receipt.cluster}: nothing is there\n"
    lines = [
        f"cluster {receipt.cluster} is gone" if not receipt.leftovers else f"cluster {receipt.cluster}: NOT all is gone"
    ]
    lines.extend(_section("deleted", receipt.deleted))
    lines.extend(_section("left", receipt.leftovers))
    cost = "unknown" if receipt.cost_usd is None else f"${receipt.cost_usd:.2f}"
    lines.append(f"  ran      {receipt.node_hours:.2f} node hours, cost {cost}")
    return "\n".join(lines) + "\n"


def _section(title: str, resources: tuple[Resource, ...]) -> list[str]:
    """One line per kind: instances i-1, i-2, ... (never more ids than fit on a screen)."""
    if not resources:
        return [f"  {title:<8} nothing"]
    lines = []
    for kind in dict.fromkeys(resource.kind for resource in resources):
        ids = [resource.resource_id for resource in resources if resource.kind == kind]
        shown = ", ".join(ids[:8]) + (f" and {len(ids) - 8} more" if len(ids) > 8 else "")
        lines.append(f"  {title:<8} {len(ids)} x {kind}: {shown}")
    return lines


def _node_hours(plan: Plan, *, now: datetime) -> float:
    nodes = [node for step in plan.steps if isinstance(step, TerminateInstances) for node in step.nodes]
    return sum((now - node.launched_at).total_seconds() for node in nodes) / 3600


def _wait_for_nothing(ec2: EC2Client, *, name: str) -> tuple[Resource, ...]:
    """What is left after LEFTOVERS_TIMEOUT_S at the latest."""
    last: tuple[Resource, ...] = ()

    def look() -> bool | None:
        nonlocal last
        last = find_leftovers(ec2, name=name)
        return None if last else True

    poll(look, timeout_s=LEFTOVERS_TIMEOUT_S)
    return last
