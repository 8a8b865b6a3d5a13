"""Continues the jobs of a lost head on a new one, from their records in S3: the running job and the queued ones.

The records and logs are in [data] results, and are at most a minute old. `up` finds that the head's instance
has ended, launches the missing nodes, sets all nodes up, and submits the jobs again. They are the same jobs, with their
attempts and logs so far. Without [data] results, the records are lost with the head. Records in S3 can be forged:
consent.py decides which jobs continue.
"""

import time
from collections.abc import Sequence
from contextlib import closing

from msgspec import Struct

from cluster.app import App, if_interrupted
from cluster.jobs import ask_head, end_from_here, head_of, open_head
from cluster.nodes.ec2 import find_gone, nodes_of
from cluster.nodes.source import Nodes
from cluster.recovery.consent import check_consent, note_order
from cluster.recovery.replacement import launch_for
from cluster.session import BOOT_TIMEOUT_S, ready_nodes
from cluster.submission.preparation import Preparation
from foundation.errors import ClusterError
from foundation.thread_pool import run_in_thread
from node.protocol import Attempt, Record
from provision.model import ClusterState
from provision.status import find_lease_end
from train.follow.records import find_last_copy, read_s3_records
from train.follow.run import render_left, submit
from train.job.lost_nodes import (
    check_restarts,
    continue_order,
    end_attempts,
    find_lost,
    find_orphans,
    have_files_changed,
    restore_config,
)


class LostHead(Struct, frozen=True, kw_only=True):
    """The head of this cluster has ended. jobs: those to continue on a new head, the running one first.

    why: the message about this. is_final: only `cluster up` continues the jobs, because the lease ended the cluster.
    """

    jobs: tuple[Record, ...]
    why: str
    is_final: bool = False


def try_find_lost_head(app: App, state: ClusterState) -> LostHead | None:
    """Like find_lost_head, but an error is only a warning. Makes no call while no node is missing."""
    try:
        return find_lost_head(app, state)
    except ClusterError as error:
        app.warn_of(error)
        return None


def continue_jobs(app: App, lost: LostHead | None, state: ClusterState) -> bool:
    """Continues the jobs of a lost head: an error is only a warning. Returns whether they continue."""
    if lost is None:
        return False
    if not lost.jobs and app.config.data.s3_results is None:
        app.warn(lost.why)
    jobs = choose_jobs(app, lost.jobs)
    if not jobs:
        return False
    try:
        continue_lost(app, jobs, state)
    except ClusterError as error:
        app.warn_of(error)
        return False
    return True


def check_head(nodes: Nodes) -> None:
    """Raises ClusterError if the head's instance has ended. Pure."""
    if nodes.state is not None and nodes.state.nodes and all(node.index > 0 for node in nodes.state.nodes):
        raise ClusterError(f"the head of cluster {nodes.cluster} has ended", hint="cluster up")


def find_lost_head(app: App, state: ClusterState) -> LostHead | None:
    """Returns the head that has ended; None while it runs and has its jobs. Raises ClusterError or a subclass."""
    gone, begun = find_gone(app, state), app.files.find_continued_jobs() if app.files.exist else ()
    has_head = any(node.index == 0 for node in state.nodes)
    if not begun and not gone:
        return None
    jobs: tuple[Record, ...] = ()
    results = app.config.data.s3_results
    if results is not None:
        found = read_s3_records(results, region=app.config.provision.region)
        records = [record for record in found if not record.is_damaged]
        jobs = find_orphans(records, gone)
        if begun:
            known = find_jobs_on_head(app, state)
            left = [record for record in records if record.id in begun and record.id not in known]
            jobs = tuple(sorted((one for one in left if not one.has_ended), key=lambda one: one.submitted_at))
            if not jobs:  # the command was interrupted after it had submitted the last one
                app.files.note_continued_jobs(())
    if has_head and not jobs:
        return None
    lease_end = find_lease_end(state, now=time.time())
    if lease_end is not None and not jobs:
        return None
    return LostHead(jobs=jobs, why=render_lost_head(app, jobs, lease_end=lease_end), is_final=lease_end is not None)


