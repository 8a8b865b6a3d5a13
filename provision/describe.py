"""Reads a cluster, or all clusters of a region, by EC2's tags. Few calls suffice for any number of nodes.

A tag does not make an instance a node: provision/membership.py decides that.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from msgspec.structs import asdict, replace

from foundation.thread_pool import bounded_pool
from provision.aws.clients import aws_errors
from provision.config import NAME_PATTERN
from provision.membership import (
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
    Instance,
    KeyPair,
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
_WHEN = re.compile(r"\((\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) (?:GMT|UTC)\)")
"""In StateTransitionReason, if a call ended the instance: "User initiated (2026-05-04 13:12:11 GMT)"."""
_RECLAIMED = frozenset({"Server.SpotInstanceTermination", "Server.SpotInstanceShutdown"})
_PAGE_SIZE = 1000


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
    return find_tokens(_find_tagged(ec2, name=name))


def find_end(ec2: EC2Client, instance_id: str) -> str | None:
    """Returns how an instance has ended or stopped, such as "is stopped: REASON"; None otherwise. Raises AwsError."""
    by_id: FilterTypeDef = {"Name": "instance-id", "Values": [instance_id]}  # unlike InstanceIds, it may be unknown
    with aws_errors(f"looking for {instance_id}"):
        states = [(one.state, one.state_reason) for one in find_instances(ec2, by_id)]
    return next((f"is {state}" + (f": {why}" if why else "") for state, why in states if state not in _RUNS), None)


def _find_tagged(ec2: EC2Client, *, name: str) -> list[Instance]:
    with aws_errors(f"looking for the nodes of cluster {name}"):
        return find_instances(ec2, tagged(name))


def find_instances(ec2: EC2Client, wanted: FilterTypeDef) -> list[Instance]:
    """Returns instances, also ended ones, 1000 with each call. Raises boto3's errors."""
    pages = ec2.get_paginator("describe_instances")
    return [
        read_instance(instance, reservation_id=reservation["ReservationId"])
        for page in pages.paginate(Filters=[wanted], PaginationConfig={"PageSize": _PAGE_SIZE})
        for reservation in page["Reservations"]
        for instance in reservation["Instances"]
    ]


def _read_state(
    name: str,
    found: list[Instance],
    key_pair: KeyPair | None,
    groups: Collection[SecurityGroup],
    known: KnownInstances,
    *,
    created_group_ids: frozenset[str] = frozenset(),
) -> ClusterState:
    """Sorts out which instances are nodes. created_group_ids: ids of a group that EC2's lists may not have yet."""
    key_problem = find_key_problem(key_pair, known.public_key)
    group_ids = created_group_ids.union(group.group_id for group in groups if group.ours)
    ours = find_known(found, known)
    live = [
        (each, find_problems(each, name=name, key_problem=key_problem, group_ids=group_ids))
        for each in sorted(found, key=lambda one: one.age_order)
        if each.state in LIVE_STATES
    ]
    nodes = number_nodes(each for each, problems in live if each.instance_id in ours and not problems)
    trusted = {node.instance_id for node in nodes}
    begun = min((node.launched_at for node in nodes), default=None)
    return ClusterState(
        name=name,
        nodes=nodes,
        untrusted=tuple(
            UntrustedInstance(**asdict(each), is_known=each.instance_id in ours, problems=problems)
            for each, problems in live
            if each.instance_id not in trusted
        ),
        ending=tuple(sorted(each.instance_id for each in found if each.state == "shutting-down")),
        ended={each.instance_id: each.state_reason or each.state for each in found if each.state not in LIVE_STATES},
        outlived=frozenset(
            each.instance_id
            for each in found
            if begun and each.state == "terminated" and (each.started_at or each.launched_at) < begun
        ),
        by_token=find_tokens(found),
        key_pair=key_pair,
        security_groups=tuple(groups),
    )


def number_nodes(instances: Iterable[Instance]) -> tuple[Node, ...]:
    """Returns the nodes in the order of their index.

    All instances of one RunInstances call have the same tags. Their tag cluster:index lists the indices of the call,
    and EC2's launch index selects one of them. So an instance keeps its index, even when others end. An instance
    without a valid tag, or with an index that is taken (by two concurrent `up` commands), gets the next free index.
    """
    taken: dict[int, Instance] = {}
    unnumbered: list[Instance] = []
    for instance in sorted(instances, key=lambda one: one.age_order):
        if instance.tagged_index is None or instance.tagged_index in taken:
            unnumbered.append(instance)
        else:
            taken[instance.tagged_index] = instance
    free = (index for index in range(len(taken) + len(unnumbered)) if index not in taken)
    taken |= dict(zip(free, unnumbered, strict=False))
    return tuple(
        Node(**asdict(instance), index=index, role="worker" if position else "head")
        for position, (index, instance) in enumerate(sorted(taken.items()))
    )


