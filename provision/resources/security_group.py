"""The security group: allows ssh from one network, and all traffic between its members."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from provision.aws.clients import aws_errors, not_ours, unless_refused
from provision.model import TAG_LEASE, TAG_NAME, ClusterState, SecurityGroup, resource_name
from provision.plan import Context, Step, World
from provision.resources.resource import (
    ResourceKind,
    create_once,
    find_tag,
    retry_while,
    tag_new,
)

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client
    from mypy_boto3_ec2.type_defs import (
        IpPermissionOutputTypeDef,
        IpPermissionTypeDef,
        SecurityGroupTypeDef,
    )

KIND = "security group"
SSH_RULE = "cluster: ssh"
"""The description by which this program recognizes its ssh rules."""


def find_security_groups(ec2: EC2Client, *, name: str) -> tuple[SecurityGroup, ...]:
    """Returns the security groups with the cluster's name, at most one in each VPC. Raises AwsError."""
    with aws_errors(f"looking for the security group of cluster {name}"):
        found = ec2.describe_security_groups(Filters=[{"Name": "group-name", "Values": [resource_name(name)]}])
    groups = sorted(found["SecurityGroups"], key=lambda group: group["GroupId"])
    return tuple(read_security_group(group, name=name) for group in groups)


def read_security_group(group: SecurityGroupTypeDef, *, name: str) -> SecurityGroup:
    """Reads a security group from EC2's description. name: of the cluster. Pure."""
    rules = group.get("IpPermissions", [])
    ssh = [network for rule in rules if _is_ssh(rule) for network in rule.get("IpRanges", [])]
    return SecurityGroup(
        group_id=group["GroupId"],
        vpc_id=group.get("VpcId", ""),
        ours=find_tag(group.get("Tags", []), TAG_NAME) == name,
        ssh_from=tuple(sorted(network["CidrIp"] for network in ssh if network.get("Description") == SSH_RULE)),
        ssh_open_to=tuple(sorted(network["CidrIp"] for network in ssh)),
        open_to_members=_names(rules, group["GroupId"]),
        egress_to_members=_names(group.get("IpPermissionsEgress", []), group["GroupId"]),
        lease=find_tag(group.get("Tags", []), TAG_LEASE),
    )


def _names(rules: Iterable[IpPermissionOutputTypeDef], group_id: str) -> bool:
    """Returns whether one of the rules allows all traffic with the group's members."""
    return any(
        rule.get("IpProtocol") == "-1"
        and any(pair.get("GroupId") == group_id for pair in rule.get("UserIdGroupPairs", []))
        for rule in rules
    )


def _is_ssh(rule: IpPermissionOutputTypeDef) -> bool:
    return rule.get("IpProtocol") == "tcp" and rule.get("FromPort") == rule.get("ToPort") == 22


def find_group(world: World) -> SecurityGroup | None:
    """Returns the group with the cluster's name in the nodes' VPC, if it exists. Pure."""
    return next((group for group in world.state.security_groups if group.vpc_id == world.vpc_id), None)


def plan_security_group(world: World) -> tuple[Step, ...]:
    """Plans to create the group in the nodes' VPC, or to correct its rules. Raises ClusterError for a taken name."""
    name, efa, ssh_from = world.resource_name, world.request.config.efa, world.caller.ssh_from
    group = find_group(world)
    if group is not None and not group.ours:
        raise not_ours(f"security group {name} ({group.group_id})", name=world.request.name)
    if group is None:
        create = CreateSecurityGroup(group_name=name, vpc_id=world.vpc_id)
        return (create, AllowTraffic(group_id=None, ssh_from=ssh_from, members=True, egress=efa))
    return plan_ssh_rules(group, ssh_from, egress=efa and not group.egress_to_members)


def plan_ssh_rules(group: SecurityGroup, ssh_from: str, *, egress: bool = False) -> tuple[Step, ...]:
    """Plans to make `ssh_from` the only network that this program allows; empty if it already is.

    Also restores the rule between members if it is missing. Keeps rules that were made by hand. Adds the new rule
    before it removes the old one: if the command is killed in between, the nodes can still be reached. egress: see
    AllowTraffic.
    """
    steps: list[Step] = []
    ssh_is_open = ssh_from in group.ssh_open_to
    adding = AllowTraffic(
        group_id=group.group_id,
        ssh_from=None if ssh_is_open else ssh_from,
        members=not group.open_to_members,
        egress=egress,
    )
    if adding != AllowTraffic(group_id=group.group_id):
        steps.append(adding)
    if stale := tuple(network for network in group.ssh_from if network != ssh_from):
        steps.append(RevokeIngress(group_id=group.group_id, ssh_from=stale))
    return tuple(steps)


def _plan_down(state: ClusterState) -> tuple[Step, ...]:
    ours = (group.group_id for group in state.security_groups if group.ours)
    return tuple(step for each in ours for step in SECURITY_GROUP.plan_deletion(each))


