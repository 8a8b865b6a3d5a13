"""Placement groups, which moto lacks. They are kept, tagged, named and guarded; hosts are all on one machine anyway.

https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_CreatePlacementGroup.html
"""

import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from moto.ec2.exceptions import EC2ClientError

STRATEGIES = ("cluster", "spread", "partition")
MAX_PARTITIONS = 7


@dataclass(frozen=True, kw_only=True, slots=True)
class PlacementGroup:
    """A placement group. `partitions` is None unless it has any; its tags are with the backend's other tags."""

    id: str
    name: str
    strategy: str
    partitions: int | None
    spread_level: str | None
    arn: str

    def filter_values(self, name: str, tags: dict[str, str]) -> list[str]:
        """What a filter of DescribePlacementGroups compares with. Raises EC2ClientError for an unknown filter."""
        if name.startswith("tag:"):
            value = tags.get(name.removeprefix("tag:"))
            return [] if value is None else [value]
        known = {
            "group-name": [self.name], "group-arn": [self.arn], "state": ["available"], "strategy": [self.strategy],
            "spread-level": [self.spread_level or ""], "tag-key": list(tags),
        }  # fmt: skip
        if name not in known:
            raise EC2ClientError("InvalidParameterValue", f"The filter '{name}' is invalid")
        return known[name]


class PlacementGroups:
    """All placement groups of one region, by name."""

    def __init__(self, region: str, account_id: str) -> None:
        self._groups: dict[str, PlacementGroup] = {}
        self._arn = f"arn:aws:ec2:{region}:{account_id}:placement-group"

    def create(self, name: str, strategy: str, partitions: int | None, spread_level: str | None) -> PlacementGroup:
        """Raises EC2ClientError."""
        if not name:
            raise EC2ClientError("MissingParameter", "The request must contain the parameter groupName")
        if name in self._groups:
            raise EC2ClientError("InvalidPlacementGroup.Duplicate", f"The Placement Group '{name}' already exists.")
        if strategy not in STRATEGIES:
            raise EC2ClientError("InvalidParameterValue", f"Invalid value '{strategy}' for strategy.")
        if partitions is not None and (strategy != "partition" or not 1 <= partitions <= MAX_PARTITIONS):
            raise EC2ClientError("InvalidParameterValue", f"Invalid value '{partitions}' for partitionCount.")
        group_id = f"pg-0{secrets.token_hex(8)}"
        group = PlacementGroup(
            id=group_id,
            name=name,
            strategy=strategy,
            partitions=(partitions or 2) if strategy == "partition" else None,
            spread_level=(spread_level or "rack") if strategy == "spread" else None,
            arn=f"{self._arn}/{name}",
        )
        self._groups[name] = group
        return group

    def get(self, name: str) -> PlacementGroup:
        """Raises EC2ClientError for a group that is not there."""
        if name not in self._groups:
            raise EC2ClientError("InvalidPlacementGroup.Unknown", f"The Placement Group '{name}' is unknown.")
        return self._groups[name]

    def find(self, name: str) -> PlacementGroup | None:
        """A group by its name or its id."""
        return next((group for group in self._groups.values() if name in (group.name, group.id)), None)

    def find_by_id(self, group_id: str) -> PlacementGroup:
        """Raises EC2ClientError for a group that is not there."""
        for group in self._groups.values():
            if group.id == group_id:
                return group
        raise EC2ClientError("InvalidPlacementGroup.Unknown", f"The Placement Group '{group_id}' is unknown.")

    def delete(self, name: str, *, used: Iterable[str]) -> PlacementGroup:
        """Deletes a group and returns it. used: names of the groups that instances are in. Raises EC2ClientError."""
        self.get(name)
        if name in used:
            raise EC2ClientError(
                "InvalidPlacementGroup.InUse", f"The placement group '{name}' is in use and may not be deleted."
            )
        return self._groups.pop(name)

    def describe(
        self, names: Iterable[str], ids: Iterable[str], filters: dict[str, list[str]], tags: dict[str, dict[str, str]]
    ) -> list[dict[str, Any]]:
        """As DescribePlacementGroups answers. tags: those of every resource, by its id. Raises EC2ClientError."""
        named = [*(self.get(name) for name in names), *(self.find_by_id(group_id) for group_id in ids)]
        return [
            render(group, tags.get(group.id, {}))
            for group in named or self._groups.values()
            if all(
                any(fnmatchcase(value, pattern) for value in group.filter_values(name, tags.get(group.id, {}))
                    for pattern in patterns)
                for name, patterns in filters.items()
            )
        ]  # fmt: skip


def render(group: PlacementGroup, tags: dict[str, str]) -> dict[str, Any]:
    """As EC2 answers. Pure."""
    optional = {"PartitionCount": group.partitions, "SpreadLevel": group.spread_level}
    return {
        "GroupName": group.name,
        "GroupId": group.id,
        "GroupArn": group.arn,
        "State": "available",
        "Strategy": group.strategy,
        "Tags": [{"Key": key, "Value": value} for key, value in tags.items()],
        **{name: value for name, value in optional.items() if value is not None},
    }
