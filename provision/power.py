"""`stop` and `start`."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from botocore.exceptions import ClientError
from msgspec.structs import replace

from foundation.errors import AwsError, ClusterError
from foundation.progress import Event
from foundation.waiting import poll
from provision.allow import plan_allow
from provision.aws.clients import Clients, aws_errors, error_code, translate_refusal
from provision.config import ProvisionConfig
from provision.describe import describe_now
from provision.files import ClusterFiles
from provision.lease.arm import SetLease
from provision.lease.config import LeaseConfig
from provision.lease.lease_plan import Spending, begin_lease
from provision.membership import no_nodes
from provision.model import (
    ClusterState,
    Node,
    SshAddress,
    count,
    format_indices,
)
from provision.plan import Context, Plan, Step
from provision.preflight.caller import describe_caller, describe_own
from provision.resources.instances import WaitForStopped
from provision.resources.key_pair import missing_key
from provision.resources.resource import list_volumes, retry_while, tagged

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client

STOPPED_BY_CALL = ("Client.UserInitiatedShutdown", "Client.UserInitiatedHibernate", "User initiated")
"""The beginnings of a state reason when a call stopped or terminated the instance."""
START_TIMEOUT_S = 600.0

_NO_START = (
    "stopped nodes can start only in their own zone, which has no capacity now: run cluster start later (stopped nodes "
    "cost only their disks), or cluster down, then cluster up, which tries other zones"
)


def prepare_start(
    clients: Clients,
    *,
    name: str,
    config: ProvisionConfig,
    files: ClusterFiles,
    lease: LeaseConfig | None = None,
    spending: Spending | None = None,
) -> Plan:
    """Plans what `start` will do. Only reads. The plan is empty when all nodes run.

    lease: of cluster.toml; stopped nodes begin a new one. spending: for its budget. Raises the errors
    of plan_start, and AwsError.
    """
    state = describe_own(clients, name=name, files=files)
    _refuse_no_nodes(state, "start")  # before finding the caller's address
    return plan_start(
        state,
        ssh_from=describe_caller(clients, config).ssh_from,
        ssh_address=config.ssh_address,
        local_key=files.find_public_key(),
        leasing=plan_new_lease(state, lease, spending or Spending()) if lease is not None else (),
    )


def plan_new_lease(state: ClusterState, config: LeaseConfig, spending: Spending) -> tuple[Step, ...]:
    """Plans the lease that begins when a stopped cluster starts. Pure.

    Returns no steps if some nodes run, or if there is no lease. Raises ConfigError for a budget that is spent.
    """
    if not state.nodes or any(node.state in {"pending", "running"} for node in state.nodes):
        return ()
    lease, group = begin_lease(config, state.lease, now=time.time(), spending=spending), state.security_group
    if lease is None:
        return ()
    return (
        SetLease(
            lease=lease,
            nodes=tuple(replace(node, state="stopped") for node in state.nodes),  # this comes after WaitForStopped
            behaving=state.nodes,
            group_id=None if group is None else group.group_id,
        ),
    )


def describe_disks_gib(ec2: EC2Client, *, name: str) -> int:
    """Returns the total size of a cluster's disks in GiB. Makes one call per 500 disks. Raises AwsError."""
    with aws_errors(f"looking for the disks of cluster {name}"):
        return sum(volume["Size"] for volume in list_volumes(ec2, tagged(name)))


def plan_stop(state: ClusterState) -> Plan:
    """Plans to stop running and pending nodes, and to wait for those that are stopping. Pure.

    Call wait_for_interrupted_launches before describing the cluster. Raises NotFoundError without nodes. Raises
    ClusterError if spot instances run: this program launches one-time spot instances, which cannot be stopped
    (https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/stop-spot-instances.html).
    """
    _refuse_no_nodes(state, "stop")
    running = tuple(node for node in state.nodes if node.state in {"pending", "running"})
    if spot := [node for node in running if node.market == "spot"]:
        nodes, are = ("node", "is a spot instance") if len(spot) == 1 else ("nodes", "are spot instances")
        which = f"{nodes} {format_indices(node.index for node in spot)} of cluster {state.name}"
        raise ClusterError(
            f"{which} {are}, which cannot be stopped, only terminated",
            hint="cluster resize 0 (terminates the instances, deletes their disks and keeps the cluster)",
        )
    steps: list[Step] = [StopInstances(nodes=running)] if running else []
    if waiting := tuple(node.instance_id for node in state.nodes if node.state != "stopped"):
        steps.append(WaitForStopped(instance_ids=waiting))
    return Plan(cluster=state.name, steps=tuple(steps), left_alone=state.untrusted)


def plan_start(
    state: ClusterState,
    *,
    ssh_from: str,
    ssh_address: SshAddress,
    local_key: str | None,
    leasing: tuple[Step, ...] = (),
) -> Plan:
    """Plans to allow ssh from the caller, to start stopped nodes, and to wait until all run.

    A node that is stopping must stop before it can start. ssh_from: a network. local_key: the public half of this
    machine's private key. leasing: the steps that give stopped nodes a lease that has not ended. Raises NotFoundError
    without nodes. Raises ClusterError when this machine's key cannot reach them, since started nodes cost money.
    """
    _refuse_no_nodes(state, "start")
    if local_key is None or (state.key_pair is not None and state.key_pair.public_key not in {None, local_key}):
        raise missing_key(state.name, local_key)
    steps = list(plan_allow(state, ssh_from=ssh_from).steps)
    if stopping := tuple(node.instance_id for node in state.nodes if node.state == "stopping"):
        steps.append(WaitForStopped(instance_ids=stopping))
    late = tuple(node for node in state.nodes if node.state != "running" or node.address(ssh_address) is None)
    if late:
        steps += leasing
        steps.append(StartInstances(nodes=late, address=ssh_address))
    return Plan(cluster=state.name, steps=tuple(steps), left_alone=state.untrusted)


