"""The nodes' role and the instance profile that carries it, in IAM: found, planned, made and deleted.

IAM takes no ClientToken. What makes it safe to be killed and run again is that the names follow from the cluster's, and
that everything is tagged in the call that makes it: what is there already counts as made when the tags are ours.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from botocore.exceptions import ClientError

from provision.aws import NOT_FOUND_TIMEOUT_S, aws_errors, aws_words, error_code, not_ours
from provision.config import ProvisionConfig
from provision.context import Context
from provision.errors import AwsError, ClusterError
from provision.iam_policy import render_trust_policy
from provision.model import TAG_NAME, InstanceProfile, profile_name, tags
from provision.steps import CreateInstanceProfile, DeleteInstanceProfile, Step
from provision.wait import poll

if TYPE_CHECKING:
    from mypy_boto3_iam import IAMClient
    from mypy_boto3_iam.type_defs import InstanceProfileTypeDef, RoleTypeDef, TagTypeDef

POLICY_NAME = "cluster-data"
"""Of the role's one inline policy that this program makes."""

_GONE = "NoSuchEntity"
_THERE = "EntityAlreadyExists"
_NOT_YET = frozenset({"ConcurrentModification"})
_NOT_IN_TAGS = re.compile(r"[^\w\s.:/=+\-@]")
"""IAM allows less in a tag's value than EC2 does (https://docs.aws.amazon.com/IAM/latest/APIReference/API_Tag.html):
an ARN's user name may have a comma."""

T = TypeVar("T")


def find_instance_profile(iam: IAMClient, *, name: str, region: str) -> InstanceProfile | None:
    """What IAM has under the name of the cluster's role and instance profile; None when there is neither.

    Role and profile are looked at apart: where one is ours and the other is not, only ours is told of, as the other
    one is nobody's business here. Two calls when there is nothing, four at most (and one for each 100 inline policies
    more). Raises AwsError, also when the caller may not look.
    """
    called = profile_name(name, region=region)
    with aws_errors(f"looking for the role and the instance profile {called}"):
        profile = _find_profile(iam, called)
        role = _find_role(iam, called)
        profile_ours = profile is not None and _is_ours(profile.get("Tags", []), name)
        role_ours = role is not None and _is_ours(role.get("Tags", []), name)
        if profile is None and role is None:
            return None
        ours = profile_ours or role_ours
        policy_names = _list_policies(iam, called) if role_ours else ()
        return InstanceProfile(
            name=called,
            ours=ours,
            has_role=role_ours if ours else role is not None,
            has_profile=profile_ours if ours else profile is not None,
            in_profile=profile is not None and called in _role_names(profile) and (profile_ours or not ours),
            policy_names=policy_names,
            policy=_read_policy(iam, called) if POLICY_NAME in policy_names else None,
        )


def plan_instance_profile(
    config: ProvisionConfig, profile: InstanceProfile | None, policy: str, *, name: str
) -> tuple[Step, ...]:
    """What is missing of the role and the profile of the cluster `name`, or differs from `policy`. Pure.

    profile: what was found. Empty unless [provision] instance_profile is "auto".
    Raises ClusterError when the name is taken by somebody else.
    """
    if config.instance_profile != "auto":
        return ()
    called = profile_name(name, region=config.region)
    if profile is not None:
        if not profile.ours:
            raise _not_ours(f"role or instance profile {called}", name)
        complete = profile.has_role and profile.has_profile and profile.in_profile
        if complete and profile.policy is not None and json.loads(profile.policy) == json.loads(policy):
            return ()
    return (CreateInstanceProfile(name=called, policy=policy),)


def create_instance_profile(step: CreateInstanceProfile, context: Context) -> bool:
    """Makes the role with its policy, then the profile, then puts the one into the other.

    In this order, so that a profile that nodes are launched with never gives them a role that lacks its policy.
    """
    iam = context.clients.iam
    _create_role(step, context)
    _when_known(lambda: iam.put_role_policy(RoleName=step.name, PolicyName=POLICY_NAME, PolicyDocument=step.policy))
    _create_profile(step, context)
    _add_role(step, context)
    return True


def delete_instance_profile(step: DeleteInstanceProfile, context: Context) -> bool:
    """Deletes profile and role; the order is IAM's, which deletes nothing that is still in use. False: all was gone."""
    iam = context.clients.iam
    name = step.name
    changed = False
    if step.in_profile:
        changed |= _delete(partial(iam.remove_role_from_instance_profile, InstanceProfileName=name, RoleName=name))
    if step.has_profile:
        changed |= _delete(partial(iam.delete_instance_profile, InstanceProfileName=name))
    if step.has_role:
        for policy_name in step.policy_names:
            changed |= _delete(partial(iam.delete_role_policy, RoleName=name, PolicyName=policy_name))
        changed |= _delete(partial(iam.delete_role, RoleName=name))
    return changed


