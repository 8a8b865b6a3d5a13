"""All clusters of an account in a region, by their tags. Only reads."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from provision.aws import aws_errors
from provision.config import NAME_PATTERN
from provision.describe import LIVE_STATES, number_nodes
from provision.keys import normal_public_key
from provision.model import TAG_NAME, TAG_OWNER, Node

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client
    from mypy_boto3_ec2.type_defs import FilterTypeDef, InstanceTypeDef, KeyPairInfoTypeDef, TagTypeDef

_PAGE_SIZE = 1000


@dataclass(frozen=True, kw_only=True, slots=True)
class ClusterSummary:
    """A cluster. nodes: live ones; ending: how many instances are shutting down. owner: an ARN, None when unknown.

    public_key: of its key pair in EC2 as `type body`, None when there is none.
    """

    name: str
    nodes: tuple[Node, ...] = ()
    ending: int = 0
    owner: str | None = None
    public_key: str | None = None


def describe_clusters(ec2: EC2Client) -> tuple[ClusterSummary, ...]:
    """Every cluster that has instances, a security group or a key pair, by name.

    A tag cluster:name whose value cannot be the name of a cluster is somebody else's. Three calls, and one more per
    further 1000 instances or groups. Raises AwsError.
    """
    carriers: list[FilterTypeDef] = [{"Name": "tag-key", "Values": [TAG_NAME]}]
    with aws_errors("looking for clusters"):
        instances = [
            instance
            for page in ec2.get_paginator("describe_instances").paginate(
                Filters=carriers, PaginationConfig={"PageSize": _PAGE_SIZE}
            )
            for reservation in page["Reservations"]
            for instance in reservation["Instances"]
            if instance["State"]["Name"] != "terminated"
        ]
        groups = [
            group
            for page in ec2.get_paginator("describe_security_groups").paginate(
                Filters=carriers, PaginationConfig={"PageSize": _PAGE_SIZE}
            )
            for group in page["SecurityGroups"]
        ]
        keys = ec2.describe_key_pairs(Filters=carriers, IncludePublicKey=True)["KeyPairs"]
    owners: dict[str, str | None] = {}
    for tags in (thing.get("Tags", []) for thing in (*keys, *groups, *instances)):
        name = _tag(tags, TAG_NAME) or ""
        if NAME_PATTERN.fullmatch(name):
            owners[name] = _tag(tags, TAG_OWNER) or owners.get(name)
    return tuple(_summary(name, owner=owners[name], instances=instances, keys=keys) for name in sorted(owners))


def _summary(
    name: str, *, owner: str | None, instances: Iterable[InstanceTypeDef], keys: Iterable[KeyPairInfoTypeDef]
) -> ClusterSummary:
    of_cluster = [instance for instance in instances if _tag(instance.get("Tags", []), TAG_NAME) == name]
    public = [key["PublicKey"] for key in keys if _tag(key.get("Tags", []), TAG_NAME) == name and key.get("PublicKey")]
    live = [instance for instance in of_cluster if instance["State"]["Name"] in LIVE_STATES]
    return ClusterSummary(
        name=name,
        nodes=number_nodes(live),
        ending=len(of_cluster) - len(live),
        owner=owner,
        public_key=normal_public_key(public[0]) if public else None,
    )


def _tag(tags: Iterable[TagTypeDef], key: str) -> str | None:
    return next((tag["Value"] for tag in tags if tag["Key"] == key), None)
