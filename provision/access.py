"""Carries out the steps about who may reach the nodes: key pair and security group."""

from __future__ import annotations

from typing import TYPE_CHECKING

from botocore.exceptions import ClientError

from provision.aws import NOT_FOUND_TIMEOUT_S, aws_words, error_code, not_ours
from provision.context import Context
from provision.describe import SSH_RULE, find_interfaces, find_key_pair, find_security_groups
from provision.errors import AwsError, ClusterError
from provision.model import SecurityGroup, tags
from provision.progress import Event
from provision.steps import (
    AuthorizeEgress,
    AuthorizeIngress,
    CreateKeyPair,
    CreateSecurityGroup,
    DeleteKeyPair,
    DeleteSecurityGroup,
    ImportKeyPair,
    RevokeIngress,
)
from provision.wait import poll

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client
    from mypy_boto3_ec2.literals import ResourceTypeType
    from mypy_boto3_ec2.type_defs import IpPermissionTypeDef, TagSpecificationTypeDef

INTERFACES_TIMEOUT_S = 180.0


def import_key_pair(step: CreateKeyPair | ImportKeyPair, context: Context) -> bool:
    """Makes the private key if it is missing, and imports its public half. False: EC2 had it already."""
    public_key = context.files.make_key()
    try:
        context.clients.ec2.import_key_pair(
            KeyName=step.key_name,
            PublicKeyMaterial=public_key.encode(),
            TagSpecifications=[_tag_specification("key-pair", context)],
        )
    except ClientError as error:
        if error_code(error) != "InvalidKeyPair.Duplicate":
            raise
        existing = poll(
            lambda: find_key_pair(context.clients.ec2, name=context.cluster),
            timeout_s=NOT_FOUND_TIMEOUT_S,
        )
        if existing is None or not existing.ours:
            raise not_ours(error, f"key pair {step.key_name}", name=context.cluster) from error
        if existing.public_key != public_key:
            raise _other_key(error, step.key_name) from error
        return False
    return True


def delete_key_pair(step: DeleteKeyPair, context: Context) -> bool:
    """Deletes it; EC2 says yes even if it is gone. One that was made a moment ago may not be known everywhere yet."""
    ec2 = context.clients.ec2

    def delete() -> bool | None:
        try:
            ec2.delete_key_pair(KeyName=step.key_name)
        except ClientError as error:
            if error_code(error) != "InvalidKeyPair.NotFound":
                raise
            return None if find_key_pair(ec2, name=context.cluster) else False
        return True

    return bool(poll(delete, timeout_s=NOT_FOUND_TIMEOUT_S))


def create_security_group(step: CreateSecurityGroup, context: Context) -> bool:
    """Makes the group, or takes the one of that name if it is ours. False: it was there."""
    try:
        made = context.clients.ec2.create_security_group(
            GroupName=step.group_name,
            Description=f"Nodes of the cluster {context.cluster}",
            VpcId=step.vpc_id,
            TagSpecifications=[_tag_specification("security-group", context)],
        )
    except ClientError as error:
        if error_code(error) != "InvalidGroup.Duplicate":
            raise
        existing = poll(lambda: _find_group(step, context), timeout_s=NOT_FOUND_TIMEOUT_S)
        if existing is None or not existing.ours:
            raise not_ours(error, f"security group {step.group_name}", name=context.cluster) from error
        context.made_group_id = existing.group_id
        return False
    context.made_group_id = made["GroupId"]
    return True


def authorize_ingress(step: AuthorizeIngress, context: Context) -> bool:
    """Adds the rules in one call. False: they are there (an earlier run's reply was lost)."""
    group_id = context.group_id(step.group_id)
    permissions = ingress_permissions(step, group_id=group_id)

    def authorize(asked: list[IpPermissionTypeDef]) -> bool | None:
        try:
            context.clients.ec2.authorize_security_group_ingress(GroupId=group_id, IpPermissions=asked)
        except ClientError as error:
            if error_code(error) == "InvalidGroup.NotFound":
                return None  # made a moment ago, and not known everywhere yet
            if error_code(error) != "InvalidPermission.Duplicate":
                raise
            # One rule that is there makes EC2 refuse all of them: the others may be missing still.
            results = [authorize([permission]) for permission in asked] if len(asked) > 1 else []
            return any(results)
        return True

    changed = poll(lambda: authorize(permissions), timeout_s=NOT_FOUND_TIMEOUT_S)
    if changed is None:
        raise _never_known(group_id)
    return changed


def authorize_egress(step: AuthorizeEgress, context: Context) -> bool:
    """Adds the rule that EFA wants (https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa-start.html).

    False: it is there.
    """
    group_id = context.group_id(step.group_id)
    to_members: IpPermissionTypeDef = {
        "IpProtocol": "-1",
        "UserIdGroupPairs": [{"GroupId": group_id, "Description": "cluster: between members"}],
    }

    def authorize() -> bool | None:
        try:
            context.clients.ec2.authorize_security_group_egress(GroupId=group_id, IpPermissions=[to_members])
        except ClientError as error:
            if error_code(error) == "InvalidGroup.NotFound":
                return None  # made a moment ago, and not known everywhere yet
            if error_code(error) != "InvalidPermission.Duplicate":
                raise
            return False
        return True

    changed = poll(authorize, timeout_s=NOT_FOUND_TIMEOUT_S)
    if changed is None:
        raise _never_known(group_id)
    return changed


