"""Continues the job of a lost head on a new one, from the job's record in S3.

The record is in [data] results, with the log, and is at most a minute old. A command on the user's machine finds that
the head's instance has ended, launches what is missing, sets the nodes up, and orders the job again: the same job, with
its attempts and its log so far. Without [data] results, the record is lost with the head.
"""

import tempfile
import time
from contextlib import closing
from dataclasses import replace

from msgspec import structs

from cluster.app import App, if_interrupted
from cluster.containers import find_login, prepare_image
from cluster.costs import ask_for_prices
from cluster.health import find_hardware
from cluster.jobs import ask_head, end_from_here, head_of, open_head
from cluster.nodes.ec2 import Ec2Nodes
from cluster.notify import find_notify
from cluster.recovery.replacement import launch
from cluster.session import BOOT_TIMEOUT_S, ready_nodes, source_of
from foundation.errors import ClusterError, NotFoundError
from foundation.progress import Event
from foundation.thread_pool import run_in_thread
from provision.aws.clients import make_clients
from provision.aws.iam_policy import render_job_policy
from provision.model import ClusterState
from train.follow.events import EventReader
from train.follow.records import fetch_s3_log, read_s3_records
from train.follow.run import continue_job, render_left
from train.job.plan import find_used, plan_job
from train.job.program import read_program
from train.job.protocol import Attempt, Record, parse_record
from train.job.reading import find_scope
from train.job.replacement import (
    check_restarts,
    continue_order,
    continued_config,
    end_attempts,
    find_lost,
    find_orphan,
)
from train.job.survey import Surveyor
from train.s3.environment import find_s3_access


def continue_without_head(app: App, state: ClusterState) -> bool:
    """Continue the job whose head has ended, for commands that do something else: an error is only a warning.

    Returns whether a job goes on. Without such a job nothing happens; it costs no call while all nodes are there.
    """
    try:
        job = find_lost_job(app, state)
        if job is not None:
            continue_lost(app, job, state)
    except ClusterError as error:
        hint = f" ({error.hint})" if error.hint else ""
        app.report(Event(kind="warn", what=f"{error.message}{hint}"))
        return False
    return job is not None


def find_lost_job(app: App, state: ClusterState) -> Record | None:
    """The job that was not over when its head ended; None if there is none. Raises ClusterError's kinds.

    Only this machine's own nodes count: those that it set up last, and did not end itself.
    """
    live = {node.instance_id for node in state.nodes}
    gone = frozenset(app.files.addresses()) - live
    begun = app.files.find_continued_job()
    if not gone and begun is None:
        return None
    results = app.config.data.s3_results
    if results is None:
        if not any(node.index == 0 for node in state.nodes):
            app.report(Event(kind="warn", what=render_without_record(app)))
        return None
    records = [
        parse_record(record.data)
        for record in read_s3_records(results, region=app.config.provision.region)
        if not record.is_damaged
    ]
    if begun is None:
        return find_orphan(records, gone)
    job = next((record for record in records if record.id == begun and not record.has_ended), None)
    if job is None or has_job(app, state, begun):  # the command was interrupted after it had ordered the job
        app.files.note_continued_job(None)
        return None
    return job


def has_job(app: App, state: ClusterState, job: str) -> bool:
    """Whether the new head has the job already. Raises ClusterError if it runs and cannot be asked."""
    if not any(node.index == 0 and node.state == "running" for node in state.nodes):
        return False
    with open_head(app, Ec2Nodes(state, app.config.provision)) as head:
        return any(record.id == job for record in ask_head(app, head))


def render_without_record(app: App) -> str:
    """What is said of a lost head whose jobs' records are nowhere else."""
    remains = f"; the dataset {app.config.data.url} remains" if app.config.data.url else ""
    return (
        f"the head of cluster {app.config.name} has ended, and the records of its jobs with it, since [data] results "
        f"is not set{remains}: cluster up launches a new head"
    )