def find_jobs_on_head(app: App, state: ClusterState) -> frozenset[str]:
    """Returns the ids of the jobs that the new head has. Raises ClusterError if it runs but cannot be asked."""
    if not any(node.index == 0 and node.state == "running" for node in state.nodes):
        return frozenset()
    with open_head(app, nodes_of(app, state)) as head:
        return frozenset(record.id for record in ask_head(head))


def render_lost_head(app: App, jobs: Sequence[Record], *, lease_end: str | None) -> str:
    """Returns the message about a lost head. lease_end: how the lease has ended the cluster; None if it has not."""
    cluster = f"cluster {app.config.name}"
    listed = ", ".join(f"{job.id} ({job.name})" for job in jobs)
    if jobs and lease_end is not None:
        return f"{lease_end}, before the end of {listed}: cluster up launches new nodes and continues there"
    if jobs:
        return f"the head of {cluster} has ended: cluster up continues {listed}"
    records = "" if app.config.data.s3_results is not None else ", and the records of its jobs with it"
    return f"the head of {cluster} has ended{records}: cluster up launches a new one"


def continue_lost(app: App, jobs: Sequence[Record], state: ClusterState) -> None:
    """Launches a new head and other missing nodes, and continues the jobs there. Raises ClusterError or a subclass."""
    app.files.note_continued_jobs(job.id for job in jobs)
    with if_interrupted("cluster up continues"):
        for job in jobs:
            state = continue_on_new_head(app, job, state)
    app.files.note_continued_jobs(())


def choose_jobs(app: App, jobs: Sequence[Record]) -> tuple[Record, ...]:
    """Returns the jobs that may continue. Prints why the others may not."""
    chosen = []
    for job in jobs:
        try:
            check_restarts(job, end_attempts(job, (), at=time.time()), app.config.train.restarts)
            check_consent(app, job)
        except ClusterError as error:
            app.warn_of(error)
        else:
            chosen.append(job)
    return tuple(chosen)


def find_missing(job: Record, state: ClusterState) -> list[str]:
    """Returns the names of the nodes that a job on a lost head needs, and that have to be launched. Pure."""
    live = {node.instance_id for node in state.nodes}
    return [host.name for host in job.nodes if host.instance_id not in live or host.name in job.waiting_for]


def continue_on_new_head(app: App, job: Record, state: ClusterState) -> ClusterState:
    """Continues one job. Returns the cluster with the nodes that the job needed. Raises ClusterError or a subclass."""
    how = "queueing it again" if job.state == "queued" else "continuing the job"
    app.message(f"the head of job {job.id} ({job.name}) has ended: {how} on a new one, from its record in S3")
    names = find_missing(job, state)
    if state.nodes and job.state != "queued":
        left = end_from_here(app, job.id)
        if left:
            raise ClusterError(
                f"processes of job {job.id} may still run: {render_left(left)}", hint=f"cluster stop {job.id}"
            )
    state = launch_for(app, job, find_lost(job, names))
    ended_at = find_last_copy(str(app.config.data.s3_results), job.id, region=app.config.provision.region)
    order_again(app, job, state, attempts=end_attempts(job, names, at=ended_at or time.time()))
    continues = "is queued again" if job.state == "queued" else "continues"
    app.message(f"job {job.id} {continues}: cluster logs -f {job.id} follows it", style="green")
    return state


def order_again(app: App, job: Record, state: ClusterState, *, attempts: tuple[Attempt, ...]) -> None:
    """Sets the nodes up and submits the job again, as `cluster train` does. Raises ClusterError or a subclass."""
    train, warnings = restore_config(app.config.train, job.spec)
    app.warn(*warnings)
    app.override("train.script", train.script)
    app.override("train.cwd", train.cwd)
    command, nodes = job.spec.typed_command, nodes_of(app, state)
    prepared = Preparation(app, train, run_in_thread(lambda: nodes), command=command)
    with ready_nodes(app, nodes, wait_s=BOOT_TIMEOUT_S, command=command) as (ready, script):
        planned = prepared.plan(train, ready, job_id=job.id, script=script)
        order = continue_order(planned.order, job, attempts)
        if have_files_changed(order.spec, job.spec):
            what = f"the files or the packages of job {job.id} have changed since it was started"
            app.warn(f"{what}: it continues with the present ones")
        note_order(app, order)
        with closing(head_of(app, ready)) as head:
            submit(head, order, follow=False)