def revoke_ingress(step: RevokeIngress, context: Context) -> bool:
    """Takes rules back. False: they are gone already."""
    try:
        context.clients.ec2.revoke_security_group_ingress(
            GroupId=step.group_id,
            IpPermissions=[_ssh_permission(*step.ssh_from)],
        )
    except ClientError as error:
        if error_code(error) != "InvalidPermission.NotFound":
            raise
        return False
    return True


def delete_security_group(step: DeleteSecurityGroup, context: Context) -> bool:
    """Deletes it once nothing is in it: interfaces outlive their instance a little. False: it was gone.

    Raises AwsError when something holds it that does not go: an interface, or another group's rule that names it.
    """
    ec2 = context.clients.ec2
    blocking: tuple[str, ...] = ()
    said = ""

    def delete() -> bool | None:
        nonlocal blocking, said
        before, blocking = blocking, find_interfaces(ec2, group_id=step.group_id)
        if blocking:
            if blocking != before:
                context.report(Event(kind="info", what=f"still in use by {_first_of(blocking)}"))
            return None
        try:
            ec2.delete_security_group(GroupId=step.group_id)
        except ClientError as error:
            if error_code(error) == "InvalidGroup.NotFound":
                return False
            if error_code(error) != "DependencyViolation":
                raise
            if naming := _find_naming_groups(ec2, group_id=step.group_id):
                raise _is_named_by(error, naming, group_id=step.group_id) from error
            said = f"AWS says: {aws_words(error)}: "
            return None
        return True

    deleted = poll(delete, timeout_s=INTERFACES_TIMEOUT_S)
    if deleted is None:
        raise AwsError(
            f"{said}the security group {step.group_id} is still in use after {INTERFACES_TIMEOUT_S:.0f} s: "
            f"{', '.join(blocking) or 'by what, AWS does not say'}",
            hint="take those out of the group if they are not this cluster's, then: cluster down",
        )
    return deleted


def _first_of(blocking: tuple[str, ...]) -> str:
    """What fits on a line."""
    more = f" and {len(blocking) - 3} more" if len(blocking) > 3 else ""
    return ", ".join(blocking[:3]) + more


def _find_naming_groups(ec2: EC2Client, *, group_id: str) -> dict[str, str]:
    """Other groups with a rule, in or out, that names a group: id -> name."""
    return {
        group["GroupId"]: group["GroupName"]
        for direction in ("ip-permission.group-id", "egress.ip-permission.group-id")
        for group in ec2.describe_security_groups(Filters=[{"Name": direction, "Values": [group_id]}])["SecurityGroups"]
        if group["GroupId"] != group_id
    }


def _is_named_by(error: ClientError, naming: dict[str, str], *, group_id: str) -> AwsError:
    """The error for a group that waiting would not free: somebody made the rule, and has to take it away."""
    listed = ", ".join(f"{naming_id} ({name})" for naming_id, name in sorted(naming.items()))
    return AwsError(
        f"AWS says: {aws_words(error)}: the security group {group_id} cannot be deleted while rules of other groups "
        f"name it: {listed}",
        hint="take these rules out, then: cluster down. This shows them: aws ec2 describe-security-group-rules "
        f"--filters Name=group-id,Values={','.join(sorted(naming))}",
    )


def ingress_permissions(step: AuthorizeIngress, *, group_id: str) -> list[IpPermissionTypeDef]:
    """The rules of one AuthorizeSecurityGroupIngress call."""
    permissions: list[IpPermissionTypeDef] = []
    if step.ssh_from is not None:
        permissions.append(_ssh_permission(step.ssh_from))
    if step.members:
        permissions.append(_member_permission(group_id))
    return permissions


def _find_group(step: CreateSecurityGroup, context: Context) -> SecurityGroup | None:
    groups = find_security_groups(context.clients.ec2, name=context.cluster)
    return next((group for group in groups if group.vpc_id == step.vpc_id), None)


def _ssh_permission(*networks: str) -> IpPermissionTypeDef:
    return {
        "IpProtocol": "tcp",
        "FromPort": 22,
        "ToPort": 22,
        "IpRanges": [{"CidrIp": network, "Description": SSH_RULE} for network in networks],
    }


def _member_permission(group_id: str) -> IpPermissionTypeDef:
    """Everything, with the members of the group."""
    return {
        "IpProtocol": "-1",
        "UserIdGroupPairs": [{"GroupId": group_id, "Description": "cluster: between members"}],
    }


def _tag_specification(kind: ResourceTypeType, context: Context) -> TagSpecificationTypeDef:
    named = tags(name=context.cluster, owner=context.owner, role=kind)
    return {"ResourceType": kind, "Tags": [{"Key": key, "Value": value} for key, value in named.items()]}


def _never_known(group_id: str) -> AwsError:
    return AwsError(
        f"AWS did not know the security group {group_id} for {NOT_FOUND_TIMEOUT_S:.0f} s",
        hint="the same command again goes on where this one stopped",
    )


def _other_key(error: ClientError, key_name: str) -> ClusterError:
    """For a key pair that another machine has made for this cluster since this run looked."""
    return ClusterError(
        f"AWS says: {aws_words(error)}: the key pair {key_name} is this cluster's, and its private key is not the one "
        "on this machine",
        hint="work from the machine that made it; or end all: cluster down",
    )
