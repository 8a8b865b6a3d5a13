"""ResourceKind: the interface of every kind of resource. provision/resources/table.py lists the kinds."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from botocore.exceptions import ClientError
from msgspec import Struct

from foundation.waiting import poll
from provision.aws.clients import NOT_FOUND_TIMEOUT_S, Clients, aws_errors, error_code, not_ours, unless_refused
from provision.model import TAG_NAME, ClusterState, count, tags
from provision.plan import Context, Request, Step, World

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client
    from mypy_boto3_ec2.literals import ResourceTypeType
    from mypy_boto3_ec2.type_defs import FilterTypeDef, TagSpecificationTypeDef, TagTypeDef, VolumeTypeDef

T = TypeVar("T")


class Named(Protocol):
    """A resource with the cluster's name. ours: it also carries the cluster's tag."""

    @property
    def ours(self) -> bool: ...


N = TypeVar("N", bound=Named)
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
    """One kind of resource. Functions and texts that it does not need are missing.

    How EC2 lists and deletes it: listing is the client's method, `ids` finds ids in one of its answers, deletion is the
    command of the AWS CLI that deletes one, up to its id. gone, in_use: EC2's codes for one that does not exist, and
    for one that something still uses; release_s: for how long. actions: others in EC2, for the operator's policy.

    find: reads the input of plans for ClusterState.found; None if describe_cluster reads it. may_be_unseen: `down`
    continues if `find` is refused. is_wanted: whether `up` needs it. plan_up, plan_down: pure. plan_on_nodes: like
    plan_up, for steps that need running nodes. look: finds what is left, if this is not all that `listing` finds.
    `find` and `look` raise AwsError.
    """

    kind: str
    listing: str = ""
    ids: Callable[[Any], Iterable[str]] = iter
    deletion: str = ""
    gone: str = ""
    in_use: frozenset[str] = frozenset()
    release_s: float = RELEASE_TIMEOUT_S
    actions: tuple[str, ...] = ()
    find: Callable[[Clients, Request], T] | None = None
    may_be_unseen: bool = False
    is_wanted: Callable[[Request], bool] | None = None
    plan_up: Callable[[World], tuple[Step, ...]] | None = None
    plan_on_nodes: Callable[[World], tuple[Step, ...]] | None = None
    plan_down: Callable[[ClusterState], tuple[Step, ...]] | None = None
    look: Callable[[Clients, Request], Leftovers] | None = None

    @property
    def all_actions(self) -> tuple[str, ...]:
        """The EC2 actions that it calls: DescribeKeyPairs, DeleteKeyPair, ..."""
        calls = (self.listing, self.deletion.partition(" ")[0])
        return (*(call.title().replace("_", "").replace("-", "") for call in calls if call), *self.actions)

    def found_in(self, state: ClusterState) -> T | None:
        """Returns the result of `find`; None if it was not called."""
        found: T | None = state.found.get(self.kind)
        return found

    def find_ids(self, ec2: EC2Client, *filters: FilterTypeDef) -> list[str]:
        """Returns the ids of resources, 500 with each call. Raises boto3's errors."""
        client: Any = ec2  # the stubs know only literals
        if client.can_paginate(self.listing):
            pages = client.get_paginator(self.listing).paginate(Filters=filters, PaginationConfig={"PageSize": 500})
        else:
            pages = [getattr(client, self.listing)(Filters=filters)]
        return [each for page in pages for each in self.ids(page)]

    def find_left(self, clients: Clients, request: Request) -> Leftovers:
        """Returns all that is left with the cluster's tag. Raises AwsError."""
        if self.look is not None:
            return self.look(clients, request)
        with aws_errors(f"looking for what is left of cluster {request.name}"):
            found = self.find_ids(clients.ec2, tagged(request.name))
        left = tuple(
            Resource(kind=self.kind, resource_id=each, deletion=self.render_deletion(each, region=clients.region))
            for each in found
        )
        return Leftovers(looked_for=(f"{self.kind}s",), left=left)

    def render_deletion(self, resource_id: str, *, region: str) -> str:
        """Returns the command that deletes a resource. Pure."""
        return f"aws ec2 {self.deletion} {resource_id} --region {region}"

    def delete(self, ec2: EC2Client, resource_id: str) -> bool:
        """Deletes a resource, once nothing uses it. Returns False if it did not exist. Raises ClientError."""
        method, option = self.deletion.split(" --")
        key = option.title().replace("-", "")  # KeyName for key-name
        call = partial(getattr(ec2, method.replace("-", "_")), **{key: resource_id})
        done = unless_refused({self.gone}, lambda: retry_while(self.in_use, call, timeout_s=self.release_s))
        return done is not None

    def plan_deletion(self, *ids: str, note: str = "") -> tuple[Step, ...]:
        """Returns the step that deletes these resources; no step without any. note: what else the plan says. Pure."""
        return (DeleteResources(kind=self, ids=ids, note=note),) if ids else ()


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


def create_once(
    create: Callable[[], object], find: Callable[[], N | None], *, taken: str, what: str, name: str
) -> N | None:
    """Creates a resource. Returns None, or an existing one with its name that is of the cluster `name`, too.

    find: reads the existing one. taken: AWS's code for it. what: for the error. Raises ClusterError if that one is not
    the cluster's, and ClientError.
    """
    if unless_refused({taken}, lambda: (create(),)) is not None:
        return None
    existing = poll(find, timeout_s=NOT_FOUND_TIMEOUT_S)
    if existing is None or not existing.ours:
        raise not_ours(what, name=name)
    return existing


@dataclass(frozen=True, kw_only=True, slots=True)
class DeleteResources(Step):
    """Delete resources of one kind, once nothing uses them. They may be gone already."""

    kind: ResourceKind[Any]
    ids: tuple[str, ...]
    note: str = ""

    def describe(self) -> str:
        kind = self.kind.kind
        what = f"{kind} {self.ids[0]}" if len(self.ids) == 1 else count(len(self.ids), kind)
        return f"delete {what}{self.note}"

    def details(self) -> Iterable[str]:
        return self.ids if len(self.ids) > 1 else ()

    def deletions(self) -> Iterable[tuple[str, Sequence[str]]]:
        return ((self.kind.kind, self.ids),)

    def apply(self, context: Context) -> bool:
        """Deletes the resources, one call each. Returns False if none existed. Raises ClientError."""
        deleted = [self.kind.delete(context.clients.ec2, each) for each in self.ids]
        return any(deleted)


def list_volumes(ec2: EC2Client, *filters: FilterTypeDef) -> list[VolumeTypeDef]:
    """Returns the volumes that exist, 500 with each call. Raises boto3's errors."""
    pages = ec2.get_paginator("describe_volumes").paginate(Filters=filters, PaginationConfig={"PageSize": 500})
    return [volume for page in pages for volume in filter(is_there, page["Volumes"])]


def is_there(volume: VolumeTypeDef) -> bool:
    """Returns whether a volume that EC2 lists still exists. Pure."""
    return volume["State"] not in {"deleting", "deleted"}


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
