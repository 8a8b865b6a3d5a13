"""The placement group, with the strategy `cluster`: nodes that are close together have a faster network."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from msgspec import Struct

from provision.aws.clients import Clients, aws_errors, not_ours
from provision.model import TAG_NAME, ClusterState, resource_name
from provision.plan import Context, Request, Step, World
from provision.resources.resource import (
    ResourceKind,
    create_once,
    find_tag,
    tag_new,
)

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client
    from mypy_boto3_ec2.type_defs import FilterTypeDef, PlacementGroupTypeDef

KIND = "placement group"


class PlacementGroup(Struct, frozen=True, kw_only=True):
    """A placement group with the cluster's name; `ours`: it also carries the cluster's tag."""

    group_name: str
    ours: bool


def _find(clients: Clients, request: Request) -> PlacementGroup | None:
    return find_placement_group(clients.ec2, name=request.name)


def find_placement_group(ec2: EC2Client, *, name: str) -> PlacementGroup | None:
    """Returns the placement group with the cluster's name; None if it does not exist. Raises AwsError."""
    named: FilterTypeDef = {"Name": "group-name", "Values": [resource_name(name)]}
    with aws_errors(f"looking for the placement group of cluster {name}"):
        found = ec2.describe_placement_groups(Filters=[named])["PlacementGroups"]
    group = next(filter(_is_there, found), None)
    if group is None:
        return None
    return PlacementGroup(group_name=group["GroupName"], ours=find_tag(group.get("Tags", []), TAG_NAME) == name)


def _is_there(group: PlacementGroupTypeDef) -> bool:
    return group.get("State", "available") not in {"deleting", "deleted"}


def find_placement_name(world: World) -> str | None:
    """Returns the placement group's name, if the launch may use it. Pure."""
    options = world.preflight.options if world.preflight is not None else ()
    return world.resource_name if any(option.placement for option in options) else None


def _plan_up(world: World) -> tuple[Step, ...]:
    group_name = find_placement_name(world)
    if group_name is None:
        return ()
    found = PLACEMENT_GROUP.found_in(world.state)
    if found is not None and not found.ours:
        raise not_ours(f"placement group {group_name}", name=world.request.name)
    return (CreatePlacementGroup(group_name=group_name),) if found is None else ()


def _plan_down(state: ClusterState) -> tuple[Step, ...]:
    found = PLACEMENT_GROUP.found_in(state)
    return PLACEMENT_GROUP.plan_deletion(found.group_name) if found is not None and found.ours else ()


@dataclass(frozen=True, kw_only=True, slots=True)
class CreatePlacementGroup(Step):
    """Create the placement group."""

    makes = KIND
    group_name: str

    def describe(self) -> str:
        return f"make placement group {self.group_name}"

    def apply(self, context: Context) -> bool:
        """Creates the group, or uses an existing one of that name if it is ours. Returns False if it existed."""
        ec2 = context.clients.ec2
        create = partial(
            ec2.create_placement_group,
            GroupName=self.group_name,
            Strategy="cluster",
            TagSpecifications=tag_new(context, "placement-group"),
        )
        existing = create_once(
            create,
            lambda: find_placement_group(ec2, name=context.cluster),
            taken="InvalidPlacementGroup.Duplicate",
            what=f"placement group {self.group_name}",
            name=context.cluster,
        )
        return existing is None


PLACEMENT_GROUP: ResourceKind[PlacementGroup | None] = ResourceKind(
    kind=KIND,
    listing="describe_placement_groups",
    ids=lambda page: (group["GroupName"] for group in page["PlacementGroups"] if _is_there(group)),
    deletion="delete-placement-group --group-name",
    gone="InvalidPlacementGroup.Unknown",
    in_use=frozenset({"InvalidPlacementGroup.InUse"}),
    release_s=180.0,
    find=_find,
    plan_up=_plan_up,
    plan_down=_plan_down,
    actions=("CreatePlacementGroup",),
)