def _create_role(step: CreateInstanceProfile, context: Context) -> None:
    iam = context.clients.iam
    try:
        iam.create_role(
            RoleName=step.name,
            AssumeRolePolicyDocument=render_trust_policy(context.clients.region),
            Description=f"Nodes of the cluster {context.cluster}",
            Tags=_tags(context, role="role"),
        )
    except ClientError as error:
        if error_code(error) != _THERE:
            raise
        role = poll(lambda: _find_role(iam, step.name), timeout_s=NOT_FOUND_TIMEOUT_S)
        if role is None or not _is_ours(role.get("Tags", []), context.cluster):
            raise not_ours(error, f"role {step.name}", name=context.cluster) from error


def _create_profile(step: CreateInstanceProfile, context: Context) -> None:
    iam = context.clients.iam
    try:
        iam.create_instance_profile(InstanceProfileName=step.name, Tags=_tags(context, role="instance-profile"))
    except ClientError as error:
        if error_code(error) != _THERE:
            raise
        profile = poll(lambda: _find_profile(iam, step.name), timeout_s=NOT_FOUND_TIMEOUT_S)
        if profile is None or not _is_ours(profile.get("Tags", []), context.cluster):
            raise not_ours(error, f"instance profile {step.name}", name=context.cluster) from error


def _add_role(step: CreateInstanceProfile, context: Context) -> None:
    """A profile holds one role: LimitExceeded says that there is one, which may be ours already."""
    iam = context.clients.iam
    try:
        _when_known(lambda: iam.add_role_to_instance_profile(InstanceProfileName=step.name, RoleName=step.name))
    except ClientError as error:
        if error_code(error) not in {"LimitExceeded", _THERE}:
            raise
        profile = _find_profile(iam, step.name)
        held = _role_names(profile) if profile is not None else ()
        if step.name not in held:
            raise ClusterError(
                f"the instance profile {step.name} holds another role, {', '.join(held) or 'unknown'}, which this "
                "program did not put there",
                hint=f"aws iam remove-role-from-instance-profile --instance-profile-name {step.name} "
                f"--role-name {held[0] if held else 'ROLE'}",
            ) from error


def _delete(call: Callable[[], object]) -> bool:
    """Deletes something; False: it was gone. What it depended on may count as there for some time after its end."""
    said = ""

    def attempt() -> bool | None:
        nonlocal said
        try:
            call()
        except ClientError as error:
            if error_code(error) == _GONE:
                return False
            if error_code(error) not in _NOT_YET | {"DeleteConflict"}:
                raise
            said = aws_words(error)
            return None
        return True

    deleted = poll(attempt, timeout_s=NOT_FOUND_TIMEOUT_S)
    if deleted is None:
        raise AwsError(
            f"AWS says: {said}: the nodes' role or instance profile is still in use after {NOT_FOUND_TIMEOUT_S:.0f} s",
            hint="take away what was attached to it by hand, then: cluster down",
        )
    return deleted


def _when_known(call: Callable[[], T]) -> T:
    """Repeats a call while IAM does not know yet what was made a moment ago."""

    def attempt() -> tuple[T] | None:
        try:
            return (call(),)
        except ClientError as error:
            if error_code(error) not in _NOT_YET | {_GONE}:
                raise
            refused.append(error)
            return None

    refused: list[ClientError] = []
    done = poll(attempt, timeout_s=NOT_FOUND_TIMEOUT_S)
    if done is None:
        raise refused[-1]
    return done[0]


def _find_role(iam: IAMClient, name: str) -> RoleTypeDef | None:
    try:
        return iam.get_role(RoleName=name)["Role"]
    except ClientError as error:
        if error_code(error) != _GONE:
            raise
        return None


def _find_profile(iam: IAMClient, name: str) -> InstanceProfileTypeDef | None:
    try:
        return iam.get_instance_profile(InstanceProfileName=name)["InstanceProfile"]
    except ClientError as error:
        if error_code(error) != _GONE:
            raise
        return None


def _list_policies(iam: IAMClient, name: str) -> tuple[str, ...]:
    try:
        pages = iam.get_paginator("list_role_policies").paginate(RoleName=name)
        return tuple(policy for page in pages for policy in page["PolicyNames"])
    except ClientError as error:
        if error_code(error) != _GONE:
            raise
        return ()  # deleted since it was found


def _read_policy(iam: IAMClient, name: str) -> str | None:
    try:
        document: Any = iam.get_role_policy(RoleName=name, PolicyName=POLICY_NAME)["PolicyDocument"]
    except ClientError as error:
        if error_code(error) != _GONE:
            raise
        return None  # deleted since it was listed
    return document if isinstance(document, str) else json.dumps(document)  # boto3 decodes it


def _role_names(profile: InstanceProfileTypeDef) -> tuple[str, ...]:
    return tuple(role["RoleName"] for role in profile.get("Roles", []))


def _is_ours(found: Iterable[TagTypeDef], name: str) -> bool:
    return any(tag["Key"] == TAG_NAME and tag["Value"] == name for tag in found)


def _tags(context: Context, *, role: str) -> list[TagTypeDef]:
    named = tags(name=context.cluster, owner=_NOT_IN_TAGS.sub("_", context.owner), role=role)
    return [{"Key": key, "Value": value} for key, value in named.items()]


def _not_ours(what: str, name: str) -> ClusterError:
    return ClusterError(
        f"a {what} is there that this program did not make for this cluster (no tag {TAG_NAME} = {name})",
        hint="give the cluster another name in cluster.toml, or remove it yourself",
    )
