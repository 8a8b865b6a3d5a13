"""Fleets of type instant: CreateFleet launches instances of several types, in several zones, by one call.

Its response has all that DescribeFleets would; the instances have the fleet's id as a tag.

https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_CreateFleet.html
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from moto.core.responses import ActionResult
from moto.ec2.exceptions import EC2ClientError
from moto.ec2.utils import random_fleet_id

from ec2_sandbox.api.actions.launches import LaunchActions
from ec2_sandbox.api.actions.templates import TAGGABLE, check_tagged, merge_launch
from ec2_sandbox.api.instances import SandboxInstance
from ec2_sandbox.config import Market

# What an override of a fleet has besides parameters of a launch, and what the sandbox cannot do.
NOT_OF_A_LAUNCH = ("Priority", "MaxPrice", "AvailabilityZone", "SubnetId")
REFUSED = ("InstanceRequirements", "WeightedCapacity")


@dataclass(frozen=True, kw_only=True, slots=True)
class Pool:
    """One way to launch an instance of a fleet. named: the launch template's id and version."""

    named: Mapping[str, str]
    override: Mapping[str, Any]
    launch: Mapping[str, Any]

    def describe(self, market: Market) -> dict[str, Any]:
        """Returns it in the format of the API."""
        used = {"LaunchTemplateSpecification": self.named, "Overrides": self.override}
        return {"LaunchTemplateAndOverrides": used, "Lifecycle": market}


def place_launch(launch: dict[str, Any], zone: str | None, subnet_id: str | None) -> dict[str, Any]:
    """Returns a launch in an override's zone or subnet. Pure."""
    if subnet_id and (nics := launch.get("NetworkInterfaces")):
        return {**launch, "NetworkInterfaces": [{**nics[0], "SubnetId": subnet_id}, *nics[1:]]}
    if subnet_id:
        return {**launch, "SubnetId": subnet_id}
    return {**launch, "Placement": {**launch.get("Placement", {}), "AvailabilityZone": zone}} if zone else launch


def split_capacity(target: Mapping[str, Any]) -> dict[Market, int]:
    """Returns the number of instances to launch in each market. Pure. target: TargetCapacitySpecification."""
    wanted: dict[Market, int] = {
        "on-demand": int(target.get("OnDemandTargetCapacity") or 0), "spot": int(target.get("SpotTargetCapacity") or 0)
    }  # fmt: skip
    default: Market = "spot" if target.get("DefaultTargetCapacityType") == "spot" else "on-demand"
    wanted[default] += max(0, int(target.get("TotalTargetCapacity") or 0) - sum(wanted.values()))
    return wanted


@dataclass(frozen=True, kw_only=True, slots=True)
class Fleet:
    """What an instant fleet has launched, and why not more, in the format of the API. It launches nothing later."""

    id: str
    launched: list[dict[str, Any]] = field(default_factory=list)
    errors: list[dict[str, Any]] = field(default_factory=list)


class FleetActions(LaunchActions):
    """The actions on fleets."""

    def create_fleet(self) -> ActionResult:
        """Launches the capacity that the caller wants, from the first pools that have it, and reports errors.

        The pools are tried by their Priority, and then in the order of the call.
        """
        request = dict(self.params)
        if (kind := request.get("Type", "maintain")) != "instant":
            raise NotImplementedError(f"a fleet of type {kind}")
        check_tagged(request.get("TagSpecifications", []), (*TAGGABLE, "fleet"))
        pools = sorted(self._read_pools(request), key=lambda pool: float(pool.override.get("Priority", math.inf)))
        fleet = Fleet(id=random_fleet_id())
        for market, wanted in split_capacity(request.get("TargetCapacitySpecification", {})).items():
            launched = 0
            for pool in pools:
                if launched < wanted:
                    launched += self._launch_from(pool, market, wanted - launched, fleet)
        return ActionResult({"FleetId": fleet.id, "Instances": fleet.launched, "Errors": fleet.errors})

    def _read_pools(self, request: Mapping[str, Any]) -> Iterator[Pool]:
        of_instances = [spec for spec in request.get("TagSpecifications", []) if spec["ResourceType"] != "fleet"]
        for config in request.get("LaunchTemplateConfigs", []):
            version = self.find_template(config["LaunchTemplateSpecification"])
            named = {"LaunchTemplateId": version.template.id, "LaunchTemplateName": version.template.name,
                     "Version": str(version.number)}  # fmt: skip
            for override in config.get("Overrides") or [{}]:
                if refused := [name for name in REFUSED if name in override]:
                    raise NotImplementedError(f"a fleet with {refused[0]}")
                changes = {name: value for name, value in override.items() if name not in NOT_OF_A_LAUNCH}
                launch = merge_launch(version.data, {**changes, "TagSpecifications": of_instances})
                placed = place_launch(launch, override.get("AvailabilityZone"), override.get("SubnetId"))
                yield Pool(named=named, override=override, launch=placed)

    def _launch_from(self, pool: Pool, market: Market, count: int, fleet: Fleet) -> int:
        """Launches up to `count` instances from a pool, and returns how many."""
        template = {name: pool.named[name] for name in ("LaunchTemplateId", "Version")}
        spot = {"MaxPrice": pool.override.get("MaxPrice", "")}
        how = {"MarketType": "spot", "SpotOptions": spot} if market == "spot" else {}
        before = self.params
        self.params = {
            **pool.launch, "LaunchTemplate": template, "InstanceMarketOptions": how, "MinCount": 1, "MaxCount": count
        }  # fmt: skip
        try:
            reservation: Any = self.run_instances().result
        except EC2ClientError as error:
            fleet.errors.append({**pool.describe(market), "ErrorCode": error.code, "ErrorMessage": error.message})
            return 0
        finally:
            self.params = before
        launched: list[SandboxInstance] = reservation.instances
        for instance in launched:
            instance.add_tags({"aws:ec2:fleet-id": fleet.id})
        what = {"InstanceIds": [instance.id for instance in launched], "InstanceType": launched[0].instance_type}
        fleet.launched.append({**pool.describe(market), **what})
        return len(launched)
