"""Reads a cluster, or all clusters of a region, by EC2's tags. Few calls suffice for any number of nodes.

A tag does not make an instance a node: provision/membership.py decides that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from foundation.thread_pool import bounded_pool
from provision.aws.clients import aws_errors
from provision.config import NAME_PATTERN
from provision.membership import (
    Claim,
    KnownInstances,
    find_key_problem,
    find_known,
    find_problems,
    find_tokens,
)
from provision.model import (
    TAG_INDEX,
    TAG_LEASE,
    TAG_NAME,
    TAG_OWNER,
    ClusterState,
    KeyPair,
    Market,
    Node,
    SecurityGroup,
    UntrustedInstance,
    parse_indices,
    resource_name,
)
from provision.plan import Context
from provision.resources.key_pair import find_key_pair, read_key_pair
from provision.resources.resource import find_tag, list_volumes, tagged
from provision.resources.security_group import find_security_groups, read_security_group

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client
    from mypy_boto3_ec2.type_defs import (
        FilterTypeDef,
        InstanceTypeDef,
    )


LIVE_STATES = ("pending", "running", "stopping", "stopped")
_RUNS = ("pending", "running")
_PAGE_SIZE = 1000


class ClaimedInstance(Struct, frozen=True, kw_only=True):
    """An instance with the cluster's tag, and what it claims to be."""

    instance: InstanceTypeDef
    claim: Claim


def describe_cluster(ec2: EC2Client, *, name: str, known: KnownInstances) -> ClusterState:
    """Returns everything that EC2 lists of the cluster `name`, even if it is incomplete.

    known: the instances that this machine knows. Makes three parallel calls, plus one per 1000 instances. Raises
    AwsError.
    """
    with bounded_pool() as pool:
        reading_key = pool.submit(find_key_pair, ec2, name=name)
        reading_groups = pool.submit(find_security_groups, ec2, name=name)
        reading_instances = pool.submit(_find_tagged, ec2, name=name)
    found = reading_instances.result()
    return _read_state(name, found, reading_key.result(), reading_groups.result(), known)


def describe_now(context: Context) -> ClusterState:
    """Returns the cluster's instances and groups while a plan is applied. Raises AwsError.

    Makes one read, the first time two in parallel. The key pair is not checked again: the plan rejects one that is not
    the cluster's.
    """
    ec2, name = context.clients.ec2, context.cluster
    with bounded_pool() as pool:
        reading = pool.submit(_find_tagged, ec2, name=name)
        if context.groups is None:
            context.groups = find_security_groups(ec2, name=name)
    found = reading.result()
    group_ids = frozenset() if context.made_group_id is None else frozenset({context.made_group_id})
    return _read_state(name, found, None, context.groups, context.files.known_instances(), created_group_ids=group_ids)


def find_launched(ec2: EC2Client, *, name: str) -> Mapping[str, frozenset[str]]:
    """ClientToken -> ids of a cluster's instances, including ended ones that EC2 still lists. Raises AwsError."""
    return find_tokens(found.claim for found in _find_tagged(ec2, name=name))


def find_end(ec2: EC2Client, instance_id: str) -> str | None:
    """Returns how an instance has ended or stopped, such as "is stopped: REASON"; None otherwise. Raises AwsError."""
    by_id: FilterTypeDef = {"Name": "instance-id", "Values": [instance_id]}  # unlike InstanceIds, it may be unknown
    with aws_errors(f"looking for {instance_id}"):
        found = [each.instance for each in find_instances(ec2, by_id)]
    states = [(instance["State"]["Name"], _reason(instance)) for instance in found]
    return next((f"is {state}" + (f": {why}" if why else "") for state, why in states if state not in _RUNS), None)


def _find_tagged(ec2: EC2Client, *, name: str) -> list[ClaimedInstance]:
    with aws_errors(f"looking for the nodes of cluster {name}"):
        return find_instances(ec2, tagged(name))


def find_instances(ec2: EC2Client, wanted: FilterTypeDef) -> list[ClaimedInstance]:
    """Returns instances, also ended ones, 1000 with each call. Raises boto3's errors."""
    pages = ec2.get_paginator("describe_instances")
    return [
        _claimed(reservation["ReservationId"], instance)
        for page in pages.paginate(Filters=[wanted], PaginationConfig={"PageSize": _PAGE_SIZE})
        for reservation in page["Reservations"]
        for instance in reservation["Instances"]
    ]


