"""A fresh look, by the cluster's tag, at every kind of thing in EC2 that may cost money or be in the way."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from provision.aws import aws_errors
from provision.model import TAG_NAME
from provision.spot_requests import find_spot_requests
from provision.wait import poll

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client
    from mypy_boto3_ec2.type_defs import FilterTypeDef


@dataclass(frozen=True, kw_only=True, slots=True)
class Resource:
    """Something in AWS that is a cluster's. deletion: the command that would delete it; "" where that is not known."""

    kind: str
    resource_id: str
    deletion: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Unseen:
    """Something that could not be looked at, and why, in words."""

    kind: str
    why: str


Look = Callable[[], tuple[Resource, ...]]
"""Asks AWS for what is left of one kind."""


def find_leftovers(ec2: EC2Client, *, name: str) -> tuple[Resource, ...]:
    """All that EC2 has of the cluster `name`. One call for each kind, more where there is much. Raises AwsError."""
    return tuple(resource for look in ec2_looks(ec2, name=name).values() for resource in look())


def ec2_looks(ec2: EC2Client, *, name: str) -> dict[str, Look]:
    """By kind, in the plural: how to look for it in EC2. Each look raises AwsError."""
    return {f"{kind}es" if kind.endswith("s") else f"{kind}s": _look(ec2, kind, name=name) for kind in _KINDS}


def wait_for_nothing(looks: Mapping[str, Look], *, timeout_s: float) -> tuple[Resource, ...]:
    """What is left when nothing is, or when timeout_s seconds are over; in the order of `looks`.

    Only kinds of which something was left are looked at again. Raises AwsError.
    """
    left: dict[str, tuple[Resource, ...]] = {}
    waiting = list(looks)

    def look() -> bool | None:
        nonlocal waiting
        left.update({kind: looks[kind]() for kind in waiting})
        waiting = [kind for kind in waiting if left[kind]]
        return None if waiting else True

    poll(look, timeout_s=timeout_s)
    return tuple(resource for found in left.values() for resource in found)


def _look(ec2: EC2Client, kind: str, *, name: str) -> Look:
    ids, command = _KINDS[kind]
    filters: list[FilterTypeDef] = [{"Name": f"tag:{TAG_NAME}", "Values": [name]}]

    def look() -> tuple[Resource, ...]:
        with aws_errors(f"looking for what is left of cluster {name}"):
            return tuple(
                Resource(
                    kind=kind,
                    resource_id=found,
                    deletion=f"aws ec2 {command} {found} --region {ec2.meta.region_name}",
                )
                for found in ids(ec2, filters)
            )

    return look


def _spot_requests(ec2: EC2Client, filters: list[FilterTypeDef]) -> Iterator[str]:
    [name] = filters[0]["Values"]
    return (request.request_id for request in find_spot_requests(ec2, name=name))


def _instances(ec2: EC2Client, filters: list[FilterTypeDef]) -> Iterator[str]:
    for page in ec2.get_paginator("describe_instances").paginate(Filters=filters):
        for reservation in page["Reservations"]:
            for instance in reservation["Instances"]:
                if instance["State"]["Name"] != "terminated":
                    yield instance["InstanceId"]


def _volumes(ec2: EC2Client, filters: list[FilterTypeDef]) -> Iterator[str]:
    for page in ec2.get_paginator("describe_volumes").paginate(Filters=filters):
        for volume in page["Volumes"]:
            if volume["State"] not in {"deleting", "deleted"}:
                yield volume["VolumeId"]


def _interfaces(ec2: EC2Client, filters: list[FilterTypeDef]) -> Iterator[str]:
    for page in ec2.get_paginator("describe_network_interfaces").paginate(Filters=filters):
        for interface in page["NetworkInterfaces"]:
            yield interface["NetworkInterfaceId"]


def _addresses(ec2: EC2Client, filters: list[FilterTypeDef]) -> Iterator[str]:
    return (address["AllocationId"] for address in ec2.describe_addresses(Filters=filters)["Addresses"])


def _security_groups(ec2: EC2Client, filters: list[FilterTypeDef]) -> Iterator[str]:
    for page in ec2.get_paginator("describe_security_groups").paginate(Filters=filters):
        for group in page["SecurityGroups"]:
            yield group["GroupId"]


def _placement_groups(ec2: EC2Client, filters: list[FilterTypeDef]) -> Iterator[str]:
    for group in ec2.describe_placement_groups(Filters=filters)["PlacementGroups"]:
        if group.get("State", "available") not in {"deleting", "deleted"}:
            yield group["GroupName"]


def _key_pairs(ec2: EC2Client, filters: list[FilterTypeDef]) -> Iterator[str]:
    return (key["KeyName"] for key in ec2.describe_key_pairs(Filters=filters)["KeyPairs"])


# Kind -> who finds the ids of what is left of it, and the aws-cli's command that deletes one.
_KINDS: dict[str, tuple[Callable[[EC2Client, list[FilterTypeDef]], Iterator[str]], str]] = {
    "spot request": (_spot_requests, "cancel-spot-instance-requests --spot-instance-request-ids"),
    "instance": (_instances, "terminate-instances --instance-ids"),
    "volume": (_volumes, "delete-volume --volume-id"),
    "network interface": (_interfaces, "delete-network-interface --network-interface-id"),
    "address": (_addresses, "release-address --allocation-id"),
    "security group": (_security_groups, "delete-security-group --group-id"),
    "placement group": (_placement_groups, "delete-placement-group --group-name"),
    "key pair": (_key_pairs, "delete-key-pair --key-name"),
}
