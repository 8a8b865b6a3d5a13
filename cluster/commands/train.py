"""`cluster train`."""

import re
from typing import Any, get_args

import click

from cluster.app import App, pass_app
from cluster.session import ready_nodes
from provision.aws import make_clients
from provision.describe import describe_cluster
from provision.errors import UsageError
from train.config import ENV_NAME_PATTERN, KvStore
from train.job import new_job_id, plan_job, run_job
from train.s3_environment import find_s3_access

KV_STORES: tuple[str, ...] = get_args(KvStore)


@click.command(
    "train",
    context_settings={"ignore_unknown_options": False},
    epilog="What follows -- is passed on word for word.",
)
@click.option("-n", "--workers", type=int, metavar="W", help="Worker processes; default: one for each node.")
@click.option("-s", "--servers", type=int, metavar="S", help="Parameter servers; default: as many as workers.")
@click.option("--kv-store", type=click.Choice(KV_STORES), help="How gradients are exchanged.")
@click.option("--env", "env", multiple=True, metavar="K=V", help="An environment variable of the job; repeatable.")
@click.argument("command_words", metavar="[-- COMMAND...]", nargs=-1, type=click.UNPROCESSED)
@pass_app
def command(
    app: App,
    *,
    workers: int | None,
    servers: int | None,
    kv_store: str | None,
    env: tuple[str, ...],
    command_words: tuple[str, ...],
) -> None:
    """Run a training job on the cluster, to its end.

    Without COMMAND it runs [train] script with [train] args. The exit code is that of the first process that failed,
    and 0 when all of them went well. Ctrl-C stops the job on all nodes.
    """
    app.overrides |= _overrides(workers, servers, kv_store)
    extra_env = dict(_parse_env(word) for word in env)
    config = app.config
    app.enter_cloud()
    clients = make_clients(config.provision.region)
    state = describe_cluster(clients.ec2, name=config.name)
    with ready_nodes(app, state) as (nodes, script):
        access = find_s3_access(region=config.provision.region, instance_profile=config.provision.instance_profile)
        job = plan_job(
            config.train.model_copy(update={"env": config.train.env | extra_env}),
            nodes,
            job_id=new_job_id(),
            script=script,
            data=config.data,
            env=access.env,
            command=command_words,
            nodes_credentials=access.of_nodes,
        )
        app.say(
            f"job {job.id}: {job.workers} workers, {job.servers} servers on {len(nodes)} nodes, "
            f"OMP_NUM_THREADS={job.env['OMP_NUM_THREADS']}"
        )
        run_job(job, nodes, secrets=access.secrets, on_line=app.print)
    app.say(f"job {job.id}: done", style="green")


def _overrides(workers: int | None, servers: int | None, kv_store: str | None) -> dict[str, Any]:
    given = {"train.workers": workers, "train.servers": servers, "train.kv_store": kv_store}
    return {key: value for key, value in given.items() if value is not None}


def _parse_env(word: str) -> tuple[str, str]:
    name, equals, value = word.partition("=")
    if not equals or re.match(ENV_NAME_PATTERN, name) is None:
        raise UsageError(f'--env "{word}": must be NAME=VALUE, a name of letters A to Z, digits and _')
    return name, value