def _claimed(reservation_id: str, instance: InstanceTypeDef) -> ClaimedInstance:
    claim = Claim(
        instance_id=instance["InstanceId"],
        reservation_id=reservation_id,
        key_name=instance.get("KeyName"),
        group_ids=frozenset(group["GroupId"] for group in instance.get("SecurityGroups", [])),
        client_token=instance.get("ClientToken") or None,
        launched_at=first_launched(instance).timestamp(),
    )
    return ClaimedInstance(instance=instance, claim=claim)


def _read_state(
    name: str,
    found: list[ClaimedInstance],
    key_pair: KeyPair | None,
    groups: Collection[SecurityGroup],
    known: KnownInstances,
    *,
    created_group_ids: frozenset[str] = frozenset(),
) -> ClusterState:
    """Sorts out which instances are nodes. created_group_ids: ids of a group that EC2's lists may not have yet."""
    key_problem = find_key_problem(key_pair, known.public_key)
    group_ids = created_group_ids.union(group.group_id for group in groups if group.ours)
    claims = [each.claim for each in found]
    ours = find_known(claims, known)
    by_state = [(each, each.instance["State"]["Name"]) for each in found]
    live = [
        (each, find_problems(each.claim, name=name, key_problem=key_problem, group_ids=group_ids))
        for each, state in by_state
        if state in LIVE_STATES
    ]
    trusted = {
        each.claim.instance_id: each.instance
        for each, problems in live
        if each.claim.instance_id in ours and not problems
    }
    nodes = number_nodes(trusted.values())
    begun = min((node.launched_at for node in nodes), default=None)
    return ClusterState(
        name=name,
        nodes=nodes,
        untrusted=tuple(
            _untrusted(each, is_known=each.claim.instance_id in ours, problems=problems)
            for each, problems in sorted(live, key=lambda pair: _age_order(pair[0].instance))
            if each.claim.instance_id not in trusted
        ),
        ending=tuple(sorted(each.claim.instance_id for each, state in by_state if state == "shutting-down")),
        ended={
            each.claim.instance_id: _reason(each.instance) or state
            for each, state in by_state
            if state not in LIVE_STATES
        },
        outlived=frozenset(
            each.claim.instance_id
            for each, state in by_state
            if begun is not None and state == "terminated" and each.instance["LaunchTime"].astimezone(UTC) < begun
        ),
        by_token=find_tokens(claims),
        key_pair=key_pair,
        security_groups=tuple(groups),
    )


def number_nodes(instances: Iterable[InstanceTypeDef]) -> tuple[Node, ...]:
    """Returns the nodes in the order of their index.

    All instances of one RunInstances call have the same tags. Their tag cluster:index lists the indices of the call,
    and EC2's launch index selects one of them. So an instance keeps its index, even when others end. An instance
    without a valid tag, or with an index that is taken (by two concurrent `up` commands), gets the next free index.
    """
    ordered = sorted(instances, key=_age_order)
    taken: dict[int, InstanceTypeDef] = {}
    unnumbered: list[InstanceTypeDef] = []
    for instance in ordered:
        claim = tagged_index(instance)
        if claim is None or claim in taken:
            unnumbered.append(instance)
        else:
            taken[claim] = instance
    free = (index for index in range(len(taken) + len(unnumbered)) if index not in taken)
    taken |= dict(zip(free, unnumbered, strict=False))
    return tuple(
        _node(instance, index=index, head=position == 0)
        for position, (index, instance) in enumerate(sorted(taken.items()))
    )


def first_launched(instance: InstanceTypeDef) -> datetime:
    """The time of the first launch: a start changes LaunchTime, but the first network interface stays attached."""
    times = [
        interface["Attachment"]["AttachTime"]
        for interface in instance.get("NetworkInterfaces", [])
        if "AttachTime" in interface.get("Attachment", {}) and interface["Attachment"].get("DeviceIndex") == 0
    ]
    return min([*times, instance["LaunchTime"]])


def _age_order(instance: InstanceTypeDef) -> tuple[datetime, int, str]:
    return first_launched(instance), instance.get("AmiLaunchIndex", 0), instance["InstanceId"]


def tagged_index(instance: InstanceTypeDef) -> int | None:
    """The index from the instance's tag; None if the tag is missing or invalid."""
    indices = parse_indices(find_tag(instance.get("Tags", []), TAG_INDEX) or "")
    position = instance.get("AmiLaunchIndex", 0)
    return indices[position] if position < len(indices) else None


def market_of(instance: InstanceTypeDef) -> Market:
    """Returns the market on which an instance was launched."""
    return "spot" if instance.get("InstanceLifecycle") == "spot" else "on-demand"


