"""Reads a cluster from EC2's tags. Only reads; few calls, whatever the number of nodes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from provision.aws import aws_errors
from provision.model import (
    TAG_INDEX,
    TAG_NAME,
    TAG_RAN,
    ClusterState,
    KeyPair,
    Node,
    PlacementGroup,
    SecurityGroup,
    parse_indices,
    resource_name,
)

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
    """A cluster's instances. `ended`: id -> why, for those that are shutting down or terminated."""

    live: tuple[Node, ...]
    ending: tuple[str, ...]
    ended: dict[str, str]


def describe_cluster(ec2: EC2Client, *, name: str) -> ClusterState:
    """Everything of the cluster `name` that EC2 has, a half-made one included.

    Four calls, and one more per further 1000 instances. Raises AwsError.
    """
    instances = describe_instances(ec2, name=name)
    with aws_errors(f"looking for cluster {name}"):
        return ClusterState(
            name=name,
            nodes=instances.live,
            ending=instances.ending,
            ended=instances.ended,
            key_pair=_find_key_pair(ec2, name=name),
            security_groups=_find_security_groups(ec2, name=name),
            placement_group=_find_placement_group(ec2, name=name),
        )


def describe_nodes(ec2: EC2Client, *, name: str) -> ClusterState:
    """The cluster's nodes, and nothing else of it: one call, for those who only use them. Raises AwsError."""
    instances = describe_instances(ec2, name=name)
    return ClusterState(name=name, nodes=instances.live, ending=instances.ending, ended=instances.ended)


def describe_instances(ec2: EC2Client, *, name: str) -> Instances:
    """The cluster's instances, the ended ones that EC2 still shows included. Raises AwsError."""
    found: list[InstanceTypeDef] = []
    pages = ec2.get_paginator("describe_instances")
    with aws_errors(f"looking for the nodes of cluster {name}"):
        for page in pages.paginate(Filters=[_tagged(name)], PaginationConfig={"PageSize": _PAGE_SIZE}):
            for reservation in page["Reservations"]:
                found.extend(reservation["Instances"])
    by_state = [(instance, instance["State"]["Name"]) for instance in found]
    return Instances(
        live=number_nodes(instance for instance, state in by_state if state in LIVE_STATES),
        ending=tuple(sorted(instance["InstanceId"] for instance, state in by_state if state == "shutting-down")),
        ended={
            instance["InstanceId"]: _reason(instance) or state
            for instance, state in by_state
            if state not in LIVE_STATES
        },
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
    return Node(
        instance_id=instance["InstanceId"],
        index=index,
        role="head" if head else "worker",
        state=instance["State"]["Name"],
        private_ip=instance.get("PrivateIpAddress") or None,
        public_ip=instance.get("PublicIpAddress") or None,
        instance_type=instance["InstanceType"],
        zone=instance["Placement"]["AvailabilityZone"],
        launched_at=_first_launched(instance).astimezone(UTC),
        subnet_id=instance.get("SubnetId"),
        vpc_id=instance.get("VpcId"),
        state_reason=_reason(instance),
        market="spot" if instance.get("InstanceLifecycle") == "spot" else "on-demand",
        started_at=instance["LaunchTime"].astimezone(UTC),
        ran=_tag(instance.get("Tags", []), TAG_RAN),
        profile_arn=instance.get("IamInstanceProfile", {}).get("Arn"),
        volume_ids=tuple(
            mapping["Ebs"]["VolumeId"] for mapping in instance.get("BlockDeviceMappings", []) if "Ebs" in mapping
        ),
    )


def _find_key_pair(ec2: EC2Client, *, name: str) -> KeyPair | None:
    """A filter, and not KeyNames: what is missing is an empty list then, and no error."""
    found = ec2.describe_key_pairs(
        Filters=[{"Name": "key-name", "Values": [resource_name(name)]}],
        IncludePublicKey=True,
    )["KeyPairs"]
    if not found:
        return None
    from provision.keys import normal_public_key  # noqa: PLC0415 - slow to import: not for who only wants the nodes

    key = found[0]
    return KeyPair(
        key_name=key["KeyName"],
        public_key=normal_public_key(key["PublicKey"]) if key.get("PublicKey") else None,
        ours=_tag(key.get("Tags", []), TAG_NAME) == name,
    )


def _find_placement_group(ec2: EC2Client, *, name: str) -> PlacementGroup | None:
    named: FilterTypeDef = {"Name": "group-name", "Values": [resource_name(name)]}
    found = ec2.describe_placement_groups(Filters=[named])["PlacementGroups"]
    for group in found:
        if group.get("State", "available") not in {"deleting", "deleted"}:
            return PlacementGroup(
                group_name=group["GroupName"],
                group_id=group.get("GroupId", ""),
                ours=_tag(group.get("Tags", []), TAG_NAME) == name,
            )
    return None


def _find_security_groups(ec2: EC2Client, *, name: str) -> tuple[SecurityGroup, ...]:
    found = ec2.describe_security_groups(Filters=[{"Name": "group-name", "Values": [resource_name(name)]}])
    groups = sorted(found["SecurityGroups"], key=lambda group: group["GroupId"])
    return tuple(_security_group(group, name=name) for group in groups)


def _security_group(group: SecurityGroupTypeDef, *, name: str) -> SecurityGroup:
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
