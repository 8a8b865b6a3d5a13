"""All clusters of an account in a region, by their tags. Only reads."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from provision.aws import aws_errors
from provision.config import NAME_PATTERN
from provision.describe import Instances, normal_public_key, read_security_group, sort_out
from provision.membership import KnownInstances, find_membership
from provision.model import TAG_NAME, TAG_OWNER, Instance, KeyPair, Node, UntrustedInstance, resource_name

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client
    from mypy_boto3_ec2.type_defs import (
        FilterTypeDef,
        InstanceTypeDef,
        KeyPairInfoTypeDef,
        SecurityGroupTypeDef,
        TagTypeDef,
    )

_PAGE_SIZE = 1000


@dataclass(frozen=True, kw_only=True, slots=True)
class ClusterSummary:
    """A cluster. nodes and untrusted: live instances, see provision/membership.py; ending: how many are shutting down.

    owner: an ARN, None when unknown.
    public_key: of its key pair in EC2 as `type body`, None when there is none.
    """

    name: str
    nodes: tuple[Node, ...] = ()
    untrusted: tuple[UntrustedInstance, ...] = ()
    ending: int = 0
    owner: str | None = None
    public_key: str | None = None

    @property
    def instances(self) -> tuple[Instance, ...]:
        """All live instances with the cluster's tag: all of them cost money."""
        return (*self.nodes, *self.untrusted)


def describe_clusters(ec2: EC2Client, *, known: Callable[[str], KnownInstances]) -> tuple[ClusterSummary, ...]:
    """Every cluster that has instances, a security group or a key pair, by name.

    known: what this machine knows of the instances of a cluster, by the cluster's name.
    A tag cluster:name whose value cannot be the name of a cluster is somebody else's. Three calls, and one more per
    further 1000 instances or groups. Raises AwsError.
    """
    carriers: list[FilterTypeDef] = [{"Name": "tag-key", "Values": [TAG_NAME]}]
    with aws_errors("looking for clusters"):
        instances = [
            (reservation["ReservationId"], instance)
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
    for tags in (thing.get("Tags", []) for thing in (*keys, *groups, *(instance for _, instance in instances))):
        name = _tag(tags, TAG_NAME) or ""
        if NAME_PATTERN.fullmatch(name):
            owners[name] = _tag(tags, TAG_OWNER) or owners.get(name)
    found = _Found(instances=instances, keys=keys, groups=groups)
    return tuple(_summary(name, owner=owners[name], found=found, known=known(name)) for name in sorted(owners))


@dataclass(frozen=True, kw_only=True, slots=True)
class _Found:
    """What carries a tag cluster:name. instances: each with the id of its reservation."""

    instances: list[tuple[str, InstanceTypeDef]]
    keys: list[KeyPairInfoTypeDef]
    groups: list[SecurityGroupTypeDef]


def _summary(name: str, *, owner: str | None, found: _Found, known: KnownInstances) -> ClusterSummary:
    public = [key["PublicKey"] for key in found.keys if _is_of(name, key.get("Tags", [])) and key.get("PublicKey")]
    public_key = normal_public_key(public[0]) if public else None
    named = resource_name(name)
    membership = find_membership(
        name=name,
        key_pair=KeyPair(key_name=named, public_key=public_key, ours=True) if public else None,
        groups=[read_security_group(group, name=name) for group in found.groups if group["GroupName"] == named],
        known=known,
    )
    of_cluster = [entry for entry in found.instances if _is_of(name, entry[1].get("Tags", []))]
    instances: Instances = sort_out(of_cluster, membership)
    return ClusterSummary(
        name=name,
        nodes=instances.live,
        untrusted=instances.untrusted,
        ending=len(instances.ended),
        owner=owner,
        public_key=public_key,
    )


def _is_of(name: str, tags: Iterable[TagTypeDef]) -> bool:
    return _tag(tags, TAG_NAME) == name


def _tag(tags: Iterable[TagTypeDef], key: str) -> str | None:
    return next((tag["Value"] for tag in tags if tag["Key"] == key), None)
