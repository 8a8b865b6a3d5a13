"""Carries out the steps about instances that are launched: wait, terminate, roll back."""

from collections.abc import Mapping

from botocore.exceptions import ClientError

from provision.aws import NOT_FOUND_TIMEOUT_S, error_code
from provision.choices import SshAddress
from provision.context import Context
from provision.describe import Instances
from provision.errors import AwsError, CapacityError
from provision.model import format_indices
from provision.progress import Event
from provision.steps import TerminateInstances, WaitForRunning, WaitForTerminated
from provision.wait import poll

RUNNING_TIMEOUT_S = 600.0
TERMINATED_TIMEOUT_S = 900.0
"""Large GPU instances take minutes to shut down."""
_NO_ROOM = "InsufficientInstanceCapacity"
"""In the StateReason of an instance that EC2 accepted and then had no room for
(https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_StateReason.html)."""


def wait_for_running(step: WaitForRunning, context: Context) -> bool:
    """Until every node runs. One that ends ends the wait: it will not come back. One read per look.

    Raises CapacityError when one ended because AWS had no room after all, AwsError when it ended otherwise or when
    the time is over.
    """
    wanted = set(range(step.nodes)) - context.without
    least = len(wanted) if step.least is None else step.least
    seen = set(context.launched)
    ready: set[int] = set()
    by_token: Mapping[str, frozenset[str]] = {}

    def look() -> bool | None:
        nonlocal ready, wanted, by_token
        instances = context.describe_instances()
        live = {node.instance_id for node in instances.live}
        by_token = instances.by_token
        if not context.launched <= live | instances.ended.keys():
            return None  # EC2 does not list all of them yet
        if failed := sorted(seen & instances.ended.keys()):
            context.files.forget_launches(instances.by_token)  # their token would bring back the ended ones
            left = wanted & {node.index for node in instances.live}
            if len(left) < least:
                raise _ended_while_starting(failed, instances, context)
            what = f"{_reasons(failed, instances)}: going on without {format_indices(wanted - left)}"
            context.report(Event(kind="warn", what=what))
            wanted = left
            seen.difference_update(failed)
        seen.update(live)
        before = len(ready)
        kind: SshAddress = "public" if step.public_address else "private"
        ready = {node.index for node in instances.live if node.state == "running" and node.address(kind)}
        if len(ready) != before:
            context.report(Event(kind="info", what=f"{len(ready)} of {len(wanted)} nodes run"))
        return True if wanted <= ready else None

    if poll(look, timeout_s=RUNNING_TIMEOUT_S) is None:
        raise AwsError(
            f"nodes {format_indices(wanted - ready)} do not run after {RUNNING_TIMEOUT_S:.0f} s",
            hint="cluster up waits on; cluster down ends all",
        )
    # Not before: until EC2 lists the nodes, the token is what keeps a repeated launch from doubling them.
    context.files.forget_launches(by_token)
    return True


def roll_back(context: Context) -> None:
    """Ends what this run has launched, and waits until it is gone: part of a cluster would only cost money."""
    ids = sorted(context.launched)
    context.report(Event(kind="warn", what=f"ending the {len(ids)} nodes that this run has launched"))

    def terminate() -> bool | None:
        try:
            context.clients.ec2.terminate_instances(InstanceIds=ids)
        except ClientError as error:
            if error_code(error) != "InvalidInstanceID.NotFound":
                raise
            return None  # launched a moment ago, and not known everywhere yet
        return True

    if poll(terminate, timeout_s=NOT_FOUND_TIMEOUT_S) is None:
        raise AwsError(
            f"AWS did not know the launched instances for {NOT_FOUND_TIMEOUT_S:.0f} s: {', '.join(ids)}",
            hint="cluster down",
        )
    context.files.forget_launches({})
    context.launched.clear()
    _wait_until_gone(tuple(ids), context)


def terminate_instances(step: TerminateInstances, context: Context) -> bool:
    """Terminates them in one call. False: all are gone."""
    return _terminate([instance.instance_id for instance in (*step.nodes, *step.untrusted)], context)


def wait_for_terminated(step: WaitForTerminated, context: Context) -> bool:
    """Until none of them is live or shutting down. One read per look."""
    _wait_until_gone(step.instance_ids, context)
    return True


def _terminate(ids: list[str], context: Context) -> bool:
    """Ends those of them that are there. False: none is.

    One id that EC2 does not know makes it refuse all of them; it may be gone, or too young to be known everywhere.
    """
    refusals: list[ClientError] = []

    def terminate() -> bool | None:
        asked = ids
        if refusals:
            instances = context.describe_instances()
            live = {instance.instance_id for instance in (*instances.live, *instances.untrusted)}
            asked = [instance_id for instance_id in ids if instance_id in live]
        try:
            if asked:
                context.clients.ec2.terminate_instances(InstanceIds=asked)
        except ClientError as error:
            if error_code(error) != "InvalidInstanceID.NotFound":
                raise
            refusals.append(error)
            return None
        return bool(asked)

    ended = poll(terminate, timeout_s=NOT_FOUND_TIMEOUT_S)
    if ended is None:
        raise refusals[-1]
    return ended


def _wait_until_gone(instance_ids: tuple[str, ...], context: Context) -> None:
    left = set(instance_ids)

    def look() -> bool | None:
        nonlocal left
        instances = context.describe_instances()
        live = (*instances.live, *instances.untrusted)
        now = {instance.instance_id for instance in live} | set(instances.ending)
        before, left = left, left & now
        if left and len(left) != len(before):
            context.report(Event(kind="info", what=f"{len(left)} of {len(instance_ids)} instances left"))
        return None if left else True

    if poll(look, timeout_s=TERMINATED_TIMEOUT_S) is None:
        raise AwsError(
            f"still shutting down after {TERMINATED_TIMEOUT_S:.0f} s: {', '.join(sorted(left))}",
            hint="cluster down waits on",
        )


def _ended_while_starting(failed: list[str], instances: Instances, context: Context) -> AwsError:
    message = _reasons(failed, instances)
    hint = "cluster up launches the missing ones again; cluster down ends all"
    no_room = all(_NO_ROOM in instances.ended[instance_id] for instance_id in failed)
    if no_room and context.option is not None and set(failed) <= context.launched:
        return CapacityError(message, option=context.option.label, hint=hint)
    return AwsError(message, hint=hint)


def _reasons(failed: list[str], instances: Instances) -> str:
    reasons = "; ".join(f"{instance_id}: {instances.ended[instance_id]}" for instance_id in failed)
    return f"{len(failed)} of the nodes ended while starting: {reasons}"
