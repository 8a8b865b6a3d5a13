"""Carries out the steps about nodes that are stopped and started again."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime

from botocore.exceptions import ClientError

from provision.allocation import STOPPED_BY_CALL
from provision.aws import error_code, translate_refusal
from provision.choices import SshAddress
from provision.context import Context
from provision.errors import AwsError
from provision.model import TAG_RAN, Node, format_indices
from provision.progress import Event
from provision.running_time import ran_tag
from provision.steps import StartInstances, StopInstances, WaitForStopped
from provision.wait import poll

START_TIMEOUT_S = 600.0
STOP_TIMEOUT_S = 900.0
"""Large GPU instances take minutes to shut down."""

_GONE_OR_NOT_YET = frozenset({"IncorrectInstanceState", "InvalidInstanceID.NotFound"})
_COSTS_NOTHING_BUT_DISKS = "the nodes that are stopped cost only their disks meanwhile"
_NO_START = {
    "InsufficientInstanceCapacity": "stopped nodes can start again only in their own zone, which is full now: "
    f"cluster start again later ({_COSTS_NOTHING_BUT_DISKS}), or cluster down, then cluster up, which looks elsewhere",
    "VcpuLimitExceeded": "end or stop something else of this account, or ask for a higher limit "
    f"(aws service-quotas list-service-quotas --service-code ec2), then: cluster start; {_COSTS_NOTHING_BUT_DISKS}",
    "IncorrectInstanceState": "somebody else is stopping or ending them: cluster status, then cluster start again",
    "InvalidInstanceID.NotFound": "somebody else has ended them: cluster status",
}
_NO_START["InsufficientHostCapacity"] = _NO_START["InsufficientInstanceCapacity"]
_NO_START["InstanceLimitExceeded"] = _NO_START["VcpuLimitExceeded"]


def stop_instances(step: StopInstances, context: Context) -> bool:
    """Notes how long each node has run, then stops all in one call. False: none of them runs any more.

    The note comes first: EC2 forgets when the period began as soon as the node is started again. A node that is
    still `pending` cannot be stopped: it is waited for.
    """
    ids = {node.instance_id for node in step.nodes}
    nodes = step.nodes
    changed = False

    def look() -> bool | None:
        nonlocal nodes, changed
        running = [node for node in nodes if node.state == "running"]
        stopped = not running or _stop(running, context)
        changed = changed or (stopped and bool(running))
        if stopped and not any(node.state == "pending" for node in nodes):
            return True
        live = context.describe_instances().live
        nodes = tuple(node for node in live if node.instance_id in ids)
        return None

    if poll(look, timeout_s=START_TIMEOUT_S) is None:
        late = ", ".join(f"{node.name} ({node.instance_id}): {node.state}" for node in nodes)
        raise AwsError(
            f"nodes cannot be stopped after {START_TIMEOUT_S:.0f} s: {late}",
            hint="cluster stop --nodes, again; or end all: cluster down",
        )
    return changed


def wait_for_stopped(step: WaitForStopped, context: Context) -> bool:
    """Until all of them are stopped, or gone. One read per look. Raises AwsError when the time is over."""
    left = set(step.instance_ids)

    def look() -> bool | None:
        nonlocal left
        live = context.describe_instances().live
        awake = {node.instance_id for node in live if node.state != "stopped"}
        before, left = left, left & awake
        if left and len(left) != len(before):
            context.report(Event(kind="info", what=f"{len(left)} of {len(step.instance_ids)} instances are left"))
        return None if left else True

    if poll(look, timeout_s=STOP_TIMEOUT_S) is None:
        raise AwsError(
            f"still not stopped after {STOP_TIMEOUT_S:.0f} s: {', '.join(sorted(left))}",
            hint="cluster stop --nodes waits on",
        )
    return True


def start_instances(step: StartInstances, context: Context) -> bool:
    """Starts them in one call, and waits until they run. One read per look. False: all were starting already.

    Raises AwsError when AWS refuses, when one stops or ends again, or when the time is over.
    """
    before = {node.instance_id: node for node in step.nodes}
    asleep = sorted(node.instance_id for node in step.nodes if node.state in {"stopping", "stopped"})
    if asleep:
        _start(asleep, context)
    awake = before.keys() - set(asleep)
    ready: set[str] = set()

    def look() -> bool | None:
        nonlocal ready
        instances = context.describe_instances()
        now = {node.instance_id: node for node in instances.live if node.instance_id in before}
        if failed := _find_failed(before, now, instances.ended, awake):
            raise _stopped_while_starting(failed)
        awake.update(instance_id for instance_id, node in now.items() if node.state in {"pending", "running"})
        kind: SshAddress = "public" if step.public_address else "private"
        count = len(ready)
        ready = {instance_id for instance_id, node in now.items() if node.state == "running" and node.address(kind)}
        if len(ready) != count:
            context.report(Event(kind="info", what=f"{len(ready)} of {len(before)} nodes run"))
        return True if len(ready) == len(before) else None

    if poll(look, timeout_s=START_TIMEOUT_S) is None:
        late = format_indices(node.index for node in step.nodes if node.instance_id not in ready)
        raise AwsError(
            f"nodes {late} do not run after {START_TIMEOUT_S:.0f} s",
            hint="cluster start waits on; cluster stop --nodes stops them",
        )
    return bool(asleep)


def _stop(nodes: Sequence[Node], context: Context) -> bool:
    """One call for each value of the tag (usually one), and one to stop them. False: not all of them can be now."""
    ec2 = context.clients.ec2
    now = datetime.fromtimestamp(time.time(), UTC)
    by_value: dict[str, list[str]] = {}
    for node in nodes:
        by_value.setdefault(ran_tag(node, now=now), []).append(node.instance_id)
    try:
        for value, ids in by_value.items():
            ec2.create_tags(Resources=ids, Tags=[{"Key": TAG_RAN, "Value": value}])
        ec2.stop_instances(InstanceIds=[node.instance_id for node in nodes])
    except ClientError as error:
        if error_code(error) not in _GONE_OR_NOT_YET:
            raise
        return False
    return True


def _start(ids: list[str], context: Context) -> None:
    try:
        context.clients.ec2.start_instances(InstanceIds=ids)
    except ClientError as error:
        hint = _NO_START.get(error_code(error))
        if hint is None:
            raise
        raise AwsError(translate_refusal(error, "starting the nodes").message, hint=hint) from error


def _find_failed(
    before: Mapping[str, Node], now: Mapping[str, Node], ended: Mapping[str, str], awake: Collection[str]
) -> dict[str, str]:
    """Those that will not run, and why. awake: ids of those that were seen to start."""
    failed = {instance_id: ended[instance_id] for instance_id in before.keys() & ended.keys()}
    for instance_id, node in now.items():
        if node.state not in {"stopping", "stopped"}:
            continue
        # EC2's lists may still show it as it was before the call. If it is asleep again, its times or its reason moved.
        moved = (node.started_at or node.launched_at) > (before[instance_id].started_at or node.launched_at)
        reason = node.state_reason or ""
        another = reason != before[instance_id].state_reason and not reason.startswith(STOPPED_BY_CALL)
        if instance_id in awake or moved or another:
            failed[instance_id] = reason or "no reason given"
    return failed


def _stopped_while_starting(failed: dict[str, str]) -> AwsError:
    reasons = "; ".join(f"{instance_id}: {why}" for instance_id, why in sorted(failed.items()))
    return AwsError(
        f"{len(failed)} of the nodes stopped or ended while starting: {reasons}",
        hint="cluster start, again; cluster stop --nodes stops the others; cluster down ends all",
    )
