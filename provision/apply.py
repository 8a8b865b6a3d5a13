"""Carries a plan out, step by step.

It can be killed at any point and planned and applied again: what a call makes is tagged in that call, what
a name makes unique is taken as made when it turns out to be ours already, and launches carry a token that is
on disk before the call.
"""

import time

from provision.access import (
    authorize_ingress,
    create_security_group,
    delete_key_pair,
    delete_security_group,
    import_key_pair,
    revoke_ingress,
)
from provision.aws import Clients, aws_errors
from provision.context import Context
from provision.files import ClusterFiles
from provision.instances import run_instances, terminate_instances, wait_for_running, wait_for_terminated
from provision.plan import Plan
from provision.progress import Event, Report
from provision.render import describe_step
from provision.steps import (
    AuthorizeIngress,
    CreateKeyPair,
    CreateSecurityGroup,
    DeleteKeyPair,
    DeleteSecurityGroup,
    ForgetFiles,
    ImportKeyPair,
    RevokeIngress,
    RunInstances,
    Step,
    TerminateInstances,
    WaitForRunning,
    WaitForTerminated,
)


def apply(plan: Plan, *, clients: Clients, files: ClusterFiles, report: Report) -> None:
    """Carries out the steps of a plan in their order.

    Raises AwsError when AWS refuses or a wait is overdue, ClusterError when something of the same name turns
    out to belong to somebody else, or when another command is changing the cluster.
    """
    if not plan:
        return
    context = Context(cluster=plan.cluster, owner=plan.owner, clients=clients, files=files, report=report)
    with files.locked():
        for step in plan.steps:
            what = describe_step(step)
            report(Event(kind="start", what=what))
            started = time.monotonic()
            with aws_errors(f"trying to {what}"):
                changed = _carry_out(step, context)
            report(Event(kind="done" if changed else "same", what=what, duration_s=time.monotonic() - started))


def _carry_out(step: Step, context: Context) -> bool:  # noqa: C901, PLR0911 - one line for each kind of step
    """Whether the step changed anything."""
    match step:
        case CreateKeyPair() | ImportKeyPair():
            return import_key_pair(step, context)
        case DeleteKeyPair():
            return delete_key_pair(step, context)
        case CreateSecurityGroup():
            return create_security_group(step, context)
        case AuthorizeIngress():
            return authorize_ingress(step, context)
        case RevokeIngress():
            return revoke_ingress(step, context)
        case DeleteSecurityGroup():
            return delete_security_group(step, context)
        case RunInstances():
            return run_instances(step, context)
        case WaitForRunning():
            return wait_for_running(step, context)
        case TerminateInstances():
            return terminate_instances(step, context)
        case WaitForTerminated():
            return wait_for_terminated(step, context)
        case ForgetFiles():
            context.files.forget()
            return True
