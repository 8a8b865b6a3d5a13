"""`cluster bench`."""

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, get_args

import click

from bootstrap.apply import ReadyNode
from cluster.app import App, pass_app
from cluster.jobs import ask_head, head_of
from cluster.session import describe_and_warn, ready_nodes
from cluster.views.bench import (
    kvstore_document,
    network_document,
    render_kvstore,
    render_network,
    render_scaling,
    scaling_document,
)
from foundation.errors import ClusterError
from foundation.progress import Event
from train.follow.events import Event as JobEvent
from train.follow.events import Result
from train.follow.head import Head
from train.follow.run import run_job
from train.job.plan import Job
from train.job.protocol import KvStore
from train.measure.network import Pair, measure_network
from train.measure.training import Scaling, choose_counts, choose_workload, measure_kvstore, measure_scaling

WHAT = ("network", "kvstore", "scaling")
DIST_STORES = tuple(name for name in get_args(KvStore) if name.startswith("dist"))


@click.command("bench")
@click.argument("what", metavar="[network|kvstore|scaling]...", nargs=-1, type=click.Choice(WHAT))
@click.option("--kv-store", type=click.Choice(DIST_STORES), help="Default: [train] kv_store, or dist_sync.")
@click.option(
    "--seconds",
    type=click.FloatRange(0.1, 60.0),
    default=2.0,
    show_default=True,
    metavar="S",
    help="network: how long a pair of nodes is measured.",
)
@click.option(
    "--streams",
    type=click.IntRange(1, 64),
    default=1,
    show_default=True,
    metavar="N",
    help="network: connections at once; ps-lite has one.",
)
@click.option(
    "--batches",
    type=click.IntRange(2, 100_000),
    metavar="N",
    help="kvstore, scaling: batches of each worker; default: 10 and 200.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@pass_app
def bench(
    app: App,
    *,
    what: tuple[str, ...],
    kv_store: KvStore | None,
    seconds: float,
    streams: int,
    batches: int | None,
    as_json: bool,
) -> None:
    """Measure the cluster: network, kv-store, scaling; all three when none is named.

    network: bytes per second between nodes, pair by pair, and round trips. kvstore: what MXNet's own
    tools/bandwidth/measure.py says of the parameter servers. scaling: samples/s of a training script with 1, 2, 4 ...
    workers. The last two are jobs like others. While a job runs nothing is measured.
    """
    app.enter_cloud()
    state = describe_and_warn(app)
    document: dict[str, Any] = {}
    with ready_nodes(app, state) as (nodes, _), closing(head_of(app, nodes)) as head:
        _check_idle(head)
        configured = app.config.train.kv_store
        jobs = _Jobs(app, nodes, head, kv_store or (configured if configured in DIST_STORES else "dist_sync"))
        for name in dict.fromkeys(what or WHAT):
            if name == "network" and len(nodes) == 1:
                said = "there is one node, and so no network between nodes"
                if what:
                    raise ClusterError(said, hint="cluster resize 2")
                app.say(said)
                continue
            if name == "network":
                found = _measure_network(app, nodes, seconds=seconds, streams=streams)
            else:
                found = (
                    jobs.measure_kvstore(batches or 10) if name == "kvstore" else jobs.measure_scaling(batches or 200)
                )
            table, document[name] = found
            if not as_json:
                app.print(f"\n{table}" if len(document) > 1 else table)
    if as_json:
        app.print_json(document)


def _check_idle(head: Head) -> None:
    """Raises ClusterError while a job runs, or waits."""
    for record in ask_head(head):
        if not (record.has_ended or record.is_damaged):
            raise ClusterError(
                f"job {record.id} ({record.name}) is {record.state} on this cluster: it would be measured with the "
                "rest",
                hint=f"cluster logs -f {record.id}, which waits for its end; or cluster stop {record.id}",
            )


def _measure_network(
    app: App, nodes: Sequence[ReadyNode], *, seconds: float, streams: int
) -> tuple[str, dict[str, Any]]:
    """Measure pair by pair; the table and the document."""
    app.report(Event(kind="start", what="measuring the network"))

    def show(pair: Pair) -> None:
        app.report(Event(kind="start", what=f"{pair.bytes_per_s / 1e6:.0f} MB/s to {pair.target}", where=pair.source))

    result = measure_network(nodes, seconds=seconds, streams=streams, on_pair=show)
    return render_network(result), network_document(result)


@dataclass(frozen=True, slots=True)
class _Jobs:
    """The measurements that are jobs; each returns its table and its document."""

    app: App
    nodes: Sequence[ReadyNode]
    head: Head
    kv_store: KvStore

    def measure_kvstore(self, batches: int) -> tuple[str, dict[str, Any]]:
        """Run measure.py on all nodes."""
        self.app.report(Event(kind="start", what=f"measuring the kv-store on {len(self.nodes)} nodes"))
        result = measure_kvstore(self._run, self.nodes, batches=batches, **self._settings())
        worst = max(worker.worst_error for worker in result.workers)
        if worst > 1e-4:
            self.app.say(f"the sums in the kv-store are wrong by up to {worst:.2g} of their size", style="yellow")
        return render_kvstore(result), kvstore_document(result)

    def measure_scaling(self, batches: int) -> tuple[str, dict[str, Any]]:
        """Run a training script with more and more workers."""
        workload = choose_workload(self.nodes, batches=batches)
        runs = []
        for count in choose_counts(len(self.nodes)):
            what = f"training with {count} worker{'s' if count > 1 else ''}"
            self.app.report(Event(kind="start", what=what))
            settings = self._settings()
            runs.append(measure_scaling(self._run, self.nodes, count, workload=workload, batches=batches, **settings))
        scaling = Scaling(workload=workload, runs=tuple(runs))
        return render_scaling(scaling), scaling_document(scaling)

    def _settings(self) -> dict[str, Any]:
        config = self.app.config
        return {"config": config.train, "kv_store": self.kv_store, "mxnet": config.bootstrap.mxnet}

    def _run(self, job: Job, take: Callable[[JobEvent], None]) -> Result:
        return run_job(self.head, job.order, take=take, say=self.app.say)
