"""RunInstances: what a launch is checked for, where and how many instances it gets, and what moto leaves out."""

import datetime as dt
from typing import cast

from moto.core.responses import ActionResult
from moto.core.utils import utcnow
from moto.ec2.exceptions import EC2ClientError
from moto.ec2.models.instances import Reservation
from moto.ec2.responses import EC2Response
from moto.iam.models import iam_backends

from sandbox import limits, spot
from sandbox.ec2 import DEFAULT_INSTANCE_TYPE, SandboxEC2Backend
from sandbox.fault_kinds import is_number
from sandbox.instances import SandboxInstance
from sandbox.placement_groups import PlacementGroup
from sandbox.prices import spot_price
from sandbox.quotas import Market


class LaunchActions(EC2Response):
    """moto's EC2 actions with RunInstances as EC2 has it."""

    @property
    def sandbox_backend(self) -> SandboxEC2Backend:
        """The backend of the call's region."""
        return cast("SandboxEC2Backend", self.ec2_backend)

    def run_instances(self) -> ActionResult:
        """Launches MaxCount instances, or MinCount at least; the same ClientToken gives the same reservation again."""
        low, high = int(self._get_param("MinCount", 1)), int(self._get_param("MaxCount", 1))
        if not 1 <= low <= high:
            raise EC2ClientError(
                "InvalidParameterValue", f"Invalid counts: MinCount {low}, MaxCount {high}; 1 <= MinCount <= MaxCount."
            )
        backend, token, asked = self.sandbox_backend, self._get_param("ClientToken"), dict(self.params)
        if token and not self._get_param("DryRun") and (again := backend.launches.find("RunInstances", token, asked)):
            return ActionResult(again)
        self._check_launch()
        fault_id = None
        if not self._get_param("DryRun"):
            zone, high = self._reserve(low, high)
            fault_id = limits.find_capacity_fault(self._instance_type(), self._market(), zone, backend.settings.book)
            if not self._find_subnet_id():
                self.params = {
                    **self.params,
                    "Placement": {**self._get_param("Placement", {}), "AvailabilityZone": zone},
                }
        # Instance store volumes are the type's own; EC2 lets callers name them all the same.
        devices = [device for device in self._get_param("BlockDeviceMappings", []) if "VirtualName" not in device]
        self.params = {**self.params, "MinCount": high, "BlockDeviceMappings": devices}
        try:
            result = super().run_instances()
        except EC2ClientError:
            if fault_id is not None:  # what was kept free for a launch that is none
                backend.settings.book.spend(fault_id, "free", -high)
            raise
        reservation = cast("Reservation", result.result)
        self._complete(cast("list[SandboxInstance]", reservation.instances), fault_id)
        if token:
            backend.launches.keep("RunInstances", token, asked, reservation)
        return result

    def _instance_type(self) -> str:
        template = self._get_param("LaunchTemplate")
        of_template = self.ec2_backend._get_template_from_args(template).data.get("InstanceType") if template else None  # noqa: SLF001 -- moto has no other way to read a template
        return str(self._get_param("InstanceType") or of_template or DEFAULT_INSTANCE_TYPE)

    def _image_id(self) -> str:
        template = self._get_param("LaunchTemplate")
        of_template = self.ec2_backend._get_template_from_args(template).image_id if template else None  # noqa: SLF001 -- as above
        return str(self._get_param("ImageId") or of_template)

    def _market(self) -> Market:
        return "spot" if self._get_param("InstanceMarketOptions.MarketType") == "spot" else "on-demand"

    def _find_subnet_id(self) -> str | None:
        nics = self._get_param("NetworkInterfaces", [])
        found = self._get_param("SubnetId") or next((nic["SubnetId"] for nic in nics if "SubnetId" in nic), None)
        return cast("str | None", found)

    def _find_zone(self) -> str | None:
        """The zone that the caller chose, by name or by subnet."""
        subnet_id = self._find_subnet_id()
        if subnet_id:
            return str(self.ec2_backend.get_subnet(subnet_id).availability_zone)
        return cast("str | None", self._get_param("Placement.AvailabilityZone"))

    def _check_launch(self) -> None:
        backend, instance_type, zone = self.sandbox_backend, self._instance_type(), self._find_zone()
        backend.check_launch(self._image_id(), self._get_param("KeyName"), instance_type, zone)
        limits.check_architecture(instance_type, str(backend.amis[self._image_id()].architecture))
        if zone:
            limits.check_offered(instance_type, zone, self.region)
        if group := self._find_placement_group():
            limits.check_strategy(instance_type, group.strategy, group.name)
        self._check_profile()
        if self._market() == "spot":
            price = self._get_param("InstanceMarketOptions.SpotOptions.MaxPrice")
            if price and not is_number(str(price)):
                raise EC2ClientError("InvalidParameterValue", f"Invalid value '{price}' for spotPrice.")
            lowest = spot_price(instance_type, zone or f"{self.region}a", utcnow().replace(tzinfo=dt.UTC))
            limits.check_spot_price(instance_type, float(price) if price else None, lowest)

    def _check_profile(self) -> None:
        """Raises EC2ClientError for an instance profile that is not there, or not yet, or empty."""
        asked: dict[str, str] = self._get_param("IamInstanceProfile", {})
        profiles = list(iam_backends[self.current_account][self.partition].get_instance_profiles())
        hides = self.sandbox_backend.unsettled.hides_made_at
        known = [profile for profile in profiles if not hides(profile.create_date)]
        for parameter, kind in (("Name", "name"), ("Arn", "ARN")):
            if not (wanted := asked.get(parameter)):
                continue
            found = next((one for one in known if wanted == (one.name if parameter == "Name" else one.arn)), None)
            if found is None:
                raise EC2ClientError(
                    "InvalidParameterValue",
                    f"Value ({wanted}) for parameter iamInstanceProfile.{parameter.lower()} is invalid. Invalid IAM "
                    f"Instance Profile {kind}",
                )
            if not found.roles:
                raise EC2ClientError(
                    "InvalidParameterValue", f'IAM Instance Profile "{found.arn}" has no associated IAM Roles'
                )
        if all(asked.get(parameter) for parameter in ("Name", "Arn")):
            raise EC2ClientError(
                "InvalidParameterCombination", "The parameter 'iamInstanceProfile.name' may not be used in combination "
                "with 'iamInstanceProfile.arn'",
            )  # fmt: skip

    def _find_placement_group(self) -> PlacementGroup | None:
        groups = self.sandbox_backend.placement_groups
        if name := self._get_param("Placement.GroupName"):
            return groups.get(name)
        group_id = self._get_param("Placement.GroupId")
        return groups.find_by_id(group_id) if group_id else None

    def _reserve(self, low: int, high: int) -> tuple[str, int]:
        """The zone and the number of instances that quota and capacity let this launch have."""
        backend, instance_type, market = self.sandbox_backend, self._instance_type(), self._market()
        zone = self._find_zone()
        zones = [zone] if zone else [
            name for name in limits.zones_offering(instance_type, self.region) if name in backend.get_default_subnets()
        ]  # fmt: skip
        if not zones:
            limits.check_offered(instance_type, f"{self.region}a", self.region)
        high = backend.allow_by_quota(instance_type, market, low, high)
        zone, high = limits.reserve_capacity(
            instance_type, market, low, high, zones=zones, book=backend.settings.book, named=zone is not None
        )
        return zone, high

    def _complete(self, launched: list[SandboxInstance], fault_id: str | None) -> None:
        """What moto leaves out of the instances of a launch, and the instance profile of all but the first.

        All that could be refused has been by now, as the instances are there.
        """
        profile = self._get_param("IamInstanceProfile", {})
        if any(profile.values()):  # an empty one is none: some launchers always send it
            for instance in launched[1:]:
                self.ec2_backend.associate_iam_instance_profile(
                    instance_id=instance.id,
                    iam_instance_profile_name=profile.get("Name"),
                    iam_instance_profile_arn=profile.get("Arn"),
                )
        group = self._find_placement_group()
        for instance in launched:
            instance.placement.group_name = group.name if group else ""
            instance.placement.group_id = group.id if group else None  # type: ignore[attr-defined]
            instance.capacity_fault = fault_id
            instance.client_token = self._get_param("ClientToken", "")
            if tags := self._parse_tag_specification().get("network-interface"):
                self.ec2_backend.create_tags([nic.id for nic in instance.nics.values()], tags)
        if self._market() == "spot":
            spot.register(
                launched, self._get_param("InstanceMarketOptions.SpotOptions", {}), self._parse_tag_specification()
            )
