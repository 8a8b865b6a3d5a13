"""The nodes' IAM role and the instance profile that contains it.

IAM has no ClientToken. A run can still be killed and repeated safely: the names follow from the cluster's name, and
each call that creates a resource also tags it. An existing resource counts as created if it has the cluster's tags.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from botocore.exceptions import ClientError
from msgspec import Struct

from foundation.errors import AwsError
from foundation.waiting import poll
from provision.aws.clients import NOT_FOUND_TIMEOUT_S, Clients, aws_errors, error_code, not_ours, unless_refused
from provision.aws.iam_policy import render_trust_policy
from provision.config import ProvisionConfig
from provision.model import TAG_NAME, ClusterState, profile_name, tags
from provision.plan import Context, Request, Step, World
from provision.resources.resource import Leftovers, Resource, ResourceKind, Unseen, find_tag, retry_while

if TYPE_CHECKING:
    from mypy_boto3_iam import IAMClient
    from mypy_boto3_iam.type_defs import InstanceProfileTypeDef, RoleTypeDef

KIND = "role and instance profile"
POLICY_NAME = "cluster-data"
"""The name of the role's inline policy."""

_GONE = "NoSuchEntity"
_THERE = "EntityAlreadyExists"
_NOT_KNOWN = frozenset({"ConcurrentModification", _GONE})
"""IAM's codes until all its servers know a new resource."""
_IN_USE = frozenset({"ConcurrentModification", "DeleteConflict"})
_NOT_IN_TAGS = re.compile(r"[^\w\s.:/=+\-@]")
"""IAM allows fewer characters in a tag's value than EC2 (https://docs.aws.amazon.com/IAM/latest/APIReference/API_Tag.html):
the user name in an ARN may have a comma."""

T = TypeVar("T")


class InstanceProfile(Struct, frozen=True, kw_only=True):
    """A role or an instance profile with the cluster's name. has_role, has_profile: it carries the cluster's tag.

    in_profile: the role is in the instance profile. policy: the document of the role's policy.
    """

    name: str
    has_role: bool
    has_profile: bool
    in_profile: bool
    policy: str | None = None

    @property
    def ours(self) -> bool:
        """Whether at least one of them is the cluster's."""
        return self.has_role or self.has_profile


def find_instance_profile(clients: Clients, request: Request) -> InstanceProfile | None:
    """Returns the role and the instance profile with the cluster's name; None if neither exists.

    Makes two or three calls. Raises AwsError.
    """
    iam, called = clients.iam, profile_name(request.name, region=clients.region)
    with aws_errors(f"looking for the role and the instance profile {called}"):
        profile, role = _find_profile(iam, called), _find_role(iam, called)
        if profile is None and role is None:
            return None
        has_role, has_profile = _is_ours(role, request.name), _is_ours(profile, request.name)
        return InstanceProfile(
            name=called,
            has_role=has_role,
            has_profile=has_profile,
            in_profile=has_profile and profile is not None and called in _role_names(profile),
            policy=_read_policy(iam, called) if has_role else None,
        )


def find_profile_name(config: ProvisionConfig, *, name: str) -> str | None:
    """Returns the name of the nodes' instance profile; None without one. Pure."""
    if config.instance_profile == "auto":
        return profile_name(name, region=config.region)
    return None if config.instance_profile == "none" else config.instance_profile


def plan_instance_profile(world: World) -> tuple[Step, ...]:
    """Plans to create the cluster's role and profile if anything is missing, or if the policy differs. Pure.

    Empty unless [provision] instance_profile is "auto". Raises ClusterError when the name is taken.
    """
    policy, profile = world.role_policy, INSTANCE_PROFILE.found_in(world.state)
    if world.request.config.instance_profile != "auto" or policy is None:
        return ()
    called = profile_name(world.request.name, region=world.request.config.region)
    if profile is not None:
        if not profile.ours:
            raise not_ours(f"role or instance profile {called}", name=world.request.name)
        complete = profile.has_role and profile.has_profile and profile.in_profile
        if complete and profile.policy is not None and json.loads(profile.policy) == json.loads(policy):
            return ()
    return (CreateInstanceProfile(name=called, policy=policy),)


def _plan_down(state: ClusterState) -> tuple[Step, ...]:
    profile = INSTANCE_PROFILE.found_in(state)
    return (DeleteInstanceProfile(profile=profile),) if profile is not None and profile.ours else ()


def _find_left(clients: Clients, request: Request) -> Leftovers:
    """Looks for the role and the profile. A refused read is not an error: `down` may lack permissions in IAM."""
    try:
        profile = find_instance_profile(clients, request)
    except AwsError as error:
        return Leftovers(looked_for=(), unseen=(Unseen(kind=KIND, why=error.message),))
    return Leftovers(looked_for=("roles", "instance profiles"), left=profile_resources(profile))


def profile_resources(profile: InstanceProfile | None) -> tuple[Resource, ...]:
    """Returns the resources that are left, with the commands that delete them. Pure."""
    if profile is None:
        return ()
    left = []
    role, held = f"--role-name {profile.name}", f"--instance-profile-name {profile.name}"
    if profile.has_profile:
        out = [f"aws iam remove-role-from-instance-profile {held} {role}"] if profile.in_profile else []
        command = " && ".join([*out, f"aws iam delete-instance-profile {held}"])
        left.append(Resource(kind="instance profile", resource_id=profile.name, deletion=command))
    if profile.has_role:
        command = f"aws iam delete-role-policy {role} --policy-name {POLICY_NAME}; aws iam delete-role {role}"
        left.append(Resource(kind="role", resource_id=profile.name, deletion=command))
    return tuple(left)