def read_instance(instance: InstanceTypeDef, *, reservation_id: str) -> Instance:
    """Reads an instance from EC2's description. Pure."""
    own_tags, lifecycle = instance.get("Tags", []), instance.get("InstanceLifecycle")
    disks = [each["Ebs"] for each in instance.get("BlockDeviceMappings", []) if "Ebs" in each]
    reason, transition = instance.get("StateReason", {}), instance.get("StateTransitionReason") or None
    return Instance(
        instance_id=instance["InstanceId"],
        state=instance["State"]["Name"],
        private_ip=instance.get("PrivateIpAddress") or None,
        public_ip=instance.get("PublicIpAddress") or None,
        instance_type=instance["InstanceType"],
        zone=instance["Placement"]["AvailabilityZone"],
        launched_at=_first_launched(instance).astimezone(UTC),
        subnet_id=instance.get("SubnetId"),
        vpc_id=instance.get("VpcId"),
        state_reason=reason.get("Message") or transition,
        market="spot" if lifecycle == "spot" else "on-demand",
        is_block=lifecycle == "capacity-block",
        is_reclaimed=reason.get("Code") in _RECLAIMED,
        started_at=instance["LaunchTime"].astimezone(UTC),
        stopped_at=parse_transition(transition or ""),
        cluster=find_tag(own_tags, TAG_NAME),
        owner=find_tag(own_tags, TAG_OWNER),
        lease=find_tag(own_tags, TAG_LEASE),
        indices=parse_indices(find_tag(own_tags, TAG_INDEX) or ""),
        launch_index=instance.get("AmiLaunchIndex", 0),
        reservation_id=reservation_id,
        client_token=instance.get("ClientToken") or None,
        key_name=instance.get("KeyName"),
        group_ids=tuple(sorted(group["GroupId"] for group in instance.get("SecurityGroups", []))),
        profile_arn=instance.get("IamInstanceProfile", {}).get("Arn"),
        image_id=instance.get("ImageId", ""),
        volume_ids=tuple(disk["VolumeId"] for disk in disks),
        own_volume_ids=tuple(disk["VolumeId"] for disk in disks if disk.get("DeleteOnTermination")),
    )


def _first_launched(instance: InstanceTypeDef) -> datetime:
    """The time of the first launch: a start changes LaunchTime, but the first network interface stays attached."""
    times = [
        interface["Attachment"]["AttachTime"]
        for interface in instance.get("NetworkInterfaces", [])
        if "AttachTime" in interface.get("Attachment", {}) and interface["Attachment"].get("DeviceIndex") == 0
    ]
    return min([*times, instance["LaunchTime"]])


def parse_transition(reason: str) -> float | None:
    """Returns when a call stopped or terminated an instance, from its StateTransitionReason; None if unknown. Pure."""
    found = _WHEN.search(reason)
    if found is None:
        return None
    return datetime.strptime(found[1], "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC).timestamp()


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
    instances = [each for each in found if each.state != "terminated"]
    disks_gib: Counter[str] = Counter()
    for volume in volumes:
        disks_gib[find_tag(volume.get("Tags", []), TAG_NAME) or ""] += volume["Size"]
    owners: dict[str, str | None] = {}
    # The owner tag of the key pair takes precedence: the head may have launched an instance.
    named = [(each.cluster, each.owner) for each in instances]
    things = (*volumes, *groups, *keys)
    named += [(find_tag(one.get("Tags", []), TAG_NAME), find_tag(one.get("Tags", []), TAG_OWNER)) for one in things]
    for name, owner in named:
        if name is not None and NAME_PATTERN.fullmatch(name):
            owners[name] = owner or owners.get(name)
    states = (
        _read_state(
            name,
            [each for each in instances if each.cluster == name],
            next((read_key_pair(key, name=name) for key in keys if key["KeyName"] == resource_name(name)), None),
            [read_security_group(each, name=name) for each in groups if each["GroupName"] == resource_name(name)],
            known(name),
        )
        for name in sorted(owners)
    )
    return tuple(replace(state, owner=owners[state.name], disks_gib=disks_gib[state.name]) for state in states)
