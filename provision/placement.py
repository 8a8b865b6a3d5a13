"""Carries out the steps about the placement group: nodes that are close together talk faster."""

from __future__ import annotations

from typing import TYPE_CHECKING

from botocore.exceptions import ClientError

from provision.aws import NOT_FOUND_TIMEOUT_S, aws_words, error_code, not_ours
from provision.context import Context
from provision.describe import find_placement_group
from provision.errors import AwsError
from provision.model import tags
from provision.steps import CreatePlacementGroup, DeletePlacementGroup
from provision.wait import poll

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client
    from mypy_boto3_ec2.type_defs import TagSpecificationTypeDef

IN_USE_TIMEOUT_S = 180.0


def create_placement_group(step: CreatePlacementGroup, context: Context) -> bool:
    """Makes it, or takes the one of that name if it is ours. False: it was there."""
    named = tags(name=context.cluster, owner=context.owner, role="placement-group")
    specification: TagSpecificationTypeDef = {
        "ResourceType": "placement-group",
        "Tags": [{"Key": key, "Value": value} for key, value in named.items()],
    }
    try:
        context.clients.ec2.create_placement_group(
            GroupName=step.group_name, Strategy="cluster", TagSpecifications=[specification]
        )
    except ClientError as error:
        if error_code(error) != "InvalidPlacementGroup.Duplicate":
            raise
        existing = poll(
            lambda: find_placement_group(context.clients.ec2, name=context.cluster),
            timeout_s=NOT_FOUND_TIMEOUT_S,
        )
        if existing is None or not existing.ours:
            raise not_ours(error, f"placement group {step.group_name}", name=context.cluster) from error
        return False
    return True


def delete_placement_group(step: DeletePlacementGroup, context: Context) -> bool:
    """Deletes it once no instance is in it. False: it was gone."""
    said = ""

    def delete() -> bool | None:
        nonlocal said
        try:
            context.clients.ec2.delete_placement_group(GroupName=step.group_name)
        except ClientError as error:
            if error_code(error) == "InvalidPlacementGroup.Unknown":
                return False
            if error_code(error) != "InvalidPlacementGroup.InUse":
                raise
            said = aws_words(error)
            return None
        return True

    deleted = poll(delete, timeout_s=IN_USE_TIMEOUT_S)
    if deleted is None:
        blocking = ", ".join(_find_instances(context.clients.ec2, step.group_name)) or "by what, AWS does not say"
        raise AwsError(
            f"AWS says: {said}: the placement group {step.group_name} is still in use after "
            f"{IN_USE_TIMEOUT_S:.0f} s: {blocking}",
            hint="end the instances in it if they are not this cluster's, then: cluster down",
        )
    return deleted


def _find_instances(ec2: EC2Client, group_name: str) -> tuple[str, ...]:
    """Ids of the instances in a placement group."""
    pages = ec2.get_paginator("describe_instances").paginate(
        Filters=[
            {"Name": "placement-group-name", "Values": [group_name]},
            {"Name": "instance-state-name", "Values": ["pending", "running", "shutting-down", "stopping", "stopped"]},
        ]
    )
    return tuple(
        instance["InstanceId"]
        for page in pages
        for reservation in page["Reservations"]
        for instance in reservation["Instances"]
    )
