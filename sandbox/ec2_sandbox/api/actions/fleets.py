"""Fleets of type instant: CreateFleet launches instances of several types, in several zones, by one call.

https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_CreateFleet.html
"""

import datetime as dt
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from moto.core.responses import ActionResult
from moto.core.utils import utcnow
from moto.ec2.exceptions import EC2ClientError
from moto.ec2.models.core import TaggedEC2Resource
from moto.ec2.utils import random_fleet_id

from ec2_sandbox.api import limits
from ec2_sandbox.api.actions.launches import LaunchActions
from ec2_sandbox.api.actions.templates import TAGGABLE, check_tagged, merge_launch
from ec2_sandbox.api.instances import ENDED, SandboxInstance
from ec2_sandbox.api.prices import ON_DEMAND, spot_price
from ec2_sandbox.config import Market

PRIORITIZED = ("prioritized", "capacity-optimized-prioritized")
# What an override of a fleet has besides parameters of a launch.
NOT_OF_A_LAUNCH = ("WeightedCapacity", "Priority", "MaxPrice", "AvailabilityZone", "SubnetId")


@dataclass(frozen=True, kw_only=True, slots=True)
class Pool:
    """One way to launch an instance of a fleet: a launch template with an override.

    named: the template's id and version. launch: the parameters of RunInstances. zone: None if any zone will do.
    """

    named: Mapping[str, str]
    override: Mapping[str, Any]
    launch: Mapping[str, Any]
    zone: str | None

    @property
    def weight(self) -> float:
        """The capacity units of one instance."""
        return float(self.override.get("WeightedCapacity") or 1)

    def price(self, market: Market, region: str) -> float:
        """Returns the price of a capacity unit in dollars per hour, or infinity if it is not known."""
        instance_type = str(self.launch.get("InstanceType"))
        if market == "on-demand":
            return ON_DEMAND.get(instance_type, math.inf) / self.weight
        zones = [self.zone] if self.zone else limits.zones_offering(instance_type, region)
        prices = (spot_price(instance_type, zone, dt.datetime.now(dt.UTC)) for zone in zones)
        return min((price for price in prices if price is not None), default=math.inf) / self.weight


def order_pools(pools: Iterable[Pool], market: Market, strategy: str, region: str) -> list[Pool]:
    """Returns the pools in the order in which a fleet tries them: by priority or by price."""
    if strategy in PRIORITIZED:
        return sorted(pools, key=lambda pool: float(pool.override.get("Priority", math.inf)))
    return sorted(pools, key=lambda pool: pool.price(market, region))


def place_launch(launch: dict[str, Any], zone: str | None, subnet_id: str | None) -> dict[str, Any]:
    """Returns a launch in an override's zone or subnet. Pure."""
    if subnet_id and (nics := launch.get("NetworkInterfaces")):
        return {**launch, "NetworkInterfaces": [{**nics[0], "SubnetId": subnet_id}, *nics[1:]]}
    if subnet_id:
        return {**launch, "SubnetId": subnet_id}
    return {**launch, "Placement": {**launch.get("Placement", {}), "AvailabilityZone": zone}} if zone else launch


def split_capacity(target: Mapping[str, Any]) -> dict[Market, int]:
    """Returns the capacity units to launch in each market. Pure. target: TargetCapacitySpecification."""
    wanted: dict[Market, int] = {
        "on-demand": int(target.get("OnDemandTargetCapacity") or 0), "spot": int(target.get("SpotTargetCapacity") or 0)
    }  # fmt: skip
    default: Market = "spot" if target.get("DefaultTargetCapacityType") == "spot" else "on-demand"
    wanted[default] += max(0, int(target.get("TotalTargetCapacity") or 0) - sum(wanted.values()))
    return wanted


class Fleet(TaggedEC2Resource):
    """An instant fleet: what was asked, and what was launched. It launches nothing later."""

    def __init__(self, ec2_backend: Any, asked: Mapping[str, Any]) -> None:
        self.ec2_backend = ec2_backend
        self.id = random_fleet_id()
        self.asked = asked
        self.created = utcnow()
        self.state = "active"
        self.launched: list[dict[str, Any]] = []
        self.errors: list[dict[str, Any]] = []
        self.instances: list[SandboxInstance] = []
        self.capacity: dict[Market, float] = {"on-demand": 0.0, "spot": 0.0}

    @property
    def live(self) -> list[SandboxInstance]:
        """The instances that have not ended."""
        return [instance for instance in self.instances if instance.state not in ENDED]

    def add(self, pool: Pool, market: Market, instances: list[SandboxInstance]) -> None:
        """Adds the instances of one launch."""
        self.instances += instances
        self.capacity[market] += pool.weight * len(instances)
        ids, instance_type = [instance.id for instance in instances], instances[0].instance_type
        self.launched.append({**_describe(pool, market), "InstanceIds": ids, "InstanceType": instance_type})
        for instance in instances:
            instance.add_tags({"aws:ec2:fleet-id": self.id})

    def refuse(self, pool: Pool, market: Market, error: EC2ClientError) -> None:
        """Adds the error of one launch."""
        self.errors.append({**_describe(pool, market), "ErrorCode": error.code, "ErrorMessage": error.message})

    def describe(self) -> dict[str, Any]:
        """Returns it in the format of DescribeFleets."""
        names = ("TargetCapacitySpecification", "LaunchTemplateConfigs", "OnDemandOptions", "SpotOptions")
        return {
            **{name: self.asked[name] for name in names if name in self.asked},
            "FleetId": self.id, "Type": "instant", "FleetState": self.state, "CreateTime": self.created,
            "ActivityStatus": "error" if self.errors else "fulfilled", "Tags": self.get_tags(),
            "FulfilledCapacity": sum(self.capacity.values()), "FulfilledOnDemandCapacity": self.capacity["on-demand"],
            "Instances": self.launched, "Errors": self.errors,
        }  # fmt: skip


