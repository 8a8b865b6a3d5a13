"""`cluster stop`."""

from contextlib import ExitStack

import click

from cluster.app import App, if_interrupted, pass_app
from cluster.costs import noting_costs
from cluster.jobs import (
    ask_for_job,
    ask_head,
    end_job,
    end_without_head,
    find_left,
    open_head,
    require_ending,
)
from cluster.nodes.ec2 import describe_state, nodes_of
from cluster.session import describe, unmount_before
from cluster.views.status import render_usd
from foundation.errors import ClusterError, NotFoundError, UsageError
from node.protocol import OUR_JOB_ID, JobResult, Process
from provision.apply import apply
from provision.power import describe_disks_gib, plan_stop
from provision.preflight.prices import find_volume_price
from provision.render import render_plan
from provision.resources.launch_recovery import wait_for_interrupted_launches
from train.follow.records import RUNNING, DamagedRecordError, JobRecord, choose_job, find_running
from train.follow.run import render_left


@click.command("stop")
@click.argument("job", required=False)
@click.option("--nodes", is_flag=True, help="Stop the nodes instead of a job.")
@click.option("-y", "--yes", is_flag=True, help="Stop nodes without asking.")
@pass_app
def stop(app: App, *, job: str | None, nodes: bool, yes: bool) -> None:
    """Stop a job, or stop the nodes.

    JOB is an id, the start of an id, or a name (the newest job of that name); default: the running job. The command
    also searches the nodes for processes that the job left behind, even if the job has already ended.

    With --nodes it stops the nodes and interrupts what runs on them. Stopped nodes keep their disks, and you pay only
    for these until `cluster start`. Spot instances cannot be stopped: use `cluster resize 0`.
    """
    if not nodes:
        stop_job(app, job)
        return
    if job is not None:
        raise UsageError(
            "cluster stop takes either a job or --nodes", hint=f"cluster stop {job}, or cluster stop --nodes"
        )
    app.check_has_instances("stop --nodes", instead="cluster stop, which stops the running job")
    app.enter_cloud()
    name = app.config.name
    wait_for_interrupted_launches(app.clients.ec2, name=name, files=app.files, report=app.report)
    state = describe_state(app)
    plan = plan_stop(state)
    app.message(render_plan(plan).rstrip())
    if plan and not yes:
        require_ending(app, "Stop these nodes?", ask_for_job(app, nodes_of(app, state))())
    with if_interrupted("cluster stop --nodes stops the others"):
        if plan:
            unmount_before(app)
        with noting_costs(app):
            apply(plan, clients=app.clients, files=app.files, report=app.report)
    disks_gib = describe_disks_gib(app.clients.ec2, name=name)
    price = find_volume_price(app.clients)
    app.print(render_stopped(name, disks_gib=disks_gib, usd_per_gib_month=price, price_note=app.price_note))


def stop_job(app: App, words: str | None) -> None:
    """Stops the job that `words` names, or else the running job, or else the processes that an ended job left.

    Raises ClusterError or a subclass.
    """
    app.enter_cloud()
    nodes = describe(app)
    with ExitStack() as stack:
        try:
            head = stack.enter_context(open_head(app, nodes))
            records = ask_head(head)
        except NotFoundError:
            raise
        except ClusterError as error:
            stop_without_head(app, words, error)
            return
        scheduled = [one.id for one in records if one.state in RUNNING and one.spec.scheduler is not None]
        if words is None and len(scheduled) > 1:
            raise UsageError(f"several jobs run or are pending: {', '.join(scheduled)}", hint="cluster stop JOB")
        try:
            record = find_running(records) if words is None else choose_job(records, words)
        except DamagedRecordError as error:
            stop_without_head(app, error.job, error)
            return
        if record is None:
            queued = [record.id for record in records if record.state == "queued"]
            app.print("no job runs" + (f"; queued: {', '.join(queued)}" if queued else ""))
            record = find_left(records)
            if record is None:
                return
        gone: list[str] = []
        if record.has_ended and record.left:
            left = render_left(record.left)
            app.message(
                f"processes of job {record.id} ({record.name}) may still run: {left}; searching its nodes again"
            )
            # The id of a host of the user's is empty.
            gone = nodes.find_gone(node.instance_id for node in record.nodes if node.instance_id)
        stopped = end_job(app, head, record.id, gone=gone)
    app.print(render_stopped_job(record, stopped.result, already=stopped.already))


def stop_without_head(app: App, words: str | None, error: ClusterError) -> None:
    """Ends a job on the reachable nodes, without the head. words: the job's full id. Raises ClusterError."""
    if words is None or OUR_JOB_ID.fullmatch(words) is None:
        raise ClusterError(error.message, hint="cluster stop JOB, with the job's full id, stops it without the head")
    left = end_without_head(app, words, error, message=app.message).result.left
    if left:
        raise ClusterError(f"processes of job {words} may still run: {render_left(left)}") from error
    app.print(f"job {words}: no process of the job is left on the running nodes")


def render_stopped_job(record: JobRecord, result: JobResult, *, already: bool) -> str:
    """Describes what was stopped. record: before the stop. already: the job had ended by itself. Pure."""
    hosts = ", ".join(node.name for node in record.nodes)
    if already:
        text = f"job {record.id} ({record.name}) had already ended: {result.state}"
        known = {node: named for node, found in record.left.items() if (named := [one for one in found if one[0]])}
        ended = f"\nended now: {render_left(known)}" if known else ""
        return f"{text}{ended}\nno process of the job is left on {hosts}" if record.left else text
    roles = [role for role in record.roles if role.ended_at is None]
    ended = ", ".join(_render_role(role) for role in roles) or "it had not started"
    return f"job {record.id} ({record.name}) is stopped: {ended}\nno process of the job is left on {hosts}"


def _render_role(role: Process) -> str:
    rank = "" if role.rank is None else f" {role.rank}"
    return f"{role.role}{rank} on {role.host}"


def render_stopped(name: str, *, disks_gib: int, usd_per_gib_month: float | None, price_note: str = "") -> str:
    """Describes what a stopped cluster still costs. Pure."""
    cost = None if usd_per_gib_month is None else disks_gib * usd_per_gib_month
    return (
        f"cluster {name} is stopped; its disks, {disks_gib} GiB, still cost money: {render_usd(cost)} per month"
        f"{f' ({price_note})' if price_note else ''}, until `cluster down`"
    )
