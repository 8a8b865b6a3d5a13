"""Carries out the steps about instances: launch, wait, terminate."""

import time

from botocore.exceptions import ClientError

from provision.aws import RETRY_CODES, error_code
from provision.config import SshAddress
from provision.context import Context
from provision.describe import Instances, describe_instances
from provision.errors import AwsError, ClusterError
from provision.launch import call_run_instances, request_digest, run_instances_request
from provision.model import format_indices
from provision.progress import Event
from provision.settle import wait_for_interrupted_launches
from provision.steps import RunInstances, TerminateInstances, WaitForRunning, WaitForTerminated
from provision.wait import poll

RUNNING_TIMEOUT_S = 600.0
TERMINATED_TIMEOUT_S = 900.0
"""Large GPU instances take minutes to shut down."""


def run_instances(step: RunInstances, context: Context) -> bool:
    """Launches the nodes in one call. False: they are there; a plan may be older than EC2's lists."""
    request = run_instances_request(
        step, name=context.cluster, owner=context.owner, group_id=context.group_id(step.group_id)
    )
    digest = request_digest(request)
    wait_for_interrupted_launches(
        context.clients.ec2,
        name=context.cluster,
        files=context.files,
        report=context.report,
        except_digest=digest,
    )
    live = describe_instances(context.clients.ec2, name=context.cluster).live
    present = {node.index for node in live} & set(step.indices)
    if present == set(step.indices):
        return False
    if present:
        raise ClusterError(
            f"nodes {format_indices(present)} appeared after the launch of nodes "
            f"{format_indices(step.indices)} was planned",
            hint="the same command again takes them into account",
        )
    token = context.files.client_token(digest, indices=step.indices, now=time.time())
    try:
        launched = call_run_instances(context.clients.run_ec2, request, client_token=token, report=context.report)
    except ClientError as error:
        # A plain no: nothing was launched under this token. Others may come after the deed.
        if error_code(error) not in RETRY_CODES:
            context.files.forget_launch(digest)
        raise
    context.launched.update(instance["InstanceId"] for instance in launched["Instances"])
    return True


def wait_for_running(step: WaitForRunning, context: Context) -> bool:
    """Until every node runs. One that ends ends the wait: it will not come back. One read per look."""
    wanted = set(range(step.nodes))
    seen = set(context.launched)
    ready: set[int] = set()

    def look() -> bool | None:
        nonlocal ready
        instances = describe_instances(context.clients.ec2, name=context.cluster)
        if failed := sorted(seen & instances.ended.keys()):
            context.files.forget_launches()  # their token would bring back the ended ones
            raise _ended_while_starting(failed, instances)
        seen.update(node.instance_id for node in instances.live)
        before = len(ready)
        kind: SshAddress = "public" if step.public_address else "private"
        ready = {node.index for node in instances.live if node.state == "running" and node.address(kind)}
        if len(ready) != before:
            context.report(Event(kind="info", what=f"{len(ready)} of {step.nodes} nodes run"))
        return True if wanted <= ready else None

    if poll(look, timeout_s=RUNNING_TIMEOUT_S) is None:
        raise AwsError(
            f"nodes {format_indices(wanted - ready)} do not run after {RUNNING_TIMEOUT_S:.0f} s",
            hint="cluster up waits on; cluster down ends all",
        )
    # Not before: until EC2 lists the nodes, the token is what keeps a repeated launch from doubling them.
    context.files.forget_launches()
    return True


def terminate_instances(step: TerminateInstances, context: Context) -> bool:
    """Terminates them in one call. False: all are gone."""
    ids = [node.instance_id for node in step.nodes]
    try:
        context.clients.ec2.terminate_instances(InstanceIds=ids)
    except ClientError as error:
        if error_code(error) != "InvalidInstanceID.NotFound":
            raise
        # One id that EC2 does not know makes it refuse all of them: end those that it still lists.
        live = describe_instances(context.clients.ec2, name=context.cluster).live
        still = [node.instance_id for node in live if node.instance_id in ids]
        if not still:
            return False
        context.clients.ec2.terminate_instances(InstanceIds=still)
    return True


def wait_for_terminated(step: WaitForTerminated, context: Context) -> bool:
    """Until none of them is live or shutting down. One read per look."""
    left = set(step.instance_ids)

    def look() -> bool | None:
        nonlocal left
        instances = describe_instances(context.clients.ec2, name=context.cluster)
        now = {node.instance_id for node in instances.live} | set(instances.ending)
        before, left = left, left & now
        if left and len(left) != len(before):
            context.report(Event(kind="info", what=f"{len(left)} of {len(step.instance_ids)} instances left"))
        return None if left else True

    if poll(look, timeout_s=TERMINATED_TIMEOUT_S) is None:
        raise AwsError(
            f"still shutting down after {TERMINATED_TIMEOUT_S:.0f} s: {', '.join(sorted(left))}",
            hint="cluster down waits on",
        )
    return True


def _ended_while_starting(failed: list[str], instances: Instances) -> AwsError:
    reasons = "; ".join(f"{instance_id}: {instances.ended[instance_id]}" for instance_id in failed)
    return AwsError(
        f"{len(failed)} of the nodes ended while starting: {reasons}",
        hint="cluster up launches the missing ones again; cluster down ends all",
    )