def _describe(pool: Pool, market: Market) -> dict[str, Any]:
    used = {"LaunchTemplateSpecification": pool.named, "Overrides": pool.override}
    return {"LaunchTemplateAndOverrides": used, "Lifecycle": market}


class FleetActions(LaunchActions):
    """The actions on fleets."""

    def create_fleet(self) -> ActionResult:
        """Launches the capacity that the caller wants, from the cheapest pool that has it, and reports errors."""
        backend, asked = self.sandbox_backend, dict(self.params)
        if (kind := asked.get("Type", "maintain")) != "instant":
            raise EC2ClientError("UnsupportedOperation", f"The sandbox's EC2 has fleets of type instant, not {kind}.")
        check_tagged(asked.get("TagSpecifications", []), (*TAGGABLE, "fleet"))
        pools, fleet = list(self._read_pools(asked)), Fleet(backend, asked)
        tags = self._parse_tag_specification()
        fleet.add_tags(tags.pop("fleet", {}))
        for market, target in split_capacity(asked.get("TargetCapacitySpecification", {})).items():
            options = asked.get("SpotOptions" if market == "spot" else "OnDemandOptions", {})
            for pool in order_pools(pools, market, options.get("AllocationStrategy", ""), self.region):
                if (count := math.ceil((target - fleet.capacity[market]) / pool.weight)) > 0:
                    self._launch_from(pool, market, count, fleet)
        backend.fleets[fleet.id] = fleet  # type: ignore[assignment]  # moto's own class launches by itself
        return ActionResult({"FleetId": fleet.id, "Instances": fleet.launched, "Errors": fleet.errors})

    def _read_pools(self, asked: Mapping[str, Any]) -> Iterator[Pool]:
        of_instances = [spec for spec in asked.get("TagSpecifications", []) if spec["ResourceType"] != "fleet"]
        for config in asked.get("LaunchTemplateConfigs", []):
            version = self.find_template(config["LaunchTemplateSpecification"])
            named = {"LaunchTemplateId": version.template.id, "LaunchTemplateName": version.template.name,
                     "Version": str(version.number)}  # fmt: skip
            for override in config.get("Overrides") or [{}]:
                if "InstanceRequirements" in override:
                    raise NotImplementedError("a fleet whose types are given by InstanceRequirements")
                changes = {name: value for name, value in override.items() if name not in NOT_OF_A_LAUNCH}
                launch = merge_launch(version.data, {**changes, "TagSpecifications": of_instances})
                zone = override.get("AvailabilityZone")
                if subnet_id := override.get("SubnetId"):
                    zone = self.sandbox_backend.get_subnet(subnet_id).availability_zone
                yield Pool(named=named, override=override, launch=place_launch(launch, zone, subnet_id), zone=zone)

    def _launch_from(self, pool: Pool, market: Market, count: int, fleet: Fleet) -> None:
        """Launches up to `count` instances from a pool."""
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
            fleet.refuse(pool, market, error)
        else:
            fleet.add(pool, market, reservation.instances)
        finally:
            self.params = before

    def describe_fleets(self) -> ActionResult:
        """Returns the named fleets. Without a name, EC2 returns no instant fleet."""
        return ActionResult({"Fleets": [fleet.describe() for fleet in self._find_fleets()]})

    def describe_fleet_instances(self) -> ActionResult:
        """Returns the instances of a fleet that have not ended."""
        [fleet] = self._find_fleets()
        live = [
            {"InstanceId": instance.id, "InstanceType": instance.instance_type, "InstanceHealth": "healthy",
             "SpotInstanceRequestId": instance.spot_instance_request_id}
            for instance in fleet.live
        ]  # fmt: skip
        return ActionResult({"FleetId": fleet.id, "ActiveInstances": live})

    def delete_fleets(self) -> ActionResult:
        """Deletes fleets and terminates their instances, which EC2 requires for instant fleets."""
        if not self._get_bool_param("TerminateInstances"):
            raise EC2ClientError("InvalidParameterValue", "An instant fleet is deleted together with its instances.")
        deleted = []
        for fleet in self._find_fleets():
            if fleet.live:
                self.sandbox_backend.terminate_instances([instance.id for instance in fleet.live])
            states = {"PreviousFleetState": fleet.state, "CurrentFleetState": "deleted_terminating"}
            deleted.append({"FleetId": fleet.id, **states})
            fleet.state = "deleted_terminating"
        self.sandbox_backend.settings.wake()
        return ActionResult({"SuccessfulFleetDeletions": deleted, "UnsuccessfulFleetDeletions": []})

    def _find_fleets(self) -> list[Fleet]:
        known: Any = self.sandbox_backend.fleets
        ids = self._get_param("FleetIds", []) or [one for one in [self._get_param("FleetId")] if one]
        if unknown := [one for one in ids if one not in known]:
            raise EC2ClientError("InvalidFleetId.NotFound", f"The fleet ID '{unknown[0]}' does not exist")
        return [known[one] for one in ids]
