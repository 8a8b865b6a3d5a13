"""Steps that change the lease of existing nodes.

They change EC2's tags, EC2's behavior when the nodes shut themselves down, and the user data of stopped nodes. Running
nodes read their tag, and get the lease over ssh from cluster/lease.py.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from foundation.thread_pool import bounded_pool
from provision.lease.lease_plan import describe_lease
from provision.lease.terms import Lease, render_lease
from provision.lease.user_data import render_user_data
from provision.model import TAG_LEASE, ClusterState, Node, format_indices
from provision.plan import Context, Step
from provision.resources.run_instances import find_shutdown_behavior

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client

_AT_ONCE = 1000
"""The most resources of one call (https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_CreateTags.html)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SetLease(Step):
    """Set the lease of nodes and of the cluster's group; of stopped nodes, also in their user data.

    behaving: those whose behavior after a shutdown from inside must be set in EC2.
    """

    lease: Lease
    nodes: tuple[Node, ...] = ()
    behaving: tuple[Node, ...] = ()
    group_id: str | None = None

    def describe(self) -> str:
        """A short description of the step."""
        where = f" of nodes {format_indices(node.index for node in self.nodes)}" if self.nodes else ""
        return f"set the lease{where}"

    def details(self) -> Iterable[str]:
        """When the cluster ends."""
        yield describe_lease(self.lease, now=time.time())

    def apply(self, context: Context) -> bool:
        """Changes the tags last: a cluster whose tags show a lease has it. Always returns True."""
        ec2 = context.clients.ec2
        modify = ec2.modify_instance_attribute  # one attribute of one instance with each call
        user_data, behavior = render_user_data(self.lease, cluster=context.cluster), find_shutdown_behavior(self.lease)
        changes = [
            partial(modify, InstanceId=node.instance_id, UserData={"Value": user_data})
            for node in self.nodes
            if node.state == "stopped"
        ]
        changes += [
            partial(modify, InstanceId=node.instance_id, InstanceInitiatedShutdownBehavior={"Value": behavior})
            for node in self.behaving
            if node.market != "spot"  # one-time spot instances always terminate
        ]
        with bounded_pool() as pool:
            list(pool.map(lambda change: change(), changes))
        ids = [node.instance_id for node in self.nodes]
        tag_lease(ec2, [*ids, *([self.group_id] if self.group_id else [])], self.lease)
        return True


def tag_lease(ec2: EC2Client, ids: Sequence[str], lease: Lease) -> None:
    """Writes the lease to the tags of instances and groups. Raises boto3's errors."""
    for first in range(0, len(ids), _AT_ONCE):
        ec2.create_tags(
            Resources=list(ids[first : first + _AT_ONCE]), Tags=[{"Key": TAG_LEASE, "Value": render_lease(lease)}]
        )


def plan_repair(state: ClusterState) -> tuple[Step, ...]:
    """Plans to give the newest lease to nodes and to a group that lack it, after an interrupted change. Pure."""
    lease, group = state.lease, state.security_group
    if not state.nodes or lease is None:
        return ()
    text = render_lease(lease)
    late = tuple(node for node in state.nodes if node.lease != text)
    group_id = group.group_id if group is not None and group.lease != text else None
    if not late and group_id is None:
        return ()
    return (SetLease(lease=lease, nodes=late, behaving=late, group_id=group_id),)


def plan_lease(state: ClusterState, lease: Lease) -> tuple[Step, ...]:
    """Plans to give all nodes the lease; empty if the tags show it already. Pure."""
    current = state.lease
    if current == lease:
        return ()
    group = state.security_group
    before = None if current is None or not current.limits else current.then
    return (
        SetLease(
            lease=lease,
            nodes=state.nodes,
            # No change if the launch or an earlier change has set the behavior.
            behaving=tuple(node for node in state.nodes if before != lease.then),
            group_id=None if group is None else group.group_id,
        ),
    )
