"""Applies a plan, step by step.

A run can be killed at any point. The cluster can then be planned and applied again: every call that creates a resource
also tags it; a unique name that is already taken counts as created if its tags are the cluster's; and the token of a
launch is on disk before the call.
"""

import time
from contextlib import nullcontext, suppress

from foundation.errors import ClusterError, CredentialsError
from foundation.progress import Event, Report
from provision.aws.clients import Clients, aws_errors
from provision.files import ClusterFiles
from provision.plan import Context, Plan, Step
from provision.resources.instances import roll_back
from provision.resources.launch_recovery import forget_seen_launches
from provision.resources.shared_volume import delete_made_volume


def apply(
    plan: Plan,
    *,
    clients: Clients,
    files: ClusterFiles,
    report: Report,
    keep_failed: bool = False,
    is_down: bool = False,
) -> None:
    """Applies the steps of a plan in order.

    When a step fails, the instances that this run launched are terminated, unless keep_failed: an incomplete cluster
    would only cost money. is_down: the plan removes the journal, which may be on a full disk. Raises AwsError when a
    call fails or a wait times out. Raises ClusterError when a name is taken by a resource that is not the cluster's, or
    when another command is changing the cluster.
    """
    if not plan and not files.launches():
        return
    context = Context(
        cluster=plan.cluster, owner=plan.owner, tags=plan.tags, clients=clients, files=files, report=report
    )
    with files.locked():
        with suppress(ClusterError) if is_down else nullcontext():
            forget_seen_launches(clients.ec2, name=plan.cluster, files=files)
        try:
            for step in plan.steps:
                _apply_step(step, context)
        except ClusterError as error:
            if context.launched and not keep_failed:
                _roll_back(context, error)
            raise


def _apply_step(step: Step, context: Context) -> None:
    what = step.describe()
    context.report(Event(kind="start", what=what))
    started = time.monotonic()
    if step.makes is not None:
        context.files.note_create(step.makes, now=time.time())
    with aws_errors(f"trying to {what}"):
        changed = step.apply(context)
    context.report(Event(kind="done" if changed else "same", what=what, duration_s=time.monotonic() - started))


def _roll_back(context: Context, error: ClusterError) -> None:
    """Terminates the instances that this run launched. Adds a failure to the message of `error`."""
    try:
        with aws_errors("terminating the new instances"):
            roll_back(context)
            delete_made_volume(context)
    except ClusterError as failure:
        error.message += f"\nThe new instances could not be terminated: {failure.message}"
        first = f"{failure.hint}; then: " if isinstance(failure, CredentialsError) and failure.hint else ""
        error.hint = f"{first}cluster down, so that nothing is left that costs money"