@dataclass(frozen=True, kw_only=True, slots=True)
class CreateSecurityGroup(Step):
    """Create the security group with EC2's default rules: no inbound traffic, all outbound traffic."""

    makes = KIND
    group_name: str
    vpc_id: str

    def describe(self) -> str:
        return f"make security group {self.group_name} in {self.vpc_id}"

    def apply(self, context: Context) -> bool:
        """Creates the group, or uses an existing one of that name if it is ours. Returns False if it existed."""
        ec2, name = context.clients.ec2, context.cluster

        def create() -> None:
            created = ec2.create_security_group(
                GroupName=self.group_name,
                Description=f"Nodes of the cluster {name}",
                VpcId=self.vpc_id,
                TagSpecifications=tag_new(context, "security-group"),
            )
            context.made_group_id = created["GroupId"]

        def find() -> SecurityGroup | None:
            groups = find_security_groups(ec2, name=name)
            return next((group for group in groups if group.vpc_id == self.vpc_id), None)

        what = f"security group {self.group_name}"
        existing = create_once(create, find, taken="InvalidGroup.Duplicate", what=what, name=name)
        if existing is not None:
            context.made_group_id = existing.group_id
        return existing is None


@dataclass(frozen=True, kw_only=True, slots=True)
class AllowTraffic(Step):
    """Allow ssh from a network, and (members) all traffic between the group's members.

    group_id: None for the group that this plan creates. ssh_from: None if ssh is already allowed. egress: add a rule
    for outbound traffic that names the group, which EFA needs
    (https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa-start.html).
    """

    group_id: str | None
    ssh_from: str | None = None
    members: bool = False
    egress: bool = False

    def describe(self) -> str:
        ssh = f"ssh from {self.ssh_from}" if self.ssh_from else ""
        members = "everything between members" if self.members else ""
        egress = "everything out to members, for EFA" if self.egress else ""
        return f"allow {' and '.join(filter(None, (ssh, members, egress)))}"

    def apply(self, context: Context) -> bool:
        """Adds the rules, one call for each direction. Returns False if they existed."""
        ec2, group_id = context.clients.ec2, context.group_id(self.group_id)
        among_members, changed = _member_permission(group_id), False
        ingress = [_ssh_permission(self.ssh_from)] if self.ssh_from is not None else []
        if self.members:
            ingress.append(among_members)
        if ingress:
            changed = _authorize(ec2.authorize_security_group_ingress, ingress, group_id=group_id)
        if self.egress:
            changed = _authorize(ec2.authorize_security_group_egress, [among_members], group_id=group_id) or changed
        return changed


@dataclass(frozen=True, kw_only=True, slots=True)
class RevokeIngress(Step):
    """Remove ssh rules that this program created for other networks."""

    group_id: str
    ssh_from: tuple[str, ...]

    def describe(self) -> str:
        return f"stop allowing ssh from {', '.join(self.ssh_from)}"

    def apply(self, context: Context) -> bool:
        """Removes the rules. Returns False if they did not exist."""
        revoke = partial(context.clients.ec2.revoke_security_group_ingress, GroupId=self.group_id)
        rules = [_ssh_permission(*self.ssh_from)]
        return unless_refused({"InvalidPermission.NotFound"}, lambda: revoke(IpPermissions=rules)) is not None


def _authorize(call: Callable[..., object], permissions: list[IpPermissionTypeDef], *, group_id: str) -> bool:
    """Adds rules in one call. Returns False if they existed. EC2's servers may not all know a new group yet."""
    add = partial(call, GroupId=group_id, IpPermissions=permissions)
    done = unless_refused({"InvalidPermission.Duplicate"}, lambda: retry_while({"InvalidGroup.NotFound"}, add))
    return done is not None


def _ssh_permission(*networks: str) -> IpPermissionTypeDef:
    return {
        "IpProtocol": "tcp",
        "FromPort": 22,
        "ToPort": 22,
        "IpRanges": [{"CidrIp": network, "Description": SSH_RULE} for network in networks],
    }


def _member_permission(group_id: str) -> IpPermissionTypeDef:
    """Returns the rule for all traffic with the group's members."""
    return {
        "IpProtocol": "-1",
        "UserIdGroupPairs": [{"GroupId": group_id, "Description": "cluster: between members"}],
    }


SECURITY_GROUP: ResourceKind[None] = ResourceKind(
    kind=KIND,
    listing="describe_security_groups",
    ids=lambda page: (group["GroupId"] for group in page["SecurityGroups"]),
    deletion="delete-security-group --group-id",
    gone="InvalidGroup.NotFound",
    in_use=frozenset({"DependencyViolation"}),
    release_s=180.0,  # network interfaces outlive their instance a little
    plan_up=plan_security_group,
    plan_down=_plan_down,
    actions=(
        "CreateSecurityGroup",
        "AuthorizeSecurityGroupIngress",
        "AuthorizeSecurityGroupEgress",
        "RevokeSecurityGroupIngress",
    ),
)
