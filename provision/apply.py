"""Carries a plan out, step by step.

It can be killed at any point and planned and applied again: what a call makes is tagged in that call, what
a name makes unique is taken as made when it turns out to be ours already, and launches carry a token that is
on disk before the call.
"""

import time

from foundation.errors import ClusterError, CredentialsError
from foundation.progress import Event, Report
from provision.aws.clients import Clients, aws_errors
from provision.files import ClusterFiles
from provision.plan import Context, Plan, Step
from provision.resources.instances import roll_back
from provision.resources.launch_recovery import forget_seen_launches


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
    what = step.describe()
    context.report(Event(kind="start", what=what))
    started = time.monotonic()
    if step.makes is not None:
        context.files.note_making(step.makes, now=time.time())
    with aws_errors(f"trying to {what}"):
        changed = step.apply(context)
    if step.unmakes is not None:
        context.files.forget_making(step.unmakes)
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
