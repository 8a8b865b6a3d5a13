"""`cluster bench`."""

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, get_args

import click

from bootstrap.apply import ReadyNode
from cluster.app import App, pass_app
from cluster.job_head import head_of
from cluster.job_sources import ask_head
from cluster.session import describe_and_warn, ready_nodes
from provision.errors import ClusterError
from provision.progress import Event
from train.bench_jobs import choose_counts, choose_workload, measure_kvstore, measure_scaling
from train.bench_network import Pair, measure_network
from train.choices import KvStore
from train.cluster_bench import (
    Scaling,
    kvstore_document,
    network_document,
    render_kvstore,
    render_network,
    render_scaling,
    scaling_document,
)
from train.events import Event as JobEvent
from train.events import Result
from train.head import Head
from train.job import Job
from train.run import run_job

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
def command(
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
    with ready_nodes(app, state) as (nodes, _), closing(head_of(app, nodes)) as head:
        _check_idle(head)
        configured = app.config.train.kv_store
        bench = _Bench(
            app=app,
            nodes=nodes,
            head=head,
            kv_store=kv_store or (configured if configured in DIST_STORES else "dist_sync"),
            seconds=seconds,
            streams=streams,
            batches=batches,
            as_json=as_json,
        )
        for name in dict.fromkeys(what or WHAT):
            if name == "network" and len(nodes) == 1:
                _skip_network(app, named=bool(what))
            else:
                getattr(bench, name)()
    if as_json:
        app.print_json(bench.document)


def _check_idle(head: Head) -> None:
    """Raises ClusterError while a job runs, or waits."""
    for record in ask_head(head):
        if not (record.has_ended or record.is_damaged):
            raise ClusterError(
                f"job {record.id} ({record.name}) is {record.state} on this cluster: it would be measured with the "
                "rest",
                hint=f"cluster logs -f {record.id}, which waits for its end; or cluster stop {record.id}",
            )


def _skip_network(app: App, *, named: bool) -> None:
    said = "there is one node, and so no network between nodes"
    if named:
        raise ClusterError(said, hint="cluster resize 2")
    app.say(said)


@dataclass(kw_only=True, slots=True)
class _Bench:
    """One run of the command. Each table is printed as soon as it is complete; JSON at the end."""

    app: App
    nodes: Sequence[ReadyNode]
    head: Head
    kv_store: KvStore
    seconds: float
    streams: int
    batches: int | None
    as_json: bool
    document: dict[str, Any] = field(default_factory=dict)
    printed: int = 0

    def network(self) -> None:
        """Pair by pair."""
        self._begin("measuring the network")

        def show(pair: Pair) -> None:
            what = f"{pair.bytes_per_s / 1e6:.0f} MB/s to {pair.target}"
            self.app.report(Event(kind="start", what=what, where=pair.source))

        result = measure_network(self.nodes, seconds=self.seconds, streams=self.streams, on_pair=show)
        self._finish("network", network_document(result), render_network(result))

    def kvstore(self) -> None:
        """measure.py, on all nodes."""
        self._begin(f"measuring the kv-store on {len(self.nodes)} nodes")
        result = measure_kvstore(
            self._run,
            self.nodes,
            config=self.app.config.train,
            kv_store=self.kv_store,
            batches=self.batches or 10,
            mxnet=self.app.config.bootstrap.mxnet,
        )
        self._finish("kvstore", kvstore_document(result), render_kvstore(result))
        worst = max(worker.worst_error for worker in result.workers)
        if worst > 1e-4:
            self.app.say(f"the sums in the kv-store are wrong by up to {worst:.2g} of their size", style="yellow")

    def scaling(self) -> None:
        """A training script, with more and more workers."""
        workload = choose_workload(self.nodes, batches=self.batches or 200)
        runs = []
        for count in choose_counts(len(self.nodes)):
            self._begin(f"training with {count} worker{'s' if count > 1 else ''}")
            run = measure_scaling(
                self._run,
                self.nodes,
                count,
                config=self.app.config.train,
                kv_store=self.kv_store,
                workload=workload,
                batches=self.batches or 200,
                mxnet=self.app.config.bootstrap.mxnet,
            )
            runs.append(run)
        scaling = Scaling(workload=workload, runs=tuple(runs))
        self._finish("scaling", scaling_document(scaling), render_scaling(scaling))

    def _run(self, job: Job, take: Callable[[JobEvent], None]) -> Result:
        return run_job(self.head, job.order(secrets={}), take=take, say=self.app.say)

    def _begin(self, what: str) -> None:
        self.app.report(Event(kind="start", what=what))

    def _finish(self, name: str, document: dict[str, Any], table: str) -> None:
        self.document[name] = document
        if not self.as_json:
            self.app.print("\n" + table if self.printed else table)
        self.printed += 1
