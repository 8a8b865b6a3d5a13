"""RunInstances: checks, capacity, and what moto omits."""

from typing import Any, cast

from moto.core.responses import ActionResult
from moto.ec2.exceptions import EC2ClientError, InvalidLaunchTemplateVersionNotFound, MissingParameterError
from moto.ec2.models.instances import Reservation
from moto.ec2.models.launch_templates import LaunchTemplateVersion
from moto.ec2.responses import EC2Response
from moto.iam.models import iam_backends

from ec2_sandbox.api import limits
from ec2_sandbox.api.actions.templates import check_tagged, merge_launch
from ec2_sandbox.api.ec2 import DEFAULT_INSTANCE_TYPE, SandboxEC2Backend
from ec2_sandbox.api.instances import PlacementGroup, SandboxInstance, register_spot_requests
from ec2_sandbox.config import Market

MAX_USER_DATA = 16384


class SandboxActions(EC2Response):
    """moto's EC2 actions, with the sandbox's backend."""

    @property
    def sandbox_backend(self) -> SandboxEC2Backend:
        """The backend of the call's region."""
        return cast("SandboxEC2Backend", self.ec2_backend)


class LaunchActions(SandboxActions):
    """RunInstances, with the parameters of its launch template."""

    def run_instances(self) -> ActionResult:
        """Launches MinCount to MaxCount instances."""
        low, high = int(self._get_param("MinCount", 1)), int(self._get_param("MaxCount", 1))
        if not 1 <= low <= high:
            raise EC2ClientError(
                "InvalidParameterValue", f"Invalid counts: MinCount {low}, MaxCount {high}; 1 <= MinCount <= MaxCount."
            )
        check_tagged(self._get_param("TagSpecifications", []))
        self._apply_template()
        self._check_launch()
        fault_id = None
        if not self._get_param("DryRun"):
            zone, high, fault_id = self._reserve(low, high)
            if not self._find_subnet_id():
                self.params = {
                    **self.params,
                    "Placement": {**self._get_param("Placement", {}), "AvailabilityZone": zone},
                }
        # Instance store volumes come with the type, but EC2 accepts them in the mappings.
        devices = [device for device in self._get_param("BlockDeviceMappings", []) if "VirtualName" not in device]
        self.params = {**self.params, "MinCount": high, "BlockDeviceMappings": devices}
        try:
            result = super().run_instances()
        except EC2ClientError:
            if fault_id is not None:  # nothing was launched
                self.sandbox_backend.settings.book.spend(fault_id, "free", -high)
            raise
        self._complete(cast("list[SandboxInstance]", cast("Reservation", result.result).instances), fault_id)
        return result

    def _apply_template(self) -> None:
        """Adds the parameters of the launch template that the caller names."""
        if given := self._get_param("LaunchTemplate"):
            version = self.find_template(given)
            named = {"LaunchTemplateId": version.template.id, "Version": str(version.number)}
            self.params = {**merge_launch(version.data, self.params), "LaunchTemplate": named}

    def find_template(self, given: dict[str, str]) -> LaunchTemplateVersion:
        """Returns a version of a launch template. Raises EC2ClientError if it does not exist.

        given: LaunchTemplateId or LaunchTemplateName, and Version: a number, $Latest or $Default, which is the default.
        """
        backend, version = self.sandbox_backend, given.get("Version") or "$Default"
        if template_id := given.get("LaunchTemplateId"):
            template = backend.get_launch_template(template_id)
        else:
            template = backend.get_launch_template_by_name(given.get("LaunchTemplateName", ""))
        known = ("$latest", "$default", *(str(one.number) for one in template.versions))
        if version.lower() not in known:
            raise InvalidLaunchTemplateVersionNotFound(template_id=template.id, version=version)
        return template.get_version(version)

    def create_launch_template_version(self) -> ActionResult:
        """As in moto, but with the parameters of the source version that the caller does not give."""
        if source := self._get_param("SourceVersion"):
            version = self.find_template({**self.params, "Version": source})
            data = {**version.data, **self._get_param("LaunchTemplateData", {})}
            self.params = {**self.params, "LaunchTemplateData": data}
        return super().create_launch_template_version()

    def describe_launch_templates(self) -> ActionResult:
        """As in moto, but raises EC2ClientError for an unknown id."""
        for template_id in self._get_param("LaunchTemplateIds", []):
            self.sandbox_backend.get_launch_template(template_id)
        return super().describe_launch_templates()

    def _instance_type(self) -> str:
        return str(self._get_param("InstanceType") or DEFAULT_INSTANCE_TYPE)

    def _market(self) -> Market:
        return "spot" if self._get_param("InstanceMarketOptions.MarketType") == "spot" else "on-demand"

    def _find_subnet_id(self) -> str | None:
        nics = self._get_param("NetworkInterfaces", [])
        found = self._get_param("SubnetId") or next((nic["SubnetId"] for nic in nics if "SubnetId" in nic), None)
        return cast("str | None", found)

    def _find_zone(self) -> str | None:
        """Returns the zone that the caller chose, by name or by subnet, or None."""
        subnet_id = self._find_subnet_id()
        if subnet_id:
            return str(self.ec2_backend.get_subnet(subnet_id).availability_zone)
        return cast("str | None", self._get_param("Placement.AvailabilityZone"))

    def _check_launch(self) -> None:
        backend, instance_type, zone = self.sandbox_backend, self._instance_type(), self._find_zone()
        if len(str(self._get_param("UserData", "")).rstrip("=")) * 3 // 4 > MAX_USER_DATA:  # it is in base64
            raise EC2ClientError("InvalidParameterValue", f"User data is limited to {MAX_USER_DATA} bytes")
        image_id = str(self._get_param("ImageId", ""))
        backend.check_launch(image_id, self._get_param("KeyName"), instance_type, zone)
        limits.check_architecture(instance_type, str(backend.amis[image_id].architecture))
        if zone:
            limits.check_offered(instance_type, zone, self.region)
        if group := self._find_placement_group():
            limits.check_strategy(instance_type, group.strategy, group.group_name)
        self._check_profile()

    def _check_profile(self) -> None:
        """Raises EC2ClientError for an instance profile that does not exist, is not yet visible, or has no role."""
        given: dict[str, str] = self._get_param("IamInstanceProfile", {})
        profiles = list(iam_backends[self.current_account][self.partition].get_instance_profiles())
        hides = self.sandbox_backend.unsettled.hides_made_at
        parameter, kind = ("arn", "ARN") if given.get("Arn") else ("name", "name")
        wanted = given.get(parameter.capitalize())
        if not wanted:
            return
        found = next((one for one in profiles if getattr(one, parameter) == wanted), None)
        if found is None or hides(found.create_date):
            raise EC2ClientError(
                "InvalidParameterValue",
                f"Value ({wanted}) for parameter iamInstanceProfile.{parameter} is invalid. Invalid IAM Instance "
                f"Profile {kind}",
            )
        if not found.roles:
            raise EC2ClientError(
                "InvalidParameterValue", f'IAM Instance Profile "{found.arn}" has no associated IAM Roles'
            )

    def _find_placement_group(self) -> PlacementGroup | None:
        name = self._get_param("Placement.GroupName") or self._get_param("Placement.GroupId")
        return self.sandbox_backend.placement_groups.get(name) if name else None

    def _reserve(self, low: int, high: int) -> tuple[str, int, str | None]:
        """Reserves capacity for a launch of `low` to `high` instances.

        Returns the zone, the number of instances that quota and capacity allow, and the id of the capacity fault or
        None.
        """
        backend, instance_type, market = self.sandbox_backend, self._instance_type(), self._market()
        zone = self._find_zone()
        if reservation_id := self._reservation_id():  # its capacity is reserved, and already counts against the quota
            free = backend.capacity_reservations.check_launch(
                reservation_id,
                instance_type=instance_type,
                zone=zone,
                low=low,
                market_type=self._get_param("InstanceMarketOptions.MarketType"),
            )
            return backend.capacity_reservations.get(reservation_id).availability_zone, min(high, free), None
        zones = [zone] if zone else [
            name for name in limits.zones_offering(instance_type, self.region) if name in backend.get_default_subnets()
        ]  # fmt: skip
        if not zones:
            limits.check_offered(instance_type, f"{self.region}a", self.region)
            raise EC2ClientError("MissingInput", "No subnets found for the default VPC. Please specify a subnet.")
        high = backend.allow_by_quota(instance_type, market, low, high)
        return limits.reserve_capacity(
            instance_type, market, low, high, zones=zones, book=backend.settings.book, named=zone is not None
        )

    def _reservation_id(self) -> str | None:
        target = "CapacityReservationSpecification.CapacityReservationTarget.CapacityReservationId"
        return cast("str | None", self._get_param(target))

    def _complete(self, launched: list[SandboxInstance], fault_id: str | None) -> None:
        """Adds the attributes that moto omits, and the instance profile, which moto sets only on the first instance."""
        profile = self._get_param("IamInstanceProfile", {})
        if any(profile.values()):  # some launchers send an empty profile
            for instance in launched[1:]:
                self.ec2_backend.associate_iam_instance_profile(
                    instance_id=instance.id,
                    iam_instance_profile_name=profile.get("Name"),
                    iam_instance_profile_arn=profile.get("Arn"),
                )
        group = self._find_placement_group()
        for instance in launched:
            instance.placement.group_name = group.group_name if group else ""
            instance.placement.group_id = group.id if group else None  # type: ignore[attr-defined]
            instance.capacity_fault = fault_id
            instance.disable_api_termination = bool(self._get_param("DisableApiTermination"))
            instance.client_token = self._get_param("ClientToken", "")
            if tags := self._parse_tag_specification().get("network-interface"):
                self.ec2_backend.create_tags([nic.id for nic in instance.nics.values()], tags)
        if reservation_id := self._reservation_id():
            self.sandbox_backend.capacity_reservations.assign(launched, reservation_id)
        if self._market() == "spot":
            register_spot_requests(
                launched, self._get_param("InstanceMarketOptions.SpotOptions", {}), self._parse_tag_specification()
            )

    @staticmethod
    def _validate_block_device_mapping(device_mapping: dict[str, Any]) -> None:
        """As in moto, but the image's own volumes need no size."""
        if "NoDevice" not in device_mapping and "Ebs" not in device_mapping:
            raise MissingParameterError("ebs")

    def _parse_block_device_mapping(self) -> list[dict[str, Any]]:
        """As in moto, but with the throughput, and without defaults, so that the image's values apply."""
        mappings = super()._parse_block_device_mapping()
        for mapping, given in zip(mappings, self._get_param("BlockDeviceMappings", []), strict=True):
            for option in ("DeleteOnTermination", "Encrypted", "Throughput"):
                mapping["Ebs"][option] = given.get("Ebs", {}).get(option)
        return mappings
