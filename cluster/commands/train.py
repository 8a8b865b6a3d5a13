"""`cluster train`."""

from contextlib import closing
from functools import partial
from typing import Any

import click

from cluster.app import App, pass_app
from cluster.attach import attend, start
from cluster.beside import begin
from cluster.commands import train_options
from cluster.job_head import head_of
from cluster.session import ready_nodes
from provision.aws import make_clients
from provision.describe import describe_cluster
from provision.progress import Event
from train.job import new_job_id, plan_job
from train.s3.environment import find_s3_access
from train.settings import render_settings
from train.survey import Surveyor


@click.command(
    "train",
    context_settings={"ignore_unknown_options": False},
    epilog="What follows -- is passed on word for word.",
)
@train_options.train_options
@click.option("-d", "--detach", is_flag=True, help="Print the job's id, and leave it running.")
@click.option("--plain", is_flag=True, help="On a terminal, too: every line as it comes, and no view.")
@click.argument("command_words", metavar="[-- COMMAND...]", nargs=-1, type=click.UNPROCESSED)
@pass_app
def command(app: App, /, *, detach: bool, plain: bool, command_words: tuple[str, ...], **options: Any) -> int:
    """Run a training job on the cluster, to its end.

    Without COMMAND it runs [train] script with [train] args. The exit code is that of the first process that failed,
    and 0 when all of them went well. The job needs this machine no more once it runs: Ctrl-C asks whether to stop it
    or to leave it running, and without a terminal leaves it; `cluster logs -f` goes on with its output.
    """
    request = train_options.read(options, command_words)
    app.overrides |= request.overrides
    config = app.config
    app.enter_cloud()
    clients = make_clients(config.provision.region)
    surveyor = Surveyor(clients, url=config.data.url)
    provision = config.provision
    find_access = begin(partial(find_s3_access, region=provision.region, instance_profile=provision.instance_profile))
    state = describe_cluster(clients.ec2, name=config.name)
    with ready_nodes(app, state) as (nodes, script):
        access = find_access()
        job = plan_job(
            config.train,
            nodes,
            job_id=new_job_id(),
            script=script,
            data=config.data,
            env=access.env,
            command=request.command,
            nodes_credentials=access.of_nodes,
            mxnet=config.bootstrap.mxnet,
            survey=surveyor.result(),
        )
        for warning in job.warnings:
            app.report(Event(kind="warn", what=warning))
        app.say("\n".join(render_settings(job)))
        order = job.order(secrets=access.secrets)
        with closing(head_of(app, nodes)) as head:
            if not detach:
                return attend(app, head, order, plain=plain)
            start(app, head, order)
    return 0
