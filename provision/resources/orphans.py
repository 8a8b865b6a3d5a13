"""Resources besides instances that may cost money: volumes and network interfaces.

`up` launches instances whose volumes and interfaces are deleted with them. These remain if someone detaches them or
turns that off.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from botocore.exceptions import ClientError

from provision.aws.clients import Clients, aws_errors, error_code
from provision.model import SHARED_ROLE, TAG_ROLE, ClusterState, count
from provision.plan import Context, Request, Step
from provision.resources.resource import ResourceKind, find_left_by_tag, find_tag, list_volumes, tagged

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


@dataclass(frozen=True, kw_only=True, slots=True)
class DeleteOrphans(Step):
    """Delete volumes or network interfaces of the cluster that no instance uses."""

    kind: str
    ids: tuple[str, ...]

    def describe(self) -> str:
        return f"delete {count(len(self.ids), f'unattached {self.kind}')}"

    def deletions(self) -> Iterable[tuple[str, Sequence[str]]]:
        return ((self.kind, self.ids),)

    def apply(self, context: Context) -> bool:
        """Deletes the resources, one call each. Returns False if none existed. Raises ClientError."""
        ec2, changed = context.clients.ec2, False
        for each in self.ids:
            try:
                if self.kind == VOLUME:
                    ec2.delete_volume(VolumeId=each)
                else:
                    ec2.delete_network_interface(NetworkInterfaceId=each)
                changed = True
            except ClientError as error:
                if error_code(error) not in {"InvalidVolume.NotFound", "InvalidNetworkInterfaceID.NotFound"}:
                    raise
        return changed


def _orphans(
    kind: str,
    ids: Callable[[EC2Client, list[FilterTypeDef]], Iterable[str]],
    command: str,
    *,
    actions: tuple[str, ...],
) -> ResourceKind[tuple[str, ...]]:
    """Returns a kind of which `down` deletes the `available` resources, which nothing uses."""

    def find(clients: Clients, request: Request) -> tuple[str, ...]:
        with aws_errors(f"looking for unattached {kind}s of cluster {request.name}"):
            free: FilterTypeDef = {"Name": "status", "Values": ["available"]}
            return tuple(sorted(ids(clients.ec2, [tagged(request.name), free])))

    def plan_down(state: ClusterState) -> tuple[Step, ...]:
        found: tuple[str, ...] = state.found.get(kind, ())
        return (DeleteOrphans(kind=kind, ids=found),) if found else ()

    find_left = find_left_by_tag(kind, ids, command)
    return ResourceKind(kind=kind, find_left=find_left, find=find, plan_down=plan_down, actions=actions)


VOLUMES = _orphans(VOLUME, _list_volumes, "delete-volume --volume-id", actions=("DescribeVolumes", "DeleteVolume"))
NETWORK_INTERFACES = _orphans(
    INTERFACE,
    _list_interfaces,
    "delete-network-interface --network-interface-id",
    actions=("DescribeNetworkInterfaces", "DeleteNetworkInterface"),
)
