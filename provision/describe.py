"""Reads a cluster from EC2's tags. Only reads; few calls, whatever the number of nodes.

A tag does not make an instance a node: provision/membership.py decides that, for everything that is read here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from provision.aws import aws_errors
from provision.membership import (
    Claim,
    KnownInstances,
    Membership,
    find_known,
    find_membership,
    find_problems,
    find_tokens,
)
from provision.model import (
    TAG_INDEX,
    TAG_NAME,
    TAG_OWNER,
    TAG_RAN,
    ClusterState,
    KeyPair,
    Node,
    PlacementGroup,
    SecurityGroup,
    UntrustedInstance,
    parse_indices,
    resource_name,
)
from provision.side_by_side import reading_pool

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client
    from mypy_boto3_ec2.type_defs import (
        FilterTypeDef,
        InstanceTypeDef,
        IpPermissionOutputTypeDef,
        SecurityGroupTypeDef,
        TagTypeDef,
    )

SSH_RULE = "cluster: ssh"
"""Description of the ssh rules that this program makes, by which it knows them again."""

LIVE_STATES = ("pending", "running", "stopping", "stopped")
_PAGE_SIZE = 1000


@dataclass(frozen=True, kw_only=True, slots=True)
class Instances:
    """The instances with a cluster's tag. live: its nodes; untrusted: the other live ones.

    ended: id -> why, for those that are shutting down or terminated. by_token: ClientToken -> ids, of all of them.
    """

    live: tuple[Node, ...]
    untrusted: tuple[UntrustedInstance, ...]
    ending: tuple[str, ...]
    ended: dict[str, str]
    by_token: Mapping[str, frozenset[str]]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Found:
    """An instance with the cluster's tag, and what it claims to be."""

    instance: InstanceTypeDef
    claim: Claim


def describe_cluster(ec2: EC2Client, *, name: str, known: KnownInstances) -> ClusterState:
    """Everything of the cluster `name` that EC2 has, a half-made one included.

    known: what this machine knows of its instances. Four calls, and one more per further 1000 instances. Raises
    AwsError.
    """
    found = _find_tagged(ec2, name=name)
    # Read after the instances: lists lag, and these are older than the instances that use them.
    key_pair, groups = find_key_pair(ec2, name=name), find_security_groups(ec2, name=name)
    instances = _sort_out(found, find_membership(name=name, key_pair=key_pair, groups=groups, known=known))
    return ClusterState(
        name=name,
        nodes=instances.live,
        untrusted=instances.untrusted,
        ending=instances.ending,
        ended=instances.ended,
        key_pair=key_pair,
        security_groups=groups,
        placement_group=find_placement_group(ec2, name=name),
    )


def describe_nodes(ec2: EC2Client, *, name: str, known: KnownInstances) -> ClusterState:
    """The cluster's nodes, with its key pair and security groups: three calls, side by side. Raises AwsError."""
    with reading_pool() as pool:
        reading_key = pool.submit(find_key_pair, ec2, name=name)
        reading_groups = pool.submit(find_security_groups, ec2, name=name)
        reading_instances = pool.submit(_find_tagged, ec2, name=name)
    found = reading_instances.result()
    key_pair, groups = reading_key.result(), reading_groups.result()
    instances = _sort_out(found, find_membership(name=name, key_pair=key_pair, groups=groups, known=known))
    return ClusterState(
        name=name,
        nodes=instances.live,
        untrusted=instances.untrusted,
        ending=instances.ending,
        ended=instances.ended,
        key_pair=key_pair,
        security_groups=groups,
    )


def describe_instances(ec2: EC2Client, *, membership: Membership) -> Instances:
    """The instances of a cluster, the ended ones that EC2 still shows included. Raises AwsError."""
    return _sort_out(_find_tagged(ec2, name=membership.name), membership)


def find_launched(ec2: EC2Client, *, name: str) -> Mapping[str, frozenset[str]]:
    """ClientToken -> ids of a cluster's instances, the ended ones that EC2 still shows included. Raises AwsError."""
    return find_tokens(found.claim for found in _find_tagged(ec2, name=name))


def sort_out(instances: Iterable[tuple[str, InstanceTypeDef]], membership: Membership) -> Instances:
    """Which instances are nodes. instances: each with the id of its reservation. Pure."""
    return _sort_out([_claimed(reservation_id, instance) for reservation_id, instance in instances], membership)


def _find_tagged(ec2: EC2Client, *, name: str) -> list[_Found]:
    pages = ec2.get_paginator("describe_instances")
    with aws_errors(f"looking for the nodes of cluster {name}"):
        return [
            _claimed(reservation["ReservationId"], instance)
            for page in pages.paginate(Filters=[_tagged(name)], PaginationConfig={"PageSize": _PAGE_SIZE})
            for reservation in page["Reservations"]
            for instance in reservation["Instances"]
        ]


