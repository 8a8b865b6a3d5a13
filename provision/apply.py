"""Carries a plan out, step by step.

It can be killed at any point and planned and applied again: what a call makes is tagged in that call, what
a name makes unique is taken as made when it turns out to be ours already, and launches carry a token that is
on disk before the call.
"""

import time
from collections.abc import Callable
from typing import Any

from provision.access import (
    authorize_egress,
    authorize_ingress,
    create_security_group,
    delete_key_pair,
    delete_security_group,
    import_key_pair,
    revoke_ingress,
)
from provision.aws import Clients, aws_errors
from provision.capacity import launch_nodes
from provision.context import Context
from provision.errors import ClusterError, CredentialsError
from provision.files import ClusterFiles
from provision.instance_profile import create_instance_profile, delete_instance_profile
from provision.instances import roll_back, terminate_instances, wait_for_running, wait_for_terminated
from provision.placement import create_placement_group, delete_placement_group
from provision.plan import Plan
from provision.power import start_instances, stop_instances, wait_for_stopped
from provision.progress import Event, Report
from provision.render import describe_step
from provision.settle import KEY_PAIR, PLACEMENT_GROUP, SECURITY_GROUP, forget_seen_launches
from provision.spot_requests import cancel_spot_requests
from provision.steps import (
    AbortUploads,
    AuthorizeEgress,
    AuthorizeIngress,
    CancelSpotRequests,
    CreateInstanceProfile,
    CreateKeyPair,
    CreatePlacementGroup,
    CreateSecurityGroup,
    DeleteInstanceProfile,
    DeleteKeyPair,
    DeleteNetworkInterfaces,
    DeletePlacementGroup,
    DeleteSecurityGroup,
    DeleteVolumes,
    ForgetFiles,
    ImportKeyPair,
    LaunchNodes,
    RevokeIngress,
    StartInstances,
    Step,
    StopInstances,
    TerminateInstances,
    WaitForRunning,
    WaitForStopped,
    WaitForTerminated,
)
from provision.strays import delete_network_interfaces, delete_volumes
from provision.uploads import abort_uploads


def _forget_files(step: ForgetFiles, context: Context) -> bool:
    del step
    context.files.forget()
    return True


# What carries out each kind of step; it says whether it changed anything.
_CARRY_OUT: dict[type[Step], Callable[[Any, Context], bool]] = {
    CreateKeyPair: import_key_pair,
    ImportKeyPair: import_key_pair,
    DeleteKeyPair: delete_key_pair,
    CreateSecurityGroup: create_security_group,
    AuthorizeIngress: authorize_ingress,
    AuthorizeEgress: authorize_egress,
    RevokeIngress: revoke_ingress,
    DeleteSecurityGroup: delete_security_group,
    CreatePlacementGroup: create_placement_group,
    DeletePlacementGroup: delete_placement_group,
    CreateInstanceProfile: create_instance_profile,
    DeleteInstanceProfile: delete_instance_profile,
    LaunchNodes: launch_nodes,
    WaitForRunning: wait_for_running,
    StartInstances: start_instances,
    StopInstances: stop_instances,
    WaitForStopped: wait_for_stopped,
    TerminateInstances: terminate_instances,
    WaitForTerminated: wait_for_terminated,
    CancelSpotRequests: cancel_spot_requests,
    DeleteVolumes: delete_volumes,
    DeleteNetworkInterfaces: delete_network_interfaces,
    AbortUploads: abort_uploads,
    ForgetFiles: _forget_files,
}


# What is made under a name and without a token. EC2's lists may not show it for a while: `down`, on its heels, waits.
_MAKES: dict[type[Step], str] = {
    CreateKeyPair: KEY_PAIR,
    ImportKeyPair: KEY_PAIR,
    CreateSecurityGroup: SECURITY_GROUP,
    CreatePlacementGroup: PLACEMENT_GROUP,
}
_DELETES: dict[type[Step], str] = {
    DeleteKeyPair: KEY_PAIR,
    DeleteSecurityGroup: SECURITY_GROUP,
    DeletePlacementGroup: PLACEMENT_GROUP,
}


def apply(plan: Plan, *, clients: Clients, files: ClusterFiles, report: Report, keep_failed: bool = False) -> None:
    """Carries out the steps of a plan in their order.

    When a step fails, what this run has launched is ended, unless keep_failed: half a cluster would only cost money.
    Raises AwsError when AWS refuses or a wait is overdue, ClusterError when something of the same name turns
    out to belong to somebody else, or when another command is changing the cluster.
    """
    if not plan and not files.launches():
        return
    context = Context(cluster=plan.cluster, owner=plan.owner, clients=clients, files=files, report=report)
    with files.locked():
        forget_seen_launches(clients.ec2, name=plan.cluster, files=files)
        try:
            for step in plan.steps:
                _carry_out(step, context)
        except ClusterError as error:
            if context.launched and not keep_failed:
                _roll_back(context, error)
            raise


def _carry_out(step: Step, context: Context) -> None:
    what = describe_step(step)
    context.report(Event(kind="start", what=what))
    started = time.monotonic()
    if made := _MAKES.get(type(step)):
        context.files.note_making(made, now=time.time())
    with aws_errors(f"trying to {what}"):
        changed = _CARRY_OUT[type(step)](step, context)
    if deleted := _DELETES.get(type(step)):
        context.files.forget_making(deleted)
    context.report(Event(kind="done" if changed else "same", what=what, duration_s=time.monotonic() - started))


def _roll_back(context: Context, error: ClusterError) -> None:
    """Ends what was launched; what goes wrong with that is said with the error that led here."""
    try:
        with aws_errors("ending what was launched"):
            roll_back(context)
    except ClusterError as failure:
        error.message += f"\nWhat was launched could not be ended: {failure.message}"
        first = f"{failure.hint}; then: " if isinstance(failure, CredentialsError) and failure.hint else ""
        error.hint = f"{first}cluster down, so that nothing is left that costs money"
