"""The form that every kind of resource has. provision/resources/table.py lists the kinds."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from botocore.exceptions import ClientError

from foundation.waiting import poll
from provision.aws.clients import NOT_FOUND_TIMEOUT_S, Clients, aws_errors, error_code
from provision.config import ProvisionConfig
from provision.model import TAG_NAME, ClusterState, Upload, tags
from provision.plan import Step, Wanted

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client
    from mypy_boto3_ec2.literals import ResourceTypeType
    from mypy_boto3_ec2.type_defs import FilterTypeDef, TagSpecificationTypeDef, TagTypeDef

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class Resource:
    """Something in AWS that is a cluster's. deletion: the command that would delete it; "" where that is not known."""

    kind: str
    resource_id: str
    deletion: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Unseen:
    """Something that could not be looked at, and why, in words."""

    kind: str
    why: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Look:
    """What is left of one kind. looked_for: in the plural. in_progress: uploads that somebody may be at."""

    looked_for: tuple[str, ...]
    left: tuple[Resource, ...] = ()
    unseen: tuple[Unseen, ...] = ()
    in_progress: tuple[Upload, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Scope:
    """Where a cluster's resources are looked for. urls: folders in S3 (s3://bucket/folder/) that it uses."""

    clients: Clients
    name: str
    urls: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class DryRun:
    """A call that is only rehearsed.

    call: takes the request. stands_in: it names what cannot exist. also: actions that are allowed when this one is.
    """

    action: str
    call: Callable[..., object]
    request: Mapping[str, Any]
    stands_in: bool = False
    also: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class ResourceKind(Generic[T]):
    """One kind of resource; what it has no use for is None.

    look: a fresh look, by the cluster's tag, at all that is left. find: what plans are made from, kept in
    ClusterState.found; None for what describe_cluster reads. may_be_unseen: who ends a cluster need not be allowed to
    look: what costs money goes nevertheless. is_wanted: whether `up` needs it. plan_up and plan_down
    are pure. dry_runs: rehearsals of the calls that `up` and `down` would make. actions: all of EC2's that are
    called, for the operator's policy. All that read raise AwsError.
    """

    kind: str
    look: Callable[[Scope], Look]
    find: Callable[[Scope], T] | None = None
    may_be_unseen: bool = False
    is_wanted: Callable[[ProvisionConfig], bool] | None = None
    plan_up: Callable[[Wanted], tuple[Step, ...]] | None = None
    plan_down: Callable[[ClusterState], tuple[Step, ...]] | None = None
    dry_runs: Callable[[EC2Client, Wanted], Iterator[DryRun]] | None = None
    actions: tuple[str, ...] = ()

    def found_in(self, state: ClusterState) -> T | None:
        """What `find` had found; None when it has not looked."""
        found: T | None = state.found.get(self.kind)
        return found


def look_by_tag(
    kind: str, ids: Callable[[EC2Client, list[FilterTypeDef]], Iterable[str]], command: str
) -> Callable[[Scope], Look]:
    """A look at what carries the cluster's tag in EC2. command: the aws-cli's, which deletes one."""

    def look(scope: Scope) -> Look:
        ec2 = scope.clients.ec2
        with aws_errors(f"looking for what is left of cluster {scope.name}"):
            left = tuple(
                Resource(
                    kind=kind,
                    resource_id=found,
                    deletion=f"aws ec2 {command} {found} --region {ec2.meta.region_name}",
                )
                for found in ids(ec2, [tagged(scope.name)])
            )
        return Look(looked_for=(f"{kind}es" if kind.endswith("s") else f"{kind}s",), left=left)

    return look


def retry_while(codes: Collection[str], call: Callable[[], T], *, timeout_s: float = NOT_FOUND_TIMEOUT_S) -> T:
    """Repeats a call while AWS answers with one of the codes, timeout_s at most. Raises ClientError, the last one."""
    refused: list[ClientError] = []

    def attempt() -> tuple[T] | None:
        try:
            return (call(),)
        except ClientError as error:
            if error_code(error) not in codes:
                raise
            refused.append(error)
            return None

    done = poll(attempt, timeout_s=timeout_s)
    if done is None:
        raise refused[-1]
    return done[0]


def delete_each(delete: Callable[[T], object], things: Iterable[T], *, gone: Collection[str]) -> bool:
    """Deletes them, one call for each. gone: the codes that say that it is no more. False: all are gone."""
    changed = False
    for thing in things:
        try:
            delete(thing)
        except ClientError as error:
            if error_code(error) not in gone:
                raise
        else:
            changed = True
    return changed


def tagged(name: str) -> FilterTypeDef:
    """The filter for what carries the tag of the cluster `name`."""
    return {"Name": f"tag:{TAG_NAME}", "Values": [name]}


def find_tag(found: Iterable[TagTypeDef], key: str) -> str | None:
    """A tag's value."""
    return next((tag["Value"] for tag in found if tag["Key"] == key), None)


def tag_specification(
    kind: ResourceTypeType, *, name: str, owner: str, role: str | None = None, more: Mapping[str, str] | None = None
) -> TagSpecificationTypeDef:
    """The cluster's tags for a call that makes something: what is tagged so is never there without its tags.

    role: by default the kind itself.
    """
    named = {**tags(name=name, owner=owner, role=role or kind), **(more or {})}
    return {"ResourceType": kind, "Tags": [{"Key": key, "Value": value} for key, value in named.items()]}