def _claimed(reservation_id: str, instance: InstanceTypeDef) -> _Found:
    claim = Claim(
        instance_id=instance["InstanceId"],
        reservation_id=reservation_id,
        key_name=instance.get("KeyName"),
        group_ids=frozenset(group["GroupId"] for group in instance.get("SecurityGroups", [])),
        client_token=instance.get("ClientToken") or None,
    )
    return _Found(instance=instance, claim=claim)


def _sort_out(found: list[_Found], membership: Membership) -> Instances:
    claims = [each.claim for each in found]
    known = find_known(claims, membership.known)
    by_state = [(each, each.instance["State"]["Name"]) for each in found]
    live = [(each, find_problems(each.claim, membership)) for each, state in by_state if state in LIVE_STATES]
    trusted = {
        each.claim.instance_id: each.instance
        for each, problems in live
        if each.claim.instance_id in known and not problems
    }
    return Instances(
        live=number_nodes(trusted.values()),
        untrusted=tuple(
            _untrusted(each, is_known=each.claim.instance_id in known, problems=problems)
            for each, problems in sorted(live, key=lambda pair: _age_order(pair[0].instance))
            if each.claim.instance_id not in trusted
        ),
        ending=tuple(sorted(each.claim.instance_id for each, state in by_state if state == "shutting-down")),
        ended={
            each.claim.instance_id: _reason(each.instance) or state
            for each, state in by_state
            if state not in LIVE_STATES
        },
        by_token=find_tokens(claims),
    )


def number_nodes(instances: Iterable[InstanceTypeDef]) -> tuple[Node, ...]:
    """Nodes in the order of their index.

    All instances of one RunInstances call carry the same tags. Their cluster:index tag lists the indices that
    the call was made for, and EC2's launch index says which of them an instance is: so an index stays with
    its instance, whatever becomes of the others. An instance without such a tag, or with one that is taken
    (two machines' `up` at once), gets the next free index.
    """
    ordered = sorted(instances, key=_age_order)
    taken: dict[int, InstanceTypeDef] = {}
    homeless: list[InstanceTypeDef] = []
    for instance in ordered:
        claim = _claimed_index(instance)
        if claim is None or claim in taken:
            homeless.append(instance)
        else:
            taken[claim] = instance
    free = (index for index in range(len(taken) + len(homeless)) if index not in taken)
    taken |= dict(zip(free, homeless, strict=False))
    return tuple(
        _node(instance, index=index, head=position == 0)
        for position, (index, instance) in enumerate(sorted(taken.items()))
    )


def find_interfaces(ec2: EC2Client, *, group_id: str) -> tuple[str, ...]:
    """Network interfaces that are in a security group, each with what it is of."""
    interfaces = ec2.describe_network_interfaces(Filters=[{"Name": "group-id", "Values": [group_id]}])
    return tuple(
        f"{interface['NetworkInterfaceId']} of "
        f"{interface.get('Attachment', {}).get('InstanceId') or interface.get('Description') or 'nothing'}"
        for interface in interfaces["NetworkInterfaces"]
    )


def _tagged(name: str) -> FilterTypeDef:
    return {"Name": f"tag:{TAG_NAME}", "Values": [name]}


def _tag(tags: Iterable[TagTypeDef], key: str) -> str | None:
    return next((tag["Value"] for tag in tags if tag["Key"] == key), None)


def _first_launched(instance: InstanceTypeDef) -> datetime:
    """When it was first launched.

    LaunchTime moves when a stopped instance is started again; its first network interface stays attached.
    """
    times = [
        interface["Attachment"]["AttachTime"]
        for interface in instance.get("NetworkInterfaces", [])
        if "AttachTime" in interface.get("Attachment", {}) and interface["Attachment"].get("DeviceIndex") == 0
    ]
    return min([*times, instance["LaunchTime"]])


def _age_order(instance: InstanceTypeDef) -> tuple[datetime, int, str]:
    return _first_launched(instance), instance.get("AmiLaunchIndex", 0), instance["InstanceId"]


def _claimed_index(instance: InstanceTypeDef) -> int | None:
    indices = parse_indices(_tag(instance.get("Tags", []), TAG_INDEX) or "")
    position = instance.get("AmiLaunchIndex", 0)
    return indices[position] if position < len(indices) else None


def _reason(instance: InstanceTypeDef) -> str | None:
    return instance.get("StateReason", {}).get("Message") or instance.get("StateTransitionReason") or None


def _node(instance: InstanceTypeDef, *, index: int, head: bool) -> Node:
    return Node(index=index, role="head" if head else "worker", **_describe(instance))


def _untrusted(found: _Found, *, is_known: bool, problems: tuple[str, ...]) -> UntrustedInstance:
    return UntrustedInstance(
        owner=_tag(found.instance.get("Tags", []), TAG_OWNER),
        image_id=found.instance["ImageId"],
        key_name=found.claim.key_name,
        group_ids=tuple(sorted(found.claim.group_ids)),
        is_known=is_known,
        problems=problems,
        **_describe(found.instance),
    )


