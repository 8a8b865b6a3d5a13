"""The placement group, with the strategy `cluster`: nodes that are close together have a faster network."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from botocore.exceptions import ClientError
from msgspec import Struct

from foundation.waiting import poll
from provision.aws.clients import NOT_FOUND_TIMEOUT_S, Clients, aws_errors, error_code, not_ours
from provision.model import TAG_NAME, ClusterState, resource_name
from provision.plan import Context, Request, Step, World
from provision.resources.resource import (
    DeleteResources,
    ResourceKind,
    find_left_by_tag,
    find_tag,
    tag_new,
)

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client
    from mypy_boto3_ec2.type_defs import FilterTypeDef, PlacementGroupTypeDef

KIND = "placement group"
IN_USE_TIMEOUT_S = 180.0


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


def _list(ec2: EC2Client, filters: list[FilterTypeDef]) -> Iterable[str]:
    found = ec2.describe_placement_groups(Filters=filters)["PlacementGroups"]
    return (group["GroupName"] for group in found if _is_there(group))


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
    return (delete_placement_group(found.group_name),) if found is not None and found.ours else ()


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
        try:
            ec2.create_placement_group(
                GroupName=self.group_name, Strategy="cluster", TagSpecifications=tag_new(context, "placement-group")
            )
        except ClientError as error:
            if error_code(error) != "InvalidPlacementGroup.Duplicate":
                raise
            existing = poll(lambda: find_placement_group(ec2, name=context.cluster), timeout_s=NOT_FOUND_TIMEOUT_S)
            if existing is None or not existing.ours:
                raise not_ours(f"placement group {self.group_name}", name=context.cluster) from error
            return False
        return True


def _delete(ec2: EC2Client, group_name: str) -> None:
    ec2.delete_placement_group(GroupName=group_name)


def delete_placement_group(group_name: str) -> DeleteResources:
    """Returns the step that deletes a placement group, once it contains no instance."""
    return DeleteResources(
        kind=KIND,
        ids=(group_name,),
        call=_delete,
        gone="InvalidPlacementGroup.Unknown",
        in_use=frozenset({"InvalidPlacementGroup.InUse"}),
        timeout_s=IN_USE_TIMEOUT_S,
    )


PLACEMENT_GROUP: ResourceKind[PlacementGroup | None] = ResourceKind(
    kind=KIND,
    find_left=find_left_by_tag(KIND, _list, "delete-placement-group --group-name"),
    find=_find,
    plan_up=_plan_up,
    plan_down=_plan_down,
    actions=("DescribePlacementGroups", "CreatePlacementGroup", "DeletePlacementGroup"),
)