def _refuse_no_nodes(state: ClusterState, verb: str) -> None:
    """Raises NotFoundError when the cluster has no nodes. verb: for the message."""
    if not state.nodes:
        raise no_nodes(state, what=f"to {verb}")


# --- the steps


@dataclass(frozen=True, kw_only=True, slots=True)
class StopInstances(Step):
    """Stop nodes."""

    nodes: tuple[Node, ...]

    def describe(self) -> str:
        return f"stop {_name(self.nodes)}"

    def apply(self, context: Context) -> bool:
        """Stops all in one call, once none is pending: EC2 cannot stop those. Returns False if no node was running."""
        ids = {node.instance_id for node in self.nodes}

        def find_running() -> list[str] | None:
            nodes = [node for node in describe_now(context).nodes if node.instance_id in ids]
            if any(node.state == "pending" for node in nodes):
                return None
            return [node.instance_id for node in nodes if node.state == "running"]

        running = poll(find_running, timeout_s=START_TIMEOUT_S)
        if running is None:
            raise AwsError(
                f"nodes are still starting after {START_TIMEOUT_S:.0f} s, and cannot be stopped",
                hint="run cluster stop --nodes again; or delete everything: cluster down",
            )
        if running:
            stop = partial(context.clients.ec2.stop_instances, InstanceIds=running)
            retry_while({"IncorrectInstanceState"}, stop)  # EC2's servers may not all know yet that they run
        return bool(running)


@dataclass(frozen=True, kw_only=True, slots=True)
class StartInstances(Step):
    """Start stopped nodes, and wait until these and the pending ones run.

    address: the one for which to wait.
    """

    nodes: tuple[Node, ...]
    address: SshAddress = "public"

    def describe(self) -> str:
        return f"start {_name(self.nodes)}"

    def apply(self, context: Context) -> bool:
        """Starts them in one call, and waits until they run. Returns False if all were already starting.

        Makes one read per poll. Raises AwsError when the call fails, when a node stops or ends again, or after
        START_TIMEOUT_S.
        """
        before = {node.instance_id: node for node in self.nodes}
        asleep = sorted(node.instance_id for node in self.nodes if node.state in {"stopping", "stopped"})
        if asleep:
            _start(asleep, context)
        running = before.keys() - set(asleep)
        ready: set[str] = set()

        def check() -> bool | None:
            nonlocal ready
            instances = describe_now(context)
            now = {node.instance_id: node for node in instances.nodes if node.instance_id in before}
            if failed := _find_failed(before, now, instances.ended, running):
                raise _stopped_while_starting(failed)
            running.update(instance_id for instance_id, node in now.items() if node.state in {"pending", "running"})
            count = len(ready)
            ready = {one.instance_id for one in now.values() if one.state == "running" and one.address(self.address)}
            if len(ready) != count:
                context.report(Event(kind="info", what=f"{len(ready)} of {len(before)} nodes run"))
            return True if len(ready) == len(before) else None

        if poll(check, timeout_s=START_TIMEOUT_S) is None:
            late = format_indices(node.index for node in self.nodes if node.instance_id not in ready)
            raise AwsError(
                f"nodes {late} do not run after {START_TIMEOUT_S:.0f} s",
                hint="to continue waiting: cluster start; to stop them: cluster stop --nodes",
            )
        return bool(asleep)


def _start(ids: list[str], context: Context) -> None:
    try:
        start = partial(context.clients.ec2.start_instances, InstanceIds=ids)
        retry_while({"IncorrectInstanceState"}, start)  # as above: that they are stopped
    except ClientError as error:
        if error_code(error) != "InsufficientInstanceCapacity":
            raise
        raise AwsError(translate_refusal(error, "starting the nodes").message, hint=_NO_START) from error


def _find_failed(
    before: Mapping[str, Node], now: Mapping[str, Node], ended: Mapping[str, str], running: Collection[str]
) -> dict[str, str]:
    """Returns the nodes that will not run, and why. running: ids of nodes that have been seen starting."""
    failed = {instance_id: ended[instance_id] for instance_id in before.keys() & ended.keys()}
    for instance_id, node in now.items():
        if node.state not in {"stopping", "stopped"}:
            continue
        # EC2's lists may still show the state before the call. If the node stopped again, its times or reason changed.
        moved = (node.started_at or node.launched_at) > (before[instance_id].started_at or node.launched_at)
        reason = node.state_reason or ""
        another = reason != before[instance_id].state_reason and not reason.startswith(STOPPED_BY_CALL)
        if instance_id in running or moved or another:
            failed[instance_id] = reason or "no reason given"
    return failed


def _stopped_while_starting(failed: dict[str, str]) -> AwsError:
    reasons = "; ".join(f"{instance_id}: {why}" for instance_id, why in sorted(failed.items()))
    return AwsError(
        f"{len(failed)} of the nodes stopped or ended while starting: {reasons}",
        hint="cluster start again; to stop the others: cluster stop --nodes; to delete everything: cluster down",
    )


def _name(nodes: Sequence[Node]) -> str:
    return f"{count(len(nodes), 'node')} ({format_indices(node.index for node in nodes)})"
