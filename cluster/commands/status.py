"""`cluster status`, `cluster list` and `cluster cost`."""

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import click

from cluster import existing_hosts
from cluster.app import App, pass_app, wide_option
from cluster.costs import note_costs
from cluster.jobs import ask_for_job
from cluster.nodes.ec2 import Ec2Nodes
from cluster.recovery.lost_head import LostHead, look_for_lost_head
from cluster.views.clusters import list_document, render_clusters
from cluster.views.cost import cost_document, render_costs
from cluster.views.status import HeadJob, Status, render_status, status_document
from foundation.errors import ClusterError
from foundation.thread_pool import run_in_thread
from provision.aws.clients import Clients, make_clients
from provision.config import all_regions
from provision.cost import storage
from provision.cost.bill import ClusterBill, make_bills
from provision.cost.ledger import Ledger
from provision.cost.observe import find_histories
from provision.describe import ClusterSummary, describe_cluster, describe_clusters
from provision.files import ClusterFiles
from provision.membership import KnownInstances
from provision.model import ClusterState
from provision.preflight.prices import describe_node_prices, find_volume_price
from provision.resources.shared_volume import SharedVolume, find_shared_volumes
from provision.volumes.config import find_head_volume

T = TypeVar("T")


@click.command("status")
@click.option("--json", "as_json", is_flag=True, help="Print the status as JSON.")
@wide_option
@pass_app
def status(app: App, *, as_json: bool, wide: bool) -> None:
    """Show the cluster's nodes, their cost and the running job.

    It also shows which nodes stopped or terminated unexpectedly, and why, and which job waits for nodes that it has
    lost. It only reads: `cluster up` replaces the nodes.
    """
    if not app.has_instances:
        existing_hosts.show_status(app, as_json=as_json, wide=wide)
        return
    is_there = app.find_cloud()
    config = app.config
    state, prices, job = ClusterState(name=config.name), {}, None
    volumes: tuple[SharedVolume, ...] = ()
    volume_price = None
    lost: LostHead | None = None
    if is_there:
        clients = app.clients
        state = describe_cluster(clients.ec2, name=config.name, known=app.files.known_instances())
        find_job = ask_for_job(app, Ec2Nodes(state, config.provision))
        noted = run_in_thread(lambda: note_costs(app, exists=state.exists))
        prices = dict(describe_node_prices(clients, (*state.nodes, *state.untrusted)))
        head_volume = find_head_volume(config.volumes)
        keep = head_volume is not None and head_volume.keep
        volumes = find_shared_volumes(clients.ec2, name=config.name, keep=keep)
        volume_price = find_volume_price(clients) if volumes else None
        lost = look_for_lost_head(app, state)
        is_headless = lost is not None and bool(state.nodes) and state.nodes[0].index > 0
        job = HeadJob(why="the head has ended") if is_headless else find_job()
        noted.result()
    shown = Status(
        state=state,
        asked=config.provision.nodes,
        now=datetime.now(UTC),
        prices=prices,
        at_work=app.files.find_command_at_work(),
        set_up=find_set_up(app, job),
        job=job,
        price_note=app.price_note,
        volumes=volumes,
        volume_usd_per_gib_month=volume_price,
        lost_head=None if lost is None else lost.why,
        lost_jobs=() if lost is None else tuple(record.id for record in lost.jobs),
    )
    app.show(
        render_status(shown, columns=app.find_columns(wide=wide)),
        status_document(shown),
        as_json=as_json,
        wrapped=not wide,
    )


def find_set_up(app: App, job: HeadJob | None) -> frozenset[str] | None:
    """Returns the ids of the instances that can train; None: all of them, as far as this machine knows.

    A machine knows the nodes that it has set up. On a second machine, only the head's answer counts.
    """
    if job is not None and job.why is None and not job.set_up:
        return frozenset()
    return frozenset(app.files.addresses()) or None


