"""What instances may leave behind: volumes and network interfaces that nothing holds, and elastic addresses.

Volumes and interfaces end with their instance as `up` launches it. They stay when somebody detached them or switched
that off. Addresses are never ours: those with the cluster's tag are only told of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from provision.aws.clients import aws_errors
from provision.model import ClusterState, count
from provision.plan import Context, Step
from provision.resources.resource import ResourceKind, Scope, delete_each, look_by_tag, tagged

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client
    from mypy_boto3_ec2.type_defs import FilterTypeDef

VOLUME = "volume"
INTERFACE = "network interface"


def _list_volumes(ec2: EC2Client, filters: list[FilterTypeDef]) -> Iterable[str]:
    for page in ec2.get_paginator("describe_volumes").paginate(Filters=filters):
        for volume in page["Volumes"]:
            if volume["State"] not in {"deleting", "deleted"}:
                yield volume["VolumeId"]


def _list_interfaces(ec2: EC2Client, filters: list[FilterTypeDef]) -> Iterable[str]:
    for page in ec2.get_paginator("describe_network_interfaces").paginate(Filters=filters):
        for interface in page["NetworkInterfaces"]:
            yield interface["NetworkInterfaceId"]


def _list_addresses(ec2: EC2Client, filters: list[FilterTypeDef]) -> Iterable[str]:
    return (address["AllocationId"] for address in ec2.describe_addresses(Filters=filters)["Addresses"])


def _finder(
    what: str, ids: Callable[[EC2Client, list[FilterTypeDef]], Iterable[str]]
) -> Callable[[Scope], tuple[str, ...]]:
    """Finds the ids of those that nothing holds: they are `available`."""

    def find(scope: Scope) -> tuple[str, ...]:
        with aws_errors(f"looking for {what}s that cluster {scope.name} has left"):
            free: FilterTypeDef = {"Name": "status", "Values": ["available"]}
            return tuple(sorted(ids(scope.clients.ec2, [tagged(scope.name), free])))

    return find


def _plan_volumes(state: ClusterState) -> tuple[Step, ...]:
    found = VOLUMES.found_in(state)
    return (DeleteVolumes(volume_ids=found),) if found else ()


def _plan_interfaces(state: ClusterState) -> tuple[Step, ...]:
    found = NETWORK_INTERFACES.found_in(state)
    return (DeleteNetworkInterfaces(interface_ids=found),) if found else ()


@dataclass(frozen=True, kw_only=True, slots=True)
class DeleteVolumes(Step):
    """Delete volumes of the cluster that no instance holds any more."""

    volume_ids: tuple[str, ...]

    def describe(self) -> str:
        return f"delete {count(len(self.volume_ids), VOLUME)} that no instance has"

    def deletions(self) -> Iterable[tuple[str, Sequence[str]]]:
        return ((VOLUME, self.volume_ids),)

    def apply(self, context: Context) -> bool:
        """Deletes them, one call for each. False: all are gone. Raises ClientError."""
        ec2 = context.clients.ec2
        return delete_each(
            lambda each: ec2.delete_volume(VolumeId=each), self.volume_ids, gone={"InvalidVolume.NotFound"}
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class DeleteNetworkInterfaces(Step):
    """Delete network interfaces of the cluster that no instance holds any more."""

    interface_ids: tuple[str, ...]

    def describe(self) -> str:
        return f"delete {count(len(self.interface_ids), INTERFACE)} that no instance has"

    def deletions(self) -> Iterable[tuple[str, Sequence[str]]]:
        return ((INTERFACE, self.interface_ids),)

    def apply(self, context: Context) -> bool:
        """Deletes them, one call for each. False: all are gone. Raises ClientError."""
        ec2 = context.clients.ec2
        return delete_each(
            lambda each: ec2.delete_network_interface(NetworkInterfaceId=each),
            self.interface_ids,
            gone={"InvalidNetworkInterfaceID.NotFound"},
        )


VOLUMES: ResourceKind[tuple[str, ...]] = ResourceKind(
    kind=VOLUME,
    look=look_by_tag(VOLUME, _list_volumes, "delete-volume --volume-id"),
    find=_finder(VOLUME, _list_volumes),
    plan_down=_plan_volumes,
    actions=("DescribeVolumes", "DeleteVolume"),
)
NETWORK_INTERFACES: ResourceKind[tuple[str, ...]] = ResourceKind(
    kind=INTERFACE,
    look=look_by_tag(INTERFACE, _list_interfaces, "delete-network-interface --network-interface-id"),
    find=_finder(INTERFACE, _list_interfaces),
    plan_down=_plan_interfaces,
    actions=("DescribeNetworkInterfaces", "DeleteNetworkInterface"),
)
ADDRESSES: ResourceKind[None] = ResourceKind(
    kind="address",
    look=look_by_tag("address", _list_addresses, "release-address --allocation-id"),
    actions=("DescribeAddresses",),
)
