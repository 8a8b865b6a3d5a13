"""`cluster bench`: runs measurements, and shows the results as tables or JSON."""

from collections.abc import Sequence
from contextlib import closing
from functools import partial
from typing import Any, get_args

import click

from bootstrap.apply import ReadyNode
from cluster.app import App, pass_app
from cluster.jobs import check_idle, head_of, run_alone
from cluster.session import describe_and_warn, ready_nodes
from cluster.views.bench import (
    kvstore_document,
    render_kvstore,
    render_scaling,
    scaling_document,
)
from foundation.errors import ConfigError
from foundation.progress import Event
from node.train_settings import KvStore
from train.measure.training import (
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
        check_idle(head)
        run: Runner = partial(run_alone, app, head, [node.host for node in nodes])
        for name in dict.fromkeys(what or WHAT):
            if name == "kvstore":
                table, document[name] = _measure_kvstore(app, run, nodes, batches=batches or 10, **settings)
            else:
                table, document[name] = _measure_scaling(app, run, nodes, batches=batches or 200, **settings)
            if not as_json:
                app.print(f"\n{table}" if len(document) > 1 else table)
    if as_json:
        app.print_json(document)


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