@dataclass(frozen=True, kw_only=True, slots=True)
class CreateInstanceProfile(Step):
    """Create the nodes' role with its policy, and the instance profile that contains it, unless they exist.

    policy: a policy document, as JSON.
    """

    name: str
    policy: str

    def describe(self) -> str:
        return f"make role and instance profile {self.name}"

    def apply(self, context: Context) -> bool:
        """Creates the role with its policy, then the profile, then adds the role to the profile.

        In this order, nodes never get a role without its policy.
        """
        iam, name = context.clients.iam, self.name
        role = partial(
            iam.create_role,
            RoleName=name,
            AssumeRolePolicyDocument=render_trust_policy(context.clients.region),
            Description=f"Nodes of the cluster {context.cluster}",
        )
        _create("role", name, role, lambda: _find_role(iam, name), context)
        put = partial(iam.put_role_policy, RoleName=name, PolicyName=POLICY_NAME, PolicyDocument=self.policy)
        retry_while(_NOT_KNOWN, put)
        profile = partial(iam.create_instance_profile, InstanceProfileName=name)
        _create("instance profile", name, profile, lambda: _find_profile(iam, name), context)
        _add_role(iam, name)
        return True


@dataclass(frozen=True, kw_only=True, slots=True)
class DeleteInstanceProfile(Step):
    """Delete the instance profile and the role, if they exist."""

    profile: InstanceProfile

    def describe(self) -> str:
        return f"delete role and instance profile {self.profile.name}"

    def deletions(self) -> Iterable[tuple[str, Sequence[str]]]:
        yield "instance profile", [self.profile.name] if self.profile.has_profile else []
        yield "role", [self.profile.name] if self.profile.has_role else []

    def apply(self, context: Context) -> bool:
        """Deletes in IAM's order: it does not delete resources in use. Returns False if nothing existed."""
        iam, name = context.clients.iam, self.profile.name
        calls: list[Callable[[], object]] = []
        if self.profile.in_profile:
            calls.append(partial(iam.remove_role_from_instance_profile, InstanceProfileName=name, RoleName=name))
        if self.profile.has_profile:
            calls.append(partial(iam.delete_instance_profile, InstanceProfileName=name))
        if self.profile.has_role:
            calls.append(partial(iam.delete_role_policy, RoleName=name, PolicyName=POLICY_NAME))
            calls.append(partial(iam.delete_role, RoleName=name))
        changed = [_delete(call) for call in calls]
        return any(changed)


def _create(kind: str, name: str, make: Callable[..., object], find: Callable[[], object], context: Context) -> None:
    """Creates a resource with the cluster's tags. An existing one counts as created if it has them."""
    named = tags(name=context.cluster, owner=_NOT_IN_TAGS.sub("_", context.owner), role=kind.replace(" ", "-"))
    own = [{"Key": key, "Value": value} for key, value in {**context.tags, **named}.items()]
    if unless_refused({_THERE}, lambda: (make(Tags=own),)) is not None:
        return
    if not _is_ours(poll(find, timeout_s=NOT_FOUND_TIMEOUT_S), context.cluster):
        raise not_ours(f"{kind} {name}", name=context.cluster)


def _add_role(iam: IAMClient, name: str) -> None:
    """Adds the role to the profile. LimitExceeded means that the profile already has a role, which may be ours."""
    try:
        retry_while(_NOT_KNOWN, partial(iam.add_role_to_instance_profile, InstanceProfileName=name, RoleName=name))
    except ClientError as error:
        if error_code(error) not in {"LimitExceeded", _THERE}:
            raise
        profile = _find_profile(iam, name)
        if profile is None or name not in _role_names(profile):
            raise


def _delete(call: Callable[[], object]) -> bool:
    """Deletes a resource. Returns False if it did not exist.

    IAM may report it as in use for some time after its dependents are deleted.
    """
    return unless_refused({_GONE}, lambda: retry_while(_IN_USE, call)) is not None


def _find_role(iam: IAMClient, name: str) -> RoleTypeDef | None:
    return unless_refused({_GONE}, lambda: iam.get_role(RoleName=name)["Role"])


def _find_profile(iam: IAMClient, name: str) -> InstanceProfileTypeDef | None:
    return unless_refused({_GONE}, lambda: iam.get_instance_profile(InstanceProfileName=name)["InstanceProfile"])


def _read_policy(iam: IAMClient, name: str) -> str | None:
    read = partial(iam.get_role_policy, RoleName=name, PolicyName=POLICY_NAME)
    document: Any = unless_refused({_GONE}, lambda: read()["PolicyDocument"])
    return document if document is None or isinstance(document, str) else json.dumps(document)  # boto3 decodes it


def _role_names(profile: InstanceProfileTypeDef) -> tuple[str, ...]:
    return tuple(role["RoleName"] for role in profile.get("Roles", []))


def _is_ours(found: Any, name: str) -> bool:
    """Returns whether a role or profile exists and carries the tag of the cluster `name`."""
    return found is not None and find_tag(found.get("Tags", []), TAG_NAME) == name


INSTANCE_PROFILE: ResourceKind[InstanceProfile | None] = ResourceKind(
    kind=KIND,
    look=_find_left,
    find=find_instance_profile,
    may_be_unseen=True,
    is_wanted=lambda request: request.config.instance_profile == "auto",
    plan_up=plan_instance_profile,
    plan_down=_plan_down,
)
