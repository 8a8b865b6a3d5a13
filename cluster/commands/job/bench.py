"""`cluster bench`."""

from collections.abc import Sequence
from contextlib import closing
from typing import get_args

import click
from msgspec.structs import replace

from bootstrap.apply import ReadyNode
from bootstrap.verify.checks import Check, ProbeResult
from bootstrap.verify.measures import judge, read_measures
from cluster.app import App, pass_app
from cluster.jobs import check_idle, head_of
from cluster.nodes.other_hosts import note_job
from cluster.nodes.verification import measure_nodes, show_checks
from cluster.session import describe_and_warn, ready_nodes
from foundation.errors import ConfigError
from node.train_settings import KvStore
from train.follow.events import Event
from train.follow.run import check_result, run_job
from train.job.config import DataConfig, TrainConfig
from train.job.job_plan import Job, new_job_id, plan_job
from train.s3.environment import S3Access

DIST_STORES = tuple(name for name in get_args(KvStore) if name.startswith("dist"))


@click.command("bench")
@click.argument("what", metavar="[nodes|kvstore]...", nargs=-1, type=click.Choice(("nodes", "kvstore")))
@click.option("--kv-store", type=click.Choice(DIST_STORES), help="Default: [train] kv_store, else dist_sync.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@pass_app
def bench(app: App, *, what: tuple[str, ...], kv_store: KvStore | None, as_json: bool) -> None:
    """Measure the nodes, and MXNet's kv-store.

    \b
    nodes    what `cluster verify --deep` measures
    kvstore  MXNet's parameter servers, by a job that pushes and pulls 100 MB

    Without an argument, it measures what the cluster has. It refuses to start while a job runs or waits.
    """  # noqa: D301 - click's mark for text that must not be wrapped
    bootstrap = app.config.bootstrap
    if "kvstore" in what and bootstrap.framework != "mxnet":
        raise ConfigError(f'only MXNet has a kv-store, and [bootstrap] framework is "{bootstrap.framework}"')
    what = what or (("nodes", "kvstore") if bootstrap.framework == "mxnet" else ("nodes",))
    checks: list[Check] = []
    app.enter_cloud()
    with ready_nodes(app, describe_and_warn(app)) as (nodes, _):
        if "nodes" in what:
            checks += [check for check in measure_nodes(app, nodes) if check.check == "measure" or check.status != "ok"]
        if "kvstore" in what:
            checks += measure_kv_store(app, nodes, plan_kv_store(app.config.train, nodes, kv_store, bootstrap.mxnet))
    show_checks(app, checks, as_json=as_json)


def plan_kv_store(config: TrainConfig, nodes: Sequence[ReadyNode], kv_store: KvStore | None, mxnet: str) -> Job:
    """Plans the job: a worker and a server on each node, with the user's environment and compression. Pure."""
    kv_store = kv_store or (config.kv_store if config.kv_store in DIST_STORES else "dist_sync")
    program = f"{nodes[0].code_dir}/node/measure/bench_kvstore.py"
    usual = {"args": (), "hosts": (), "servers": "auto", "launcher": "ssh", "sync_dst_dir": "", "ends_with": "all"}
    own = {"kv_store": kv_store, "workers": len(nodes), "name": "bench-kvstore", "queue": False, "max_duration": "none"}
    return plan_job(
        replace(config, **{**usual, **own, "gpus": "none"}),
        nodes,
        job_id=new_job_id(),
        script=program,
        command=(nodes[0].python, program, kv_store, config.gc_type),
        data=DataConfig(),
        access=S3Access(env={}, secrets={}),
        mxnet=mxnet,
    )


def measure_kv_store(app: App, nodes: Sequence[ReadyNode], job: Job) -> list[Check]:
    """Runs the job, and returns what its workers print. Raises JobError, ClusterError."""
    checks: list[Check] = []

    def take(event: Event) -> None:
        if event.kind == "line" and event.process is not None:
            printed = ProbeResult(exit_code=0, stdout=event.text, stderr="")
            checks.extend(read_measures(event.process.host, printed.messages))

    with closing(head_of(app, nodes)) as head:
        check_idle(head)
        note_job(app, [node.host for node in nodes], job.order.spec.id)
        check_result(job.order.spec.id, run_job(head, job.order, take=take, message=app.message))
    names = [node.host.name for node in nodes]
    return sorted(judge(checks, {}), key=lambda check: names.index(check.node))