def continue_lost(app: App, job: Record, state: ClusterState) -> None:
    """Launch a new head and what else is missing, and continue a job there. Raises ClusterError's kinds."""
    live = {node.instance_id for node in state.nodes}
    names = [host.name for host in job.nodes if host.instance_id not in live or host.name in job.waiting_for]
    attempts = end_attempts(job, names, at=time.time())
    check_restarts(job, attempts, app.config.train.restarts)
    app.say(f"the head of job {job.id} ({job.name}) has ended: continuing the job on a new one, from its record in S3")
    app.files.note_continued_job(job.id)
    with if_interrupted("the next command, such as cluster status, continues"):
        left = end_from_here(app, job.id) if state.nodes else {}
        if left:
            raise ClusterError(
                f"processes of job {job.id} may still run: {render_left(left)}", hint=f"cluster stop {job.id}"
            )
        order_again(app, job, launch(app, find_lost(job, names)), attempts=attempts)
    app.files.note_continued_job(None)
    app.say(f"job {job.id} goes on: cluster logs -f {job.id} follows it", style="green")


def order_again(app: App, job: Record, state: ClusterState, *, attempts: tuple[Attempt, ...]) -> None:
    """Set the nodes up and order the job again, as `cluster train` does. Raises ClusterError's kinds."""
    region = app.config.provision.region
    train = continued_config(app.config.train, job)
    app.override("train.script", train.script)
    command = () if job.script else job.command
    config = app.config
    clients = make_clients(region)
    scope = find_scope(structs.replace(train, args=job.command), config.data, command=command)
    access = find_s3_access(
        region=region,
        instance_profile=source_of(app, clients).instance_profile,
        cluster=config.name,
        policy=None if scope.is_empty else render_job_policy(scope, region=region),
        max_duration_s=train.max_duration_s,
        clients=clients,
    )
    surveyor = Surveyor(clients, url=config.data.s3_url, owner=None)
    log = read_log(app, job)
    nodes = Ec2Nodes(state, config.provision)
    prices, hardware = ask_for_prices(app, clients, run_in_thread(lambda: nodes)), find_hardware(app, nodes, clients)
    with ready_nodes(app, nodes, wait_s=BOOT_TIMEOUT_S, command=command) as (set_up, script):
        ready = tuple(replace(node, hardware=hardware.get(node.host.name)) for node in set_up)
        image = prepare_image(app, find_used(train, ready, config.bootstrap.framework), find_login(app, clients))
        planned = plan_job(
            train,
            ready,
            job_id=job.id,
            script=script,
            data=config.data,
            access=access,
            command=command,
            queue=config.queue,
            framework=config.bootstrap.framework,
            mxnet=config.bootstrap.mxnet,
            program=read_program(train.script, command=command, project_dir=app.project_dir),
            survey=surveyor.result(),
            container=config.container,
            image=image,
            volumes=[volume.mount for volume in config.volumes],
            prices=prices(),
            notify=find_notify(app),
        )
        first = find_first_process(log)
        order, warnings = continue_order(planned.order, job, ready, attempts, first_process=first)
        for warning in warnings:
            app.report(Event(kind="warn", what=warning))
        with closing(head_of(app, ready)) as head:
            continue_job(head, structs.replace(order, secrets=dict(access.secrets)), log)


def read_log(app: App, job: Record) -> bytes:
    """The job's log in S3; empty if it had none yet. Raises ClusterError's kinds."""
    with tempfile.TemporaryFile(prefix="cluster-log-") as log:
        try:
            fetch_s3_log(str(app.config.data.s3_results), job.id, region=app.config.provision.region, into=log)
        except NotFoundError:
            return b""
        log.seek(0)
        found = log.read()
    return found[: found.rfind(b"\n") + 1]


def find_first_process(log: bytes) -> int:
    """The number for the next process, after those in a log. Pure."""
    reader = EventReader()
    for line in log.splitlines():
        if b'"p"' in line:
            reader.read(line)
    return max(reader.processes, default=-1) + 1