@click.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print the list as JSON.")
@wide_option
@pass_app
def list_(app: App, *, as_json: bool, wide: bool) -> None:
    """List all clusters in the region, or in all of [provision] regions.

    The list includes clusters that other people or machines created. KEY shows whether this machine has the private
    key. With cloud = "hosts", it lists the clusters that this machine set up on existing hosts.
    """
    if not app.has_instances:
        existing_hosts.show_list(app, as_json=as_json, wide=wide)
        return
    is_there = app.find_cloud()
    regions = all_regions(app.config.provision)
    tables, document = [], []
    for region in regions:
        table, entries = _list_region(app, region, is_there=is_there, columns=app.find_columns(wide=wide))
        tables.append(f"{region}:\n{table}" if len(regions) > 1 and entries else table)
        document += entries
    app.show("\n".join(tables), document, as_json=as_json, wrapped=not wide)


def _list_region(app: App, region: str, *, is_there: bool, columns: int | None) -> tuple[str, list[dict[str, Any]]]:
    """Returns a region's clusters as text and as JSON. is_there: whether the cloud can be used. Raises AwsError."""
    clusters: tuple[ClusterSummary, ...] = ()
    prices = {}
    root = app.files_in(region).root
    if is_there:
        clients = make_clients(region)
        clusters = describe_clusters(
            clients.ec2,
            known=lambda name: _read_files(app, root, name, ClusterFiles.known_instances, KnownInstances()),
        )
        prices = dict(describe_node_prices(clients, [each for cluster in clusters for each in cluster.instances]))
    keys_here = {cluster.name for cluster in clusters if _is_key_here(app, root, cluster)}
    now = datetime.now(UTC)
    table = render_clusters(
        clusters,
        region=region,
        prices=prices,
        keys_here=keys_here,
        now=now,
        price_note=app.price_note,
        columns=columns,
    )
    document = list_document(clusters, prices=prices, keys_here=keys_here, now=now, price_note=app.price_note)
    return table, [{**entry, "region": region} for entry in document]


def _read_files(app: App, root: Path, name: str, read: Callable[[ClusterFiles], T], otherwise: T) -> T:
    """Returns what `read` finds in a cluster's files. A damaged file is only a warning, and returns `otherwise`.

    root: the folder of another cluster's files.
    """
    try:
        return read(ClusterFiles(root.with_name(name)))
    except ClusterError as error:
        app.say(error.message, style="yellow")
        return otherwise


def _is_key_here(app: App, root: Path, cluster: ClusterSummary) -> bool:
    """Whether this machine has the private key of this cluster, and not that of an earlier cluster of the same name."""
    here = _read_files(app, root, cluster.name, ClusterFiles.find_public_key, None)
    return here is not None and cluster.public_key in {None, here}


@click.command("cost")
@click.option("--json", "as_json", is_flag=True, help="Print the costs as JSON.")
@wide_option
@pass_app
def cost(app: App, *, as_json: bool, wide: bool) -> None:
    """Show the costs of the cluster and of earlier ones of its name.

    For each node: the instance, its disk and its public address, from launch to end. Spot instances are billed at each
    hour's price. With [data] results in S3, the costs are also kept there, in costs/NAME.json.
    """
    app.check_has_instances("cost", instead="cluster status")
    now = datetime.now(UTC).timestamp()
    bills: tuple[ClusterBill, ...] = ()
    if app.find_cloud():
        ledger = note_costs(app)
        bills = find_bills(app.clients, storage.read(app.files.root) if ledger is None else ledger, now=now)
    app.show(
        render_costs(app.config.name, bills, now=now, price_note=app.price_note, columns=app.find_columns(wide=wide)),
        cost_document(app.config.name, bills, now=now, price_note=app.price_note),
        as_json=as_json,
        wrapped=not wide,
    )


def find_bills(clients: Clients, ledger: Ledger, *, now: float) -> tuple[ClusterBill, ...]:
    """Returns the bills of a ledger, with the spot prices of the running instances. Does not raise."""
    running = [node for node in ledger.nodes if node.runs]
    return make_bills(ledger, histories=find_histories(clients, running), now=now)