def _describe(instance: InstanceTypeDef) -> dict[str, Any]:
    """What Node and UntrustedInstance have in common."""
    return {
        "instance_id": instance["InstanceId"],
        "state": instance["State"]["Name"],
        "private_ip": instance.get("PrivateIpAddress") or None,
        "public_ip": instance.get("PublicIpAddress") or None,
        "instance_type": instance["InstanceType"],
        "zone": instance["Placement"]["AvailabilityZone"],
        "launched_at": _first_launched(instance).astimezone(UTC),
        "subnet_id": instance.get("SubnetId"),
        "vpc_id": instance.get("VpcId"),
        "state_reason": _reason(instance),
        "market": "spot" if instance.get("InstanceLifecycle") == "spot" else "on-demand",
        "started_at": instance["LaunchTime"].astimezone(UTC),
        "ran": _tag(instance.get("Tags", []), TAG_RAN),
        "profile_arn": instance.get("IamInstanceProfile", {}).get("Arn"),
        "volume_ids": tuple(
            mapping["Ebs"]["VolumeId"] for mapping in instance.get("BlockDeviceMappings", []) if "Ebs" in mapping
        ),
    }


def find_key_pair(ec2: EC2Client, *, name: str) -> KeyPair | None:
    """The key pair that has the cluster's name. Raises AwsError.

    By a filter, and not by KeyNames: what is missing is then an empty list, and not an error.
    """
    with aws_errors(f"looking for the key pair of cluster {name}"):
        found = ec2.describe_key_pairs(
            Filters=[{"Name": "key-name", "Values": [resource_name(name)]}],
            IncludePublicKey=True,
        )["KeyPairs"]
    if not found:
        return None
    key = found[0]
    return KeyPair(
        key_name=key["KeyName"],
        public_key=normal_public_key(key["PublicKey"]) if key.get("PublicKey") else None,
        ours=_tag(key.get("Tags", []), TAG_NAME) == name,
    )


def normal_public_key(text: str) -> str:
    """A public key line without its comment and line end, to be compared."""
    return " ".join(text.split()[:2])


def find_placement_group(ec2: EC2Client, *, name: str) -> PlacementGroup | None:
    """The placement group that has the cluster's name. Raises AwsError."""
    named: FilterTypeDef = {"Name": "group-name", "Values": [resource_name(name)]}
    with aws_errors(f"looking for the placement group of cluster {name}"):
        found = ec2.describe_placement_groups(Filters=[named])["PlacementGroups"]
    for group in found:
        if group.get("State", "available") not in {"deleting", "deleted"}:
            return PlacementGroup(
                group_name=group["GroupName"],
                group_id=group.get("GroupId", ""),
                ours=_tag(group.get("Tags", []), TAG_NAME) == name,
            )
    return None


def find_security_groups(ec2: EC2Client, *, name: str) -> tuple[SecurityGroup, ...]:
    """The security groups that have the cluster's name, at most one in each VPC. Raises AwsError."""
    with aws_errors(f"looking for the security group of cluster {name}"):
        found = ec2.describe_security_groups(Filters=[{"Name": "group-name", "Values": [resource_name(name)]}])
    groups = sorted(found["SecurityGroups"], key=lambda group: group["GroupId"])
    return tuple(read_security_group(group, name=name) for group in groups)


def read_security_group(group: SecurityGroupTypeDef, *, name: str) -> SecurityGroup:
    """A security group as EC2 describes it. name: of the cluster. Pure."""
    rules = group.get("IpPermissions", [])
    ssh = [network for rule in rules if _is_ssh(rule) for network in rule.get("IpRanges", [])]
    return SecurityGroup(
        group_id=group["GroupId"],
        vpc_id=group.get("VpcId", ""),
        ours=_tag(group.get("Tags", []), TAG_NAME) == name,
        ssh_from=tuple(sorted(network["CidrIp"] for network in ssh if network.get("Description") == SSH_RULE)),
        ssh_open_to=tuple(sorted(network["CidrIp"] for network in ssh)),
        open_to_members=_names(rules, group["GroupId"]),
        egress_to_members=_names(group.get("IpPermissionsEgress", []), group["GroupId"]),
    )


def _names(rules: Iterable[IpPermissionOutputTypeDef], group_id: str) -> bool:
    """Whether one of the rules allows everything with the members of a group."""
    return any(
        rule.get("IpProtocol") == "-1"
        and any(pair.get("GroupId") == group_id for pair in rule.get("UserIdGroupPairs", []))
        for rule in rules
    )


def _is_ssh(rule: IpPermissionOutputTypeDef) -> bool:
    return rule.get("IpProtocol") == "tcp" and rule.get("FromPort") == rule.get("ToPort") == 22
