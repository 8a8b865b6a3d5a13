"""Reads the input of the ledger from AWS: instances and volumes by the cluster's tag, and prices. Only reads."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from botocore.exceptions import BotoCoreError, ClientError
from msgspec.structs import replace

from foundation.thread_pool import bounded_pool
from provision.aws.clients import Clients, aws_errors
from provision.config import ProvisionConfig
from provision.cost.ledger import Ledger, LedgerVolume, Observation, SeenNode, set_prices
from provision.describe import find_instances
from provision.membership import KnownInstances, find_known
from provision.model import Instance
from provision.preflight.prices import PricedPlace, describe_prices, find_volume_price
from provision.resources.resource import list_volumes, tagged

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client
    from mypy_boto3_ec2.type_defs import VolumeTypeDef

_ENDED = frozenset({"stopping", "stopped", "shutting-down", "terminated"})


def observe(
    clients: Clients,
    *,
    name: str,
    exists: bool,
    known: Ledger,
    here: KnownInstances,
    config: ProvisionConfig,
    now: datetime,
) -> Observation:
    """Returns what EC2 reports of the cluster `name`. exists: whether EC2 has any of it, see ClusterState.exists.

    known: the ledger. here: the instances that this machine knows: of ended ones that the ledger lacks, others may be
    of an earlier cluster. EC2 no longer has their disks and addresses, which then are those of `config`. Asks EC2 for
    an instance's console only if its end is not in the ledger. Raises AwsError.
    """
    ec2 = clients.ec2
    with aws_errors(f"looking for the instances of cluster {name}"), bounded_pool() as pool:
        reading = pool.submit(find_instances, ec2, tagged(name))
        volumes = pool.submit(list_volumes, ec2, tagged(name)).result()
        claimed = reading.result()
    noted, ours = {node.instance_id for node in known.nodes}, find_known(claimed, here)
    unseen = {each.instance_id for each in claimed if each.state == "terminated"} - noted
    instances = [each for each in claimed if each.instance_id not in unseen - ours]
    usual: dict[str, Any] = {"disk_gib": config.volume_size_gib, "has_address": config.ssh_address == "public"}
    sizes = {volume["VolumeId"]: volume["Size"] for volume in volumes}
    roots = {volume_id for instance in instances for volume_id in instance.own_volume_ids}
    seen_at = known.seen.get(clients.region, 0.0)
    # Instance id -> when an instance in the ledger was last seen running; 0.0 if it was not running.
    in_ledger = {node.instance_id: seen_at if node.runs else 0.0 for node in known.nodes if node.periods}
    seen = [replace(_read(each, sizes), **(usual if each.instance_id in unseen else {})) for each in instances]
    with bounded_pool() as pool:
        nodes = tuple(pool.map(lambda node: _find_end(ec2, node, in_ledger), seen))
    return Observation(
        at=now.timestamp(),
        region=clients.region,
        exists=exists,
        nodes=nodes,
        volumes=tuple(_read_volume(volume, clients.region) for volume in volumes if _is_apart(volume, roots)),
    )


def _is_apart(volume: VolumeTypeDef, roots: Collection[str]) -> bool:
    """Returns whether the volume is not an instance's own."""
    attached = [each for each in volume.get("Attachments", []) if each.get("DeleteOnTermination")]
    return volume["VolumeId"] not in roots and not attached


def _read_volume(volume: VolumeTypeDef, region: str) -> LedgerVolume:
    made_at = volume["CreateTime"].astimezone(UTC).timestamp()
    return LedgerVolume(volume_id=volume["VolumeId"], region=region, size_gib=volume["Size"], made_at=made_at)


def _read(instance: Instance, sizes: Mapping[str, int]) -> SeenNode:
    disks = [sizes[volume_id] for volume_id in instance.own_volume_ids if volume_id in sizes]
    return SeenNode(
        instance_id=instance.instance_id,
        name=instance.instance_id if instance.tagged_index is None else f"node-{instance.tagged_index}",
        instance_type=instance.instance_type,
        market=instance.market,
        zone=instance.zone,
        state=instance.state,
        launched_at=instance.launched_at.timestamp(),
        started_at=(instance.started_at or instance.launched_at).timestamp(),
        ended_at=instance.stopped_at if instance.state in _ENDED else None,
        reclaimed=instance.is_reclaimed,
        disk_gib=sum(disks) if disks else None,
        has_address=instance.public_ip is not None,
        is_block=instance.is_block,
    )


def _find_end(ec2: EC2Client, node: SeenNode, in_ledger: Mapping[str, float]) -> SeenNode:
    """Returns the node with the time of its end. If no call ended it, its console's last output gives the time."""
    seen_at = in_ledger.get(node.instance_id)
    if node.state not in _ENDED or node.ended_at is not None or seen_at == 0.0:
        return node
    try:
        written_at = ec2.get_console_output(InstanceId=node.instance_id)["Timestamp"].astimezone(UTC).timestamp()
    except (ClientError, BotoCoreError, KeyError):  # the ledger then records how much is unknown
        return node
    return replace(node, ended_at=max(written_at, node.started_at, seen_at or 0.0))


# -- prices ------------------------------------------------------------------------------------------------------------


def find_prices(clients: Clients, ledger: Ledger) -> Callable[[Ledger], Ledger]:
    """Returns a function that adds the missing prices of this region. Raises nothing: unknown prices stay unknown."""
    here = [node for node in ledger.nodes if node.region == clients.region]
    places: dict[str, PricedPlace] = {
        node.instance_id: (node.market, node.instance_type, node.zone)
        for node in here
        if not node.is_block and (node.usd_per_hour is None or (node.market == "spot" and node.ended_at is None))
    }
    with bounded_pool() as pool:
        prices = pool.submit(describe_prices, clients, set(places.values())) if places else None
        disks = pool.submit(find_volume_price, clients) if here and ledger.usd_per_gib_month is None else None
    found = prices.result() if prices is not None else {}
    return partial(
        set_prices,
        per_hour={
            **{instance_id: found.get(place) for instance_id, place in places.items()},
            **{node.instance_id: 0.0 for node in here if node.is_block},
        },
        usd_per_gib_month=disks.result() if disks is not None else None,
    )
