"""`cluster train`."""

from contextlib import closing
from typing import Any

import click
from msgspec import structs

from cluster.app import App, pass_app
from cluster.attach import attend, start
from cluster.commands.train_options import read, train_options
from cluster.jobs import head_of
from cluster.other_hosts import note_job
from cluster.session import describe, ready_nodes, warn_untrusted
from foundation.progress import Event
from foundation.thread_pool import run_in_thread
from provision.aws.clients import find_credentials, make_clients
from provision.aws.iam_policy import render_job_policy
from provision.model import ClusterState
from provision.status import find_differences
from train.follow.run import open_submission
from train.job.defaults import render_settings
from train.job.payload import find_shadowed, read_program
from train.job.plan import Job, new_job_id, plan_job
from train.job.reading import find_scope, render_access
from train.job.survey import Surveyor
from train.s3.environment import find_s3_access


@click.command(
    "train",
    context_settings={"ignore_unknown_options": False},
    epilog='What follows -- is passed on word for word. One word with blanks, "python my.py", is a line for the shell.',
)
@train_options
@click.option("-d", "--detach", is_flag=True, help="Print the job's id, and leave it running.")
@click.option("--plain", is_flag=True, help="On a terminal, too: every line as it comes, and no view.")
@click.argument("command_words", metavar="[-- COMMAND...]", nargs=-1, type=click.UNPROCESSED)
@pass_app
def train(app: App, /, *, detach: bool, plain: bool, command_words: tuple[str, ...], **options: Any) -> int:
    """Run a training job on the cluster, to its end.

    Without COMMAND it runs [train] script with [train] args. The exit code is that of the first process that failed,
    and 0 when all of them went well. The job needs this machine no more once it runs: Ctrl-C asks whether to stop it
    or to leave it running, and without a terminal leaves it; `cluster logs -f` goes on with its output.
    """
    request = read(options, command_words)
    app.overrides |= request.overrides
    config = app.config
    app.enter_cloud()
    provision = config.provision
    scope = find_scope(config.train, config.data, command=request.command)
    policy = None if scope.is_empty else render_job_policy(scope, region=provision.region)
    clients = make_clients(provision.region)
    find_credentials(clients)
    # AWS is asked in threads while this one connects to the nodes.
    described = run_in_thread(lambda: describe(app, clients))
    access = run_in_thread(
        lambda: find_s3_access(
            region=provision.region,
            instance_profile=provision.instance_profile,
            cluster=config.name,
            policy=policy,
            # A queued job may start at any time, so its keys cannot be made to end with it.
            max_duration_s=None if config.train.queue else config.train.max_duration_s,
            clients=clients,
        )
    )
    surveyor = Surveyor(clients, url=config.data.url)

    def find_state() -> ClusterState:
        state = described.result()
        warn_untrusted(app, state)
        for difference in find_differences(provision, state.nodes):
            app.report(Event(kind="warn", what=difference))
        return state

    with (
        ready_nodes(app, find_state, hostfile=config.train.hosts) as (nodes, script),
        closing(head_of(app, nodes)) as head,
        # Python starts on the head while AWS is waited for and the job is planned.
        closing(open_submission(head, follow=not detach)) as talk,
    ):
        found = access.result()
        job = plan_job(
            config.train,
            nodes,
            job_id=new_job_id(),
            script=script,
            data=config.data,
            env=found.env,
            command=request.command,
            nodes_credentials=found.of_nodes,
            credentials_left_s=found.left_s,
            credentials=render_access(found, scope),
            credentials_warning=found.warning,
            mxnet=config.bootstrap.mxnet,
            program=read_program(config.train.script, command=request.command, project_dir=app.project_dir),
            survey=surveyor.result(),
            hidden=request.hidden,
        )
        _tell(app, job)
        others = [node.host for node in nodes if node.host.spec]
        if others:
            note_job(app, others, job.order.job)
        order = structs.replace(job.order, secrets=dict(found.secrets))
        if not detach:
            return attend(app, head, order, plain=plain, talk=talk)
        start(app, head, order, talk=talk)
    return 0


def _tell(app: App, job: Job) -> None:
    """Say what was decided for the user, and warn."""
    shadowed = find_shadowed(app.config.train.script, project_dir=app.project_dir) if job.order.script_source else None
    for warning in (*([shadowed] if shadowed else []), *job.warnings):
        app.report(Event(kind="warn", what=warning))
    app.say("\n".join(render_settings(job)))
