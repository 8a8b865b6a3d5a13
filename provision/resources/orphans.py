"""Resources besides instances that may cost money: volumes and network interfaces.

`up` launches instances whose volumes and interfaces are deleted with them. These remain if someone detaches them or
turns that off.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from provision.aws.clients import Clients, aws_errors
from provision.model import SHARED_ROLE, TAG_ROLE, ClusterState
from provision.plan import Request, Step
from provision.resources.resource import ResourceKind, find_tag, is_there, tagged

if TYPE_CHECKING:
    from mypy_boto3_ec2.type_defs import FilterTypeDef

Orphans = ResourceKind[tuple[str, ...]]


def _delete_unused(kind: Orphans) -> Orphans:
    """Returns the kind, of which `down` deletes the `available` resources, which nothing uses."""

    def find(clients: Clients, request: Request) -> tuple[str, ...]:
        with aws_errors(f"looking for unattached {kind.kind}s of cluster {request.name}"):
            free: FilterTypeDef = {"Name": "status", "Values": ["available"]}
            return tuple(sorted(kind.find_ids(clients.ec2, tagged(request.name), free)))

    def plan_down(state: ClusterState) -> tuple[Step, ...]:
        return kind.plan_deletion(*(kind.found_in(state) or ()))

    return replace(kind, find=find, plan_down=plan_down)


VOLUMES = _delete_unused(
    Orphans(
        kind="volume",
        listing="describe_volumes",
        ids=lambda page: (  # without the head's volume (shared_volume.py)
            each["VolumeId"]
            for each in filter(is_there, page["Volumes"])
            if find_tag(each.get("Tags", []), TAG_ROLE) != SHARED_ROLE
        ),
        deletion="delete-volume --volume-id",
        gone="InvalidVolume.NotFound",
    )
)
NETWORK_INTERFACES = _delete_unused(
    Orphans(
        kind="network interface",
        listing="describe_network_interfaces",
        ids=lambda page: (each["NetworkInterfaceId"] for each in page["NetworkInterfaces"]),
        deletion="delete-network-interface --network-interface-id",
        gone="InvalidNetworkInterfaceID.NotFound",
    )
)
