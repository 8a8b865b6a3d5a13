"""What instances may leave behind: disks and network interfaces that carry the cluster's tag and that nothing holds.

Both end with their instance as `up` launches it. They stay when somebody detached them or switched that off.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from botocore.exceptions import ClientError

from provision.aws import aws_errors, error_code
from provision.context import Context
from provision.model import TAG_NAME
from provision.steps import DeleteNetworkInterfaces, DeleteVolumes

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client
    from mypy_boto3_ec2.type_defs import FilterTypeDef


@dataclass(frozen=True, kw_only=True, slots=True)
class Strays:
    """Volumes and network interfaces of a cluster that are `available`: by their ids, sorted."""

    volume_ids: tuple[str, ...] = ()
    interface_ids: tuple[str, ...] = ()


def find_strays(ec2: EC2Client, *, name: str) -> Strays:
    """The cluster's volumes and interfaces that nothing holds. Two calls, more for many. Raises AwsError."""
    filters: list[FilterTypeDef] = [
        {"Name": f"tag:{TAG_NAME}", "Values": [name]},
        {"Name": "status", "Values": ["available"]},
    ]
    with aws_errors(f"looking for disks and network interfaces that cluster {name} has left"):
        volumes = [
            volume["VolumeId"]
            for page in ec2.get_paginator("describe_volumes").paginate(Filters=filters)
            for volume in page["Volumes"]
        ]
        interfaces = [
            interface["NetworkInterfaceId"]
            for page in ec2.get_paginator("describe_network_interfaces").paginate(Filters=filters)
            for interface in page["NetworkInterfaces"]
        ]
    return Strays(volume_ids=tuple(sorted(volumes)), interface_ids=tuple(sorted(interfaces)))


def delete_volumes(step: DeleteVolumes, context: Context) -> bool:
    """Deletes them, one call for each. False: all are gone. Raises ClientError."""
    changed = False
    for volume_id in step.volume_ids:
        try:
            context.clients.ec2.delete_volume(VolumeId=volume_id)
        except ClientError as error:
            if error_code(error) != "InvalidVolume.NotFound":
                raise
        else:
            changed = True
    return changed


def delete_network_interfaces(step: DeleteNetworkInterfaces, context: Context) -> bool:
    """Deletes them, one call for each. False: all are gone. Raises ClientError."""
    changed = False
    for interface_id in step.interface_ids:
        try:
            context.clients.ec2.delete_network_interface(NetworkInterfaceId=interface_id)
        except ClientError as error:
            if error_code(error) != "InvalidNetworkInterfaceID.NotFound":
                raise
        else:
            changed = True
    return changed
