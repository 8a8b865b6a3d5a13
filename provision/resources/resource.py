"""ResourceKind: the interface of every kind of resource. provision/resources/table.py lists the kinds."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Generic, TypeVar

from botocore.exceptions import ClientError
from msgspec import Struct

from foundation.waiting import poll
from provision.aws.clients import NOT_FOUND_TIMEOUT_S, Clients, aws_errors, error_code
from provision.model import TAG_NAME, ClusterState, count, tags
from provision.plan import Context, Request, Step, World

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client
    from mypy_boto3_ec2.literals import ResourceTypeType
    from mypy_boto3_ec2.type_defs import FilterTypeDef, TagSpecificationTypeDef, TagTypeDef, VolumeTypeDef

T = TypeVar("T")
RELEASE_TIMEOUT_S = 2400.0
"""An instance that shuts down releases what it uses last; large ones take minutes, bare-metal ones more than 20."""


class Resource(Struct, frozen=True, kw_only=True):
    """A resource of a cluster in AWS. deletion: the command that deletes it; "" if unknown."""

    kind: str
    resource_id: str
    deletion: str = ""


class KeptVolume(Struct, frozen=True, kw_only=True):
    """A volume that `down` keeps. deletion: the command that deletes it."""

    volume_id: str
    zone: str
    size_gib: int
    deletion: str


class Unseen(Struct, frozen=True, kw_only=True):
    """A kind of resource that could not be read, and why."""

    kind: str
    why: str


class Leftovers(Struct, frozen=True, kw_only=True):
    """The remaining resources of one kind.

    looked_for: kinds, in the plural. kept: volumes that the user wants to keep.
    """

    looked_for: tuple[str, ...]
    left: tuple[Resource, ...] = ()
    unseen: tuple[Unseen, ...] = ()
    kept: tuple[KeptVolume, ...] = ()


class ResourceKind(Struct, Generic[T], frozen=True, kw_only=True):
    """One kind of resource; None for functions that it does not need.

    find_left: finds all that is left with the cluster's tag. find: reads the input of plans for ClusterState.found;
    None if describe_cluster reads it. may_be_unseen: `down` continues if `find` is refused. is_wanted: whether `up`
    needs it. plan_up, plan_down: pure. plan_on_nodes: like plan_up, for steps that need running nodes. actions: the EC2
    actions that it calls, for the operator's policy. `find_left` and `find` raise AwsError.
    """

    kind: str
    find_left: Callable[[Clients, Request], Leftovers]
    find: Callable[[Clients, Request], T] | None = None
    may_be_unseen: bool = False
    is_wanted: Callable[[Request], bool] | None = None
    plan_up: Callable[[World], tuple[Step, ...]] | None = None
    plan_on_nodes: Callable[[World], tuple[Step, ...]] | None = None
    plan_down: Callable[[ClusterState], tuple[Step, ...]] | None = None
    actions: tuple[str, ...] = ()

    def found_in(self, state: ClusterState) -> T | None:
        """Returns the result of `find`; None if it was not called."""
        found: T | None = state.found.get(self.kind)
        return found


def find_left_by_tag(
    kind: str, ids: Callable[[EC2Client, list[FilterTypeDef]], Iterable[str]], command: str
) -> Callable[[Clients, Request], Leftovers]:
    """Returns a `find_left` for resources with the cluster's tag in EC2. command: of the AWS CLI, which deletes one."""

    def find_left(clients: Clients, request: Request) -> Leftovers:
        ec2 = clients.ec2
        with aws_errors(f"looking for what is left of cluster {request.name}"):
            left = tuple(
                Resource(
                    kind=kind,
                    resource_id=found,
                    deletion=f"aws ec2 {command} {found} --region {ec2.meta.region_name}",
                )
                for found in ids(ec2, [tagged(request.name)])
            )
        return Leftovers(looked_for=(f"{kind}es" if kind.endswith("s") else f"{kind}s",), left=left)

    return find_left


def retry_while(codes: Collection[str], call: Callable[[], T], *, timeout_s: float = NOT_FOUND_TIMEOUT_S) -> T:
    """Repeats a call while AWS returns one of the codes, for at most timeout_s. Raises the last ClientError."""
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


@dataclass(frozen=True, kw_only=True, slots=True)
class DeleteResources(Step):
    """Delete resources of one kind, once nothing uses them. They may be gone already.

    call: deletes one. gone, in_use: EC2's codes for one that does not exist, and for one that something still uses.
    note: what else the printed plan says.
    """

    kind: str
    ids: tuple[str, ...]
    call: Callable[[EC2Client, str], object]
    gone: str = ""
    in_use: frozenset[str] = frozenset()
    timeout_s: float = RELEASE_TIMEOUT_S
    note: str = ""

    def describe(self) -> str:
        what = f"{self.kind} {self.ids[0]}" if len(self.ids) == 1 else count(len(self.ids), self.kind)
        return f"delete {what}{self.note}"

    def details(self) -> Iterable[str]:
        return self.ids if len(self.ids) > 1 else ()

    def deletions(self) -> Iterable[tuple[str, Sequence[str]]]:
        return ((self.kind, self.ids),)

    def apply(self, context: Context) -> bool:
        """Deletes the resources, one call each. Returns False if none existed. Raises ClientError."""
        changed = False
        for each in self.ids:
            try:
                retry_while(self.in_use, partial(self.call, context.clients.ec2, each), timeout_s=self.timeout_s)
                changed = True
            except ClientError as error:
                if error_code(error) != self.gone:
                    raise
        return changed


def list_volumes(ec2: EC2Client, *filters: FilterTypeDef) -> list[VolumeTypeDef]:
    """Returns the volumes that exist, 500 with each call. Raises boto3's errors."""
    pages = ec2.get_paginator("describe_volumes").paginate(Filters=filters, PaginationConfig={"PageSize": 500})
    return [volume for page in pages for volume in page["Volumes"] if volume["State"] not in {"deleting", "deleted"}]


def delete_volume(ec2: EC2Client, volume_id: str) -> None:
    """Deletes a volume. Raises ClientError."""
    ec2.delete_volume(VolumeId=volume_id)


def tagged(name: str) -> FilterTypeDef:
    """Returns the filter for the tag of the cluster `name`."""
    return {"Name": f"tag:{TAG_NAME}", "Values": [name]}


def find_tag(found: Iterable[TagTypeDef], key: str) -> str | None:
    """Returns a tag's value; None without the tag."""
    return next((tag["Value"] for tag in found if tag["Key"] == key), None)


def tag_new(
    context: Context, kind: ResourceTypeType, *, role: str | None = None, more: Mapping[str, str] | None = None
) -> list[TagSpecificationTypeDef]:
    """Returns the tags for the call that creates a resource of the cluster, with those of cluster.toml."""
    own = {**context.tags, **(more or {})}
    return [tag_specification(kind, name=context.cluster, owner=context.owner, role=role, more=own)]


def tag_specification(
    kind: ResourceTypeType, *, name: str, owner: str, role: str | None = None, more: Mapping[str, str] | None = None
) -> TagSpecificationTypeDef:
    """Returns the cluster's tags for the call that creates the resource, so that it never exists untagged.

    role: by default the kind.
    """
    named = {**tags(name=name, owner=owner, role=role or kind), **(more or {})}
    return {"ResourceType": kind, "Tags": [{"Key": key, "Value": value} for key, value in named.items()]}
