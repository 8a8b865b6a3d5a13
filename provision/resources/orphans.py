"""Resources besides instances that may cost money: volumes and network interfaces.

`up` launches instances whose volumes and interfaces are deleted with them. These remain if someone detaches them or
turns that off.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from provision.aws.clients import Clients, aws_errors
from provision.model import SHARED_ROLE, TAG_ROLE, ClusterState
from provision.plan import Request, Step
from provision.resources.resource import (
    DeleteResources,
    ResourceKind,
    delete_volume,
    find_left_by_tag,
    find_tag,
    list_volumes,
    tagged,
)

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client
    from mypy_boto3_ec2.type_defs import FilterTypeDef

VOLUME = "volume"
INTERFACE = "network interface"


def _list_volumes(ec2: EC2Client, filters: list[FilterTypeDef]) -> Iterable[str]:
    """Lists volumes, without the head's volume (shared_volume.py)."""
    volumes = list_volumes(ec2, *filters)
    return [each["VolumeId"] for each in volumes if find_tag(each.get("Tags", []), TAG_ROLE) != SHARED_ROLE]


def _list_interfaces(ec2: EC2Client, filters: list[FilterTypeDef]) -> Iterable[str]:
    pages = ec2.get_paginator("describe_network_interfaces").paginate(Filters=filters)
    return pages.search("NetworkInterfaces[].NetworkInterfaceId")


def _delete_interface(ec2: EC2Client, interface_id: str) -> None:
    ec2.delete_network_interface(NetworkInterfaceId=interface_id)


def _orphans(
    kind: str,
    ids: Callable[[EC2Client, list[FilterTypeDef]], Iterable[str]],
    command: str,
    *,
    call: Callable[[EC2Client, str], object],
    gone: str,
    actions: tuple[str, ...],
) -> ResourceKind[tuple[str, ...]]:
    """Returns a kind of which `down` deletes the `available` resources, which nothing uses."""

    def find(clients: Clients, request: Request) -> tuple[str, ...]:
        with aws_errors(f"looking for unattached {kind}s of cluster {request.name}"):
            free: FilterTypeDef = {"Name": "status", "Values": ["available"]}
            return tuple(sorted(ids(clients.ec2, [tagged(request.name), free])))

    def plan_down(state: ClusterState) -> tuple[Step, ...]:
        found: tuple[str, ...] = state.found.get(kind, ())
        return (DeleteResources(kind=kind, ids=found, call=call, gone=gone),) if found else ()

    find_left = find_left_by_tag(kind, ids, command)
    return ResourceKind(kind=kind, find_left=find_left, find=find, plan_down=plan_down, actions=actions)


VOLUMES = _orphans(
    VOLUME,
    _list_volumes,
    "delete-volume --volume-id",
    call=delete_volume,
    gone="InvalidVolume.NotFound",
    actions=("DescribeVolumes", "DeleteVolume"),
)
NETWORK_INTERFACES = _orphans(
    INTERFACE,
    _list_interfaces,
    "delete-network-interface --network-interface-id",
    call=_delete_interface,
    gone="InvalidNetworkInterfaceID.NotFound",
    actions=("DescribeNetworkInterfaces", "DeleteNetworkInterface"),
)
