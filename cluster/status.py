"""Finds what `cluster status`, `list` and `cost` show."""

from datetime import UTC, datetime
from functools import cache
from pathlib import Path

from cluster.app import App
from cluster.costs import note_costs
from cluster.jobs import ask_for_job
from cluster.nodes.ec2 import describe_state, nodes_of
from cluster.recovery.lost_head import try_find_lost_head
from cluster.views.clusters import RegionClusters
from cluster.views.status import HeadJob, Status
from foundation.errors import AwsError, ClusterError
from foundation.thread_pool import bounded_pool, run_in_thread
from provision.aws.clients import Clients, make_clients
from provision.config import all_regions
from provision.cost import storage
from provision.cost.bill import ClusterBill, make_bills
from provision.describe import describe_clusters
from provision.files import ClusterFiles
from provision.membership import KnownInstances
from provision.model import ClusterState
from provision.preflight.prices import Prices, describe_prices, find_volume_price
from provision.resources.shared_volume import find_shared_volumes
from provision.volumes.config import find_head_volume


def describe_status(app: App) -> Status:
    """Describes the cluster, its running job and its cost, and notes the cost. Call enter_cloud first.

    Raises ClusterError or a subclass.
    """
    config, clients = app.config, app.clients
    state = describe_state(app)
    find_job = ask_for_job(app, nodes_of(app, state))
    noted = run_in_thread(lambda: note_costs(app, exists=state.exists))
    head_volume = find_head_volume(config.volumes)
    keep = head_volume is not None and head_volume.keep
    volumes = find_shared_volumes(clients.ec2, name=config.name, keep=keep)
    volume_price = find_volume_price(clients) if volumes else None
    lost = try_find_lost_head(app, state)
    is_headless = lost is not None and bool(state.nodes) and state.nodes[0].index > 0
    job = HeadJob(why="the head has ended") if is_headless else find_job()
    now, ledger = datetime.now(UTC), noted.result()
    bills = () if ledger is None else make_bills(ledger, now=now.timestamp())
    return Status(
        state=state,
        wanted=config.provision.nodes,
        now=now,
        bill=bills[-1] if bills and bills[-1].ended_at is None else None,
        at_work=app.files.find_command_at_work(),
        set_up=find_set_up(app, job),
        job=job,
        price_note=app.price_note,
        volumes=volumes,
        volume_usd_per_gib_month=volume_price,
        lost_head=None if lost is None else lost.why,
        lost_jobs=() if lost is None else tuple(record.id for record in lost.jobs),
    )


def describe_nothing(app: App) -> Status:
    """Describes a cluster whose cloud, a sandbox, does not run."""
    state = ClusterState(name=app.config.name)
    wanted = app.config.provision.nodes
    return Status(state=state, wanted=wanted, now=datetime.now(UTC), price_note=app.price_note)


def find_set_up(app: App, job: HeadJob | None) -> frozenset[str] | None:
    """Returns the ids of the instances that can train; None: all of them, as far as this machine knows.

    A machine knows the nodes that it has set up. On a second machine, only the head's answer counts.
    """
    if job is not None and job.why is None and not job.set_up:
        return frozenset()
    return frozenset(app.files.addresses()) or None


def describe_regions(app: App, *, is_there: bool) -> tuple[list[RegionClusters], list[AwsError]]:
    """Describes the clusters of all regions, in parallel. is_there: whether the cloud can be used.

    Returns an error for each region that does not answer, for example because a policy denies it, or the account has
    not enabled it. Raises it if there is only one region.
    """
    regions, found, errors = all_regions(app.config.provision), [], []
    clients = [make_clients(region) if is_there else None for region in regions]
    with bounded_pool() as pool:
        asked = [pool.submit(_describe_region, app, *each) for each in zip(regions, clients, strict=True)]
    for region, answer in zip(regions, asked, strict=True):
        try:
            found.append(answer.result())
        except AwsError as error:
            if len(regions) == 1:
                raise
            errors.append(AwsError(f"{region} is not listed: {error.message}", hint=error.hint))
    return found, errors


def _describe_region(app: App, region: str, clients: Clients | None) -> RegionClusters:
    clusters: tuple[ClusterState, ...] = ()
    prices: Prices = {}
    volume_price = None
    root = app.files_in(region).root
    known = cache(lambda name: _find_known(app, root.with_name(name)))
    if clients is not None:
        clusters = describe_clusters(clients.ec2, known=known)
        instances = [each for cluster in clusters for each in cluster.instances]
        pricing = run_in_thread(lambda: find_volume_price(clients)) if any(one.disks_gib for one in clusters) else None
        prices = describe_prices(clients, {(each.market, each.instance_type, each.zone) for each in instances})
        volume_price = None if pricing is None else pricing.result()
    return RegionClusters(
        region=region,
        clusters=clusters,
        prices=prices,
        usd_per_gib_month=volume_price,
        keys_here={cluster.name for cluster in clusters if _is_key_here(cluster, known(cluster.name).public_key)},
        now=datetime.now(UTC),
        price_note=app.price_note,
    )


def _find_known(app: App, root: Path) -> KnownInstances:
    """Returns the instances of a cluster that this machine knows; a damaged file is only a warning."""
    try:
        return ClusterFiles(root).known_instances()
    except ClusterError as error:
        app.message(error.message, style="yellow")
        return KnownInstances()


def _is_key_here(cluster: ClusterState, here: str | None) -> bool:
    """Whether the key of this machine is that of this cluster, and not of an earlier cluster of the same name."""
    return here is not None and (cluster.key_pair is None or cluster.key_pair.public_key in {None, here})


def describe_bills(app: App, *, now: float) -> tuple[ClusterBill, ...]:
    """Describes what the cluster costs, and what earlier ones of its name did, in all regions. Raises ClusterError."""
    note_costs(app)
    roots = [app.files_in(region).root for region in all_regions(app.config.provision)]
    bills = [bill for root in roots for bill in make_bills(storage.read(root), now=now)]
    return tuple(sorted(bills, key=lambda bill: bill.launched_at))
