"""`cluster bench`: runs measurements, and shows the results as tables or JSON."""

import statistics
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any, get_args

import click

from bootstrap.apply import ReadyNode
from cluster.app import App, pass_app
from cluster.jobs import ask_head, head_of
from cluster.nodes.other_hosts import note_job
from cluster.session import describe_and_warn, ready_nodes
from cluster.views.layout import render_table
from foundation.errors import ClusterError, ConfigError
from foundation.progress import Event
from node.protocol import JobResult
from node.train_settings import KvStore
from train.follow.events import Event as JobEvent
from train.follow.head import Head
from train.follow.run import run_job
from train.job.plan import Job
from train.measure.training import (
    KV_NETWORK,
    KvResult,
    Runner,
    Scaling,
    choose_counts,
    choose_workload,
    measure_kvstore,
    measure_scaling,
)

WHAT = ("kvstore", "scaling")
DIST_STORES = tuple(name for name in get_args(KvStore) if name.startswith("dist"))


@click.command("bench")
@click.argument("what", metavar="[kvstore|scaling]...", nargs=-1, type=click.Choice(WHAT))
@click.option("--kv-store", type=click.Choice(DIST_STORES), help="Default: [train] kv_store, else dist_sync.")
@click.option(
    "--batches",
    type=click.IntRange(2, 100_000),
    metavar="N",
    help="Batches per worker; default: 10 and 200.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@pass_app
def bench(
    app: App,
    *,
    what: tuple[str, ...],
    kv_store: KvStore | None,
    batches: int | None,
    as_json: bool,
) -> None:
    """Measure the kv-store and scaling of MXNet.

    Without an argument, both:

    \b
    kvstore  the parameter servers, by MXNet's tools/bandwidth/measure.py
    scaling  samples/s of a training script on 1, 2, 4 ... workers

    They run as jobs. The command refuses to start while a job runs or waits.
    """  # noqa: D301 - click's mark for text that must not be wrapped
    framework = app.config.bootstrap.framework
    if framework != "mxnet":
        raise ConfigError(f'cluster bench measures MXNet, and [bootstrap] framework is "{framework}"')
    app.enter_cloud()
    described = describe_and_warn(app)
    configured = app.config.train.kv_store
    settings = {
        "config": app.config.train,
        "kv_store": kv_store or (configured if configured in DIST_STORES else "dist_sync"),
        "mxnet": app.config.bootstrap.mxnet,
    }
    document: dict[str, Any] = {}
    with ready_nodes(app, described) as (nodes, _), closing(head_of(app, nodes)) as head:
        _check_idle(app, head)

        def run(job: Job, take: Callable[[JobEvent], None]) -> JobResult:
            note_job(app, [node.host for node in nodes], job.order.spec.id)
            return run_job(head, job.order, take=take, say=app.say)

        for name in dict.fromkeys(what or WHAT):
            if name == "kvstore":
                table, document[name] = _measure_kvstore(app, run, nodes, batches=batches or 10, **settings)
            else:
                table, document[name] = _measure_scaling(app, run, nodes, batches=batches or 200, **settings)
            if not as_json:
                app.print(f"\n{table}" if len(document) > 1 else table)
    if as_json:
        app.print_json(document)


def _check_idle(app: App, head: Head) -> None:
    """Raises ClusterError while a job runs or waits."""
    for record in ask_head(app, head):
        if not (record.has_ended or record.is_damaged):
            raise ClusterError(
                f"job {record.id} ({record.name}) is {record.state} on this cluster: it would be measured with the "
                "rest",
                hint=f"cluster logs -f {record.id}, which waits for its end; or cluster stop {record.id}",
            )


# Each measurement returns its table, and its document for --json.


def _measure_kvstore(app: App, run: Runner, nodes: Sequence[ReadyNode], **settings: Any) -> tuple[str, dict[str, Any]]:
    app.report(Event(kind="start", what=f"measuring the kv-store on {len(nodes)} nodes"))
    result = measure_kvstore(run, nodes, **settings)
    worst = max(worker.worst_error for worker in result.workers)
    if worst > 1e-4:
        app.say(f"the sums in the kv-store are wrong by up to {worst:.2g} of their size", style="yellow")
    return render_kvstore(result), kvstore_document(result)


def _measure_scaling(
    app: App, run: Runner, nodes: Sequence[ReadyNode], *, batches: int, **settings: Any
) -> tuple[str, dict[str, Any]]:
    workload = choose_workload(nodes, batches=batches)
    runs = []
    for count in choose_counts(len(nodes)):
        app.report(Event(kind="start", what=f"training with {count} worker{'s' if count > 1 else ''}"))
        runs.append(measure_scaling(run, nodes, count, workload=workload, batches=batches, **settings))
    scaling = Scaling(workload=workload, runs=tuple(runs))
    return render_scaling(scaling), scaling_document(scaling)


# -- tables and documents; pure ----------------------------------------------------------------------------------------


def render_kvstore(result: KvResult) -> str:
    """Renders a line for each worker."""
    heading = (
        f"kv-store {result.kv_store}, MB/s out of and into each worker: {KV_NETWORK}'s {result.arrays} arrays, "
        f"{result.size_mb:.0f} MB, pushed and pulled; median of {len(result.workers[0].batches_s)} batches"
    )
    rows = [("worker", "node", "MB/s", "s/batch")]
    for worker in result.workers:
        rank = "?" if worker.rank is None else str(worker.rank)
        median = statistics.median(worker.batches_s)
        rows.append((rank, worker.host, _number(result.mb_per_s(worker)), _number(median)))
    rows.append(("all", "", _number(sum(map(result.mb_per_s, result.workers))), ""))
    return f"{heading}\n{render_table(rows, numbers_from=2)}"


def kvstore_document(result: KvResult) -> dict[str, Any]:
    """Returns the result for --json."""
    workers = [
        {
            "rank": worker.rank,
            "node": worker.host,
            "mb_per_s": result.mb_per_s(worker),
            "batches_s": list(worker.batches_s),
            "error": worker.worst_error if result.checked else None,
        }
        for worker in result.workers
    ]
    return {
        "job": result.job,
        "kv_store": result.kv_store,
        "network": KV_NETWORK,
        "arrays": result.arrays,
        "size_mb": result.size_mb,
        "workers": workers,
    }


def render_scaling(scaling: Scaling) -> str:
    """Renders a line for each number of workers."""
    workload = scaling.workload
    heading = (
        f"scaling, samples/s of {workload.script} {' '.join(workload.args)}, OMP_NUM_THREADS={workload.threads}: "
        "sum of the workers' median reports"
    )
    rows = [("workers", "kv-store", "samples/s", "speed-up", "efficiency")]
    for run in scaling.runs:
        speed_up, efficiency = f"{scaling.speed_up(run):.2f}", f"{100 * scaling.efficiency(run):.0f} %"
        rows.append((str(run.workers), run.kv_store, _number(run.speed), speed_up, efficiency))
    return f"{heading}\n{render_table(rows, numbers_from=1)}"


def scaling_document(scaling: Scaling) -> dict[str, Any]:
    """Returns the result for --json."""
    runs = [
        {
            "job": run.job,
            "workers": run.workers,
            "kv_store": run.kv_store,
            "samples_per_s": run.speed,
            "worker_samples_per_s": list(run.worker_speeds),
            "speed_up": scaling.speed_up(run),
            "efficiency": scaling.efficiency(run),
        }
        for run in scaling.runs
    ]
    return {
        "script": scaling.workload.script,
        "args": list(scaling.workload.args),
        "omp_num_threads": scaling.workload.threads,
        "runs": runs,
    }


def _number(value: float) -> str:
    """Renders a number with three significant digits, or all digits before the point if there are more."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"