def is_in_block(instance: InstanceTypeDef) -> bool:
    """Returns whether an instance was launched in a Capacity Block, which is paid in advance."""
    return instance.get("InstanceLifecycle") == "capacity-block"


def _reason(instance: InstanceTypeDef) -> str | None:
    return instance.get("StateReason", {}).get("Message") or instance.get("StateTransitionReason") or None


def _node(instance: InstanceTypeDef, *, index: int, head: bool) -> Node:
    return Node(index=index, role="head" if head else "worker", **_describe(instance))


def _untrusted(found: ClaimedInstance, *, is_known: bool, problems: tuple[str, ...]) -> UntrustedInstance:
    return UntrustedInstance(
        owner=find_tag(found.instance.get("Tags", []), TAG_OWNER),
        key_name=found.claim.key_name,
        group_ids=tuple(sorted(found.claim.group_ids)),
        is_known=is_known,
        problems=problems,
        **_describe(found.instance),
    )


def _describe(instance: InstanceTypeDef) -> dict[str, Any]:
    """The fields that Node and UntrustedInstance share."""
    return {
        "instance_id": instance["InstanceId"],
        "state": instance["State"]["Name"],
        "private_ip": instance.get("PrivateIpAddress") or None,
        "public_ip": instance.get("PublicIpAddress") or None,
        "instance_type": instance["InstanceType"],
        "zone": instance["Placement"]["AvailabilityZone"],
        "image_id": instance.get("ImageId", ""),
        "launched_at": first_launched(instance).astimezone(UTC),
        "subnet_id": instance.get("SubnetId"),
        "vpc_id": instance.get("VpcId"),
        "state_reason": _reason(instance),
        "market": market_of(instance),
        "is_block": is_in_block(instance),
        "started_at": instance["LaunchTime"].astimezone(UTC),
        "lease": find_tag(instance.get("Tags", []), TAG_LEASE),
        "profile_arn": instance.get("IamInstanceProfile", {}).get("Arn"),
        "volume_ids": tuple(
            mapping["Ebs"]["VolumeId"] for mapping in instance.get("BlockDeviceMappings", []) if "Ebs" in mapping
        ),
    }


# --- all clusters of a region


def describe_clusters(ec2: EC2Client, *, known: Callable[[str], KnownInstances]) -> tuple[ClusterState, ...]:
    """Returns every cluster that has instances, disks, a security group or a key pair, by name, with its owner.

    known: returns the instances that this machine knows, for a cluster's name. Ignores tags whose value is not a valid
    name of a cluster. Makes four parallel calls, plus one per 1000 instances or groups. Raises AwsError.
    """
    carriers: FilterTypeDef = {"Name": "tag-key", "Values": [TAG_NAME]}
    pages = ec2.get_paginator("describe_security_groups")
    pages_of_groups = pages.paginate(Filters=[carriers], PaginationConfig={"PageSize": _PAGE_SIZE})
    with aws_errors("looking for clusters"), bounded_pool() as pool:
        reading = pool.submit(find_instances, ec2, carriers)
        reading_keys = pool.submit(ec2.describe_key_pairs, Filters=[carriers], IncludePublicKey=True)
        reading_volumes = pool.submit(list_volumes, ec2, carriers)
        groups = [group for page in pages_of_groups for group in page["SecurityGroups"]]
        found, keys, volumes = reading.result(), reading_keys.result()["KeyPairs"], reading_volumes.result()
    instances = [each for each in found if each.instance["State"]["Name"] != "terminated"]
    disks_gib: Counter[str] = Counter()
    for volume in volumes:
        disks_gib[find_tag(volume.get("Tags", []), TAG_NAME) or ""] += volume["Size"]
    owners: dict[str, str | None] = {}
    # The owner tag of the key pair takes precedence: the head may have launched an instance.
    things = (*volumes, *(each.instance for each in instances), *groups, *keys)
    for tags in (thing.get("Tags", []) for thing in things):
        name = find_tag(tags, TAG_NAME) or ""
        if NAME_PATTERN.fullmatch(name):
            owners[name] = find_tag(tags, TAG_OWNER) or owners.get(name)
    states = (
        _read_state(
            name,
            [each for each in instances if find_tag(each.instance.get("Tags", []), TAG_NAME) == name],
            next((read_key_pair(key, name=name) for key in keys if key["KeyName"] == resource_name(name)), None),
            [read_security_group(each, name=name) for each in groups if each["GroupName"] == resource_name(name)],
            known(name),
        )
        for name in sorted(owners)
    )
    return tuple(replace(state, owner=owners[state.name], disks_gib=disks_gib[state.name]) for state in states)
