"""EC2's actions: those of moto, one at a time, and those that moto lacks or implements only in part."""

import base64
import datetime as dt
import re
from typing import Any, cast

from moto.core.common_types import TYPE_RESPONSE
from moto.core.exceptions import ServiceException
from moto.core.responses import ActionResult, EmptyResult
from moto.core.types import Base64EncodedString
from moto.core.utils import utcnow
from moto.ec2.exceptions import DryRunClientError, EC2ClientError, MissingParameterError
from moto.ec2.models.instances import Reservation
from moto.ec2.responses import EC2Response
from moto.iam.models import iam_backends

from ec2_sandbox.api import images, limits, volumes
from ec2_sandbox.api.ec2 import DEFAULT_INSTANCE_TYPE, SandboxEC2Backend, lock
from ec2_sandbox.api.instances import PlacementGroup, SandboxInstance, register_spot_requests
from ec2_sandbox.api.prices import ON_DEMAND, spot_price, spot_times
from ec2_sandbox.config import Market

PRICE_PAGE = 1000
NAMESPACE = "http://ec2.amazonaws.com/doc/2016-11-15"
NOTHING_ELSE = r"(Response xmlns=[^>]*>(?:<requestId>[^<]*</requestId>)?)(</\w+Response>$)"
# Actions with these words in their names change the firewall immediately.
FIREWALL_WORDS = ("SecurityGroup", "ModifyInstanceAttribute", "ModifyNetworkInterfaceAttribute")


class SandboxEC2Response(EC2Response):
    """moto's EC2 actions, with the sandbox's additions."""

    @classmethod
    def dispatch(cls, *args: Any, **kwargs: Any) -> Any:
        """Handles one call at a time. The daemon makes its own changes between calls."""
        with lock:
            return super().dispatch(*args, **kwargs)

    def call_action(self) -> TYPE_RESPONSE:
        """As in moto, but in EC2's exact form, which some clients require.

        The namespace ends with a slash, and errors have no namespace. A response without content has `true`.
        """
        status, headers, body = self._call_action()
        namespace = f' xmlns="{NAMESPACE}/"' if status < 400 else ""
        answer = str(body).replace(f' xmlns="{NAMESPACE}"', namespace, 1)
        return status, headers, re.sub(NOTHING_ELSE, r"\1<return>true</return>\2", answer)

    def _call_action(self) -> TYPE_RESPONSE:
        """Adds what all actions have in common: ids that are not yet visible, client tokens, dry runs."""
        backend, action = self.sandbox_backend, self._get_action()
        token = self._get_param("ClientToken")
        repeatable = bool(token) and action != "RunInstances"  # RunInstances answers with the current states
        try:
            backend.unsettled.check(action, self.params)
            if self._get_param("DryRun") and action != "RunInstances":
                raise DryRunClientError
            if repeatable and (found := backend.answers.find(action, token, self.params)):
                return found
            status, headers, body = super().call_action()
        except NotImplementedError as error:
            unsupported = EC2ClientError("UnsupportedOperation", f"The sandbox's EC2 cannot do this: {error}")
            return self._render_error(unsupported)
        except ServiceException as error:
            return self._render_error(error)
        if status < 400:
            if any(word in action for word in FIREWALL_WORDS):
                backend.settings.enforce(backend)
            backend.unsettled.note(action, self.params, str(body))
            if repeatable:
                backend.answers.keep(action, token, self.params, (status, headers, body))
        return status, headers, body

    def _render_error(self, error: ServiceException) -> TYPE_RESPONSE:
        status, headers, body = self.serialized(ActionResult(error))
        headers["status"] = str(status)
        return status, headers, body

    @property
    def sandbox_backend(self) -> SandboxEC2Backend:
        """The backend of the call's region."""
        return cast("SandboxEC2Backend", self.ec2_backend)

    # --- RunInstances

    def run_instances(self) -> ActionResult:
        """Launches MinCount to MaxCount instances. A repeated ClientToken returns the same reservation."""
        low, high = int(self._get_param("MinCount", 1)), int(self._get_param("MaxCount", 1))
        if not 1 <= low <= high:
            raise EC2ClientError(
                "InvalidParameterValue", f"Invalid counts: MinCount {low}, MaxCount {high}; 1 <= MinCount <= MaxCount."
            )
        backend, token, given = self.sandbox_backend, self._get_param("ClientToken"), dict(self.params)
        if token and not self._get_param("DryRun") and (again := backend.launches.find("RunInstances", token, given)):
            return ActionResult(again)
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
                backend.settings.book.spend(fault_id, "free", -high)
            raise
        reservation = cast("Reservation", result.result)
        self._complete(cast("list[SandboxInstance]", reservation.instances), fault_id)
        if token:
            backend.launches.keep("RunInstances", token, given, reservation)
        return result

    def _find_template(self) -> dict[str, Any]:
        """Returns the data of the launch template that the caller names, or {}."""
        template = self._get_param("LaunchTemplate")
        return self.ec2_backend._get_template_from_args(template).data if template else {}  # noqa: SLF001 -- moto has no public way to read a template

    def _instance_type(self) -> str:
        return str(self._get_param("InstanceType") or self._find_template().get("InstanceType", DEFAULT_INSTANCE_TYPE))

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
        image_id = str(self._get_param("ImageId") or self._find_template().get("ImageId"))
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
        known = [profile for profile in profiles if not hides(profile.create_date)]
        for parameter, kind in (("Name", "name"), ("Arn", "ARN")):
            if not (wanted := given.get(parameter)):
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
        if all(given.get(parameter) for parameter in ("Name", "Arn")):
            raise EC2ClientError(
                "InvalidParameterCombination", "The parameter 'iamInstanceProfile.name' may not be used in combination "
                "with 'iamInstanceProfile.arn'",
            )  # fmt: skip

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
            instance.client_token = self._get_param("ClientToken", "")
            if tags := self._parse_tag_specification().get("network-interface"):
                self.ec2_backend.create_tags([nic.id for nic in instance.nics.values()], tags)
        if reservation_id := self._reservation_id():
            self.sandbox_backend.capacity_reservations.assign(launched, reservation_id)
        if self._market() == "spot":
            register_spot_requests(
                launched, self._get_param("InstanceMarketOptions.SpotOptions", {}), self._parse_tag_specification()
            )

    # --- other actions

    def create_placement_group(self) -> ActionResult:
        """Creates a placement group."""
        group = self.sandbox_backend.placement_groups.create(
            self._get_param("GroupName", ""), self._get_param("Strategy", "cluster")
        )
        group.add_tags(self._parse_tag_specification("placement-group").get("placement-group", {}))
        return ActionResult({"PlacementGroup": group})

    def describe_placement_groups(self) -> ActionResult:
        """Returns the named groups, or all groups, that match the filters."""
        named = [*self._get_param("GroupNames", []), *self._get_param("GroupIds", [])]
        found = self.sandbox_backend.placement_groups.describe(named, self._filters_from_querystring())
        hides = self.sandbox_backend.unsettled.hides
        return ActionResult({"PlacementGroups": [group for group in found if not hides("pg", group.id)]})

    def delete_placement_group(self) -> ActionResult:
        """Deletes a placement group without instances."""
        used = {i.placement.group_name for i in self.sandbox_backend.sandbox_instances() if i.state != "terminated"}
        self.sandbox_backend.placement_groups.delete(self._get_param("GroupName", ""), used=used)
        return EmptyResult()

    def create_capacity_reservation(self) -> ActionResult:
        """Reserves capacity, which the sandbox always has."""
        names = (
            "InstanceType",
            "InstancePlatform",
            "AvailabilityZone",
            "InstanceMatchCriteria",
            "EndDate",
            "EndDateType",
        )
        given = {name: value for name in names if (value := self._get_param(name)) is not None}
        limits.check_offered(given["InstanceType"], given["AvailabilityZone"], self.region)
        count = int(self._get_param("InstanceCount"))
        made = self.sandbox_backend.capacity_reservations.create(given, count=count)
        made.add_tags(self._parse_tag_specification("capacity-reservation").get("capacity-reservation", {}))
        return ActionResult({"CapacityReservation": made})

    def describe_capacity_reservations(self) -> ActionResult:
        """Returns the named reservations, or all reservations, that match the filters."""
        found = self.sandbox_backend.capacity_reservations.describe(
            self._get_param("CapacityReservationIds", []), self._filters_from_querystring()
        )
        return ActionResult({"CapacityReservations": found})

    def cancel_capacity_reservation(self) -> ActionResult:
        """Cancels a reservation. Its instances keep running."""
        self.sandbox_backend.capacity_reservations.get(self._get_param("CapacityReservationId")).state = "cancelled"
        return ActionResult({"Return": True})

    def create_image(self) -> ActionResult:
        """Starts to make an image of a stopped instance; the daemon copies its disk."""
        backend, tags = self.sandbox_backend, self._parse_tag_specification()
        made = images.bake(backend, self._get_param("InstanceId"), self._get_param("Name"), tags)
        backend.settings.wake()
        return ActionResult({"ImageId": made.id})

    def describe_images(self) -> ActionResult:
        """As in moto, but without images that are not yet visible."""
        result = super().describe_images()
        answer, hides = cast("dict[str, Any]", result.result), self.sandbox_backend.unsettled.hides
        answer["Images"] = [image for image in answer["Images"] if not hides("ami", image.id)]
        return result

    def deregister_image(self) -> ActionResult:
        """As in moto, and deletes the image's snapshot if the caller wants that. The daemon removes its disk."""
        image = self.ec2_backend.amis.get(self._get_param("ImageId"))
        super().deregister_image()
        if image is None or not self._get_param("DeleteAssociatedSnapshots"):
            return ActionResult({"Return": True})
        self.ec2_backend.delete_snapshot(image.ebs_snapshot.id)
        deleted = [{"SnapshotId": image.ebs_snapshot.id, "ReturnCode": "success"}]
        return ActionResult({"Return": True, "DeleteSnapshotResults": deleted})

    def create_volume(self) -> ActionResult:
        """As in moto, but the daemon makes the volume `available`."""
        result = super().create_volume()
        self.sandbox_backend.settings.wake()
        return result

    def describe_volumes(self) -> ActionResult:
        """As in moto, but without volumes that are not yet visible."""
        result = super().describe_volumes()
        answer = cast("dict[str, Any]", result.result)
        hides = self.sandbox_backend.unsettled.hides
        answer["Volumes"] = [volume for volume in answer["Volumes"] if not hides("vol", volume.id)]
        return result

    def attach_volume(self) -> ActionResult:
        """Starts to attach a volume to an instance."""
        return self._render_attachment(
            volumes.attach(
                self.sandbox_backend,
                self._get_param("VolumeId", ""),
                self._get_param("InstanceId", ""),
                self._get_param("Device", ""),
            )
        )

    def detach_volume(self) -> ActionResult:
        """Starts to detach a volume from its instance."""
        return self._render_attachment(
            volumes.detach(
                self.sandbox_backend,
                self._get_param("VolumeId", ""),
                self._get_param("InstanceId"),
                self._get_param("Device"),
            )
        )

    def _render_attachment(self, attachment: volumes.SandboxAttachment) -> ActionResult:
        self.sandbox_backend.settings.wake()
        return ActionResult(
            {
                "VolumeId": attachment.volume.id,
                "InstanceId": attachment.instance.id,
                "Device": attachment.device,
                "State": attachment.status,
                "AttachTime": attachment.attach_time,
                "DeleteOnTermination": attachment.delete_on_termination,
            }
        )

    def describe_spot_price_history(self) -> ActionResult:
        """Returns invented prices, newest first. The price for a given time is always the same."""
        given = cast("dict[str, list[str]]", self._filters_from_querystring())
        types: list[str] = self._get_param("InstanceTypes", []) or given.get("instance-type") or []
        zones = [self._get_param("AvailabilityZone")] if self._get_param("AvailabilityZone") else []
        zones = zones or given.get("availability-zone") or []
        products: list[str] = (
            self._get_param("ProductDescriptions", []) or given.get("product-description") or ["Linux/UNIX"]
        )
        now = utcnow().replace(tzinfo=dt.UTC)
        end = _aware(self._get_param("EndTime")) or now
        begin = _aware(self._get_param("StartTime")) or end - dt.timedelta(days=1)
        history = [
            {
                "AvailabilityZone": zone,
                "InstanceType": instance_type,
                "ProductDescription": "Linux/UNIX",
                "SpotPrice": f"{price:.6f}",
                "Timestamp": at,
            }
            for at in spot_times(begin, end, now)
            for instance_type in types or ON_DEMAND
            for zone in limits.zones_offering(instance_type, self.region)
            if (not zones or zone in zones) and any(product.startswith("Linux/UNIX") for product in products)
            if (price := spot_price(instance_type, zone, at)) is not None
        ]
        first = int(self._get_param("NextToken") or 0)
        last = first + int(self._get_param("MaxResults") or PRICE_PAGE)
        token = str(last) if last < len(history) else ""
        return ActionResult({"SpotPriceHistory": history[first:last], "NextToken": token})

    def describe_instances(self) -> ActionResult:
        """As in moto, but without resources that are not yet visible."""
        result = super().describe_instances()
        answer = cast("dict[str, Any]", result.result)
        hides = self.sandbox_backend.unsettled.hides
        for reservation in answer["Reservations"]:
            reservation.instances = [i for i in reservation.instances if not hides("i", i.id)]
        answer["Reservations"] = [reservation for reservation in answer["Reservations"] if reservation.instances]
        return result

    def describe_security_groups(self) -> ActionResult:
        """As in moto, but without resources that are not yet visible."""
        result = super().describe_security_groups()
        answer = cast("dict[str, Any]", result.result)
        hides = self.sandbox_backend.unsettled.hides
        answer["SecurityGroups"] = [group for group in answer["SecurityGroups"] if not hides("sg", group.id)]
        return result

    @staticmethod
    def _validate_block_device_mapping(device_mapping: dict[str, Any]) -> None:
        """As in moto, but the image's own volumes need no size."""
        if "NoDevice" not in device_mapping and "Ebs" not in device_mapping:
            raise MissingParameterError("ebs")

    def _parse_block_device_mapping(self) -> list[dict[str, Any]]:
        """As in moto, but without defaults, so that the image's values apply."""
        mappings = super()._parse_block_device_mapping()
        for mapping, given in zip(mappings, self._get_param("BlockDeviceMappings", []), strict=True):
            for option in ("DeleteOnTermination", "Encrypted"):
                mapping["Ebs"][option] = given.get("Ebs", {}).get(option)
        return mappings

    def terminate_instances(self) -> ActionResult:
        """As in moto, but with each instance's real state."""
        return self._with_states(super().terminate_instances(), "TerminatingInstances")

    def stop_instances(self) -> ActionResult:
        """As in moto, but with each instance's real state."""
        return self._with_states(super().stop_instances(), "StoppingInstances")

    def start_instances(self) -> ActionResult:
        """As in moto, if quota and capacity allow it, but with each instance's real state."""
        backend = self.sandbox_backend
        for instance in backend.get_multi_instances_by_id(self._get_param("InstanceIds", [])):
            if instance.state == "stopped":
                self._reserve_for(cast("SandboxInstance", instance))
        return self._with_states(super().start_instances(), "StartingInstances")

    def _reserve_for(self, instance: SandboxInstance) -> None:
        backend, instance_type, market = self.sandbox_backend, instance.instance_type, instance.market
        backend.allow_by_quota(instance_type, market, 1, 1)
        zones = [str(instance.placement.zone)]
        _, _, instance.capacity_fault = limits.reserve_capacity(
            instance_type, market, 1, 1, zones=zones, book=backend.settings.book, named=True
        )

    def modify_instance_attribute(self) -> ActionResult:
        """As in moto, and also the shutdown behavior, which moto lacks, and user data, which moto refuses."""
        backend, instance_id = self.ec2_backend, self._get_param("InstanceId")
        behavior, user_data = (
            self._get_param(f"{name}.Value") for name in ("InstanceInitiatedShutdownBehavior", "UserData")
        )
        if behavior is not None:
            self.error_on_dryrun()
            if behavior not in {"stop", "terminate"}:
                raise EC2ClientError("InvalidParameterValue", f"Invalid value '{behavior}' for the shutdown behavior.")
            if behavior == "stop" and backend.get_instance(instance_id).lifecycle == "spot":
                raise EC2ClientError("UnsupportedOperation", "One-time spot instances cannot be stopped.")
            backend.modify_instance_attribute(instance_id, "instance_initiated_shutdown_behavior", behavior)
            return EmptyResult()
        if isinstance(user_data, bytes):
            self.error_on_dryrun()
            encoded = Base64EncodedString(base64.b64encode(user_data).decode("ascii"))
            backend.modify_instance_attribute(instance_id, "user_data", encoded)
            return EmptyResult()
        return super().modify_instance_attribute()

    def reboot_instances(self) -> ActionResult:
        """As in moto, and reboots the hosts."""
        result = super().reboot_instances()
        self.ec2_backend.settings.wake()
        return result

    def _with_states(self, result: ActionResult, key: str) -> ActionResult:
        for entry in cast("dict[str, list[dict[str, Any]]]", result.result)[key]:
            state = self.ec2_backend.get_instance(entry["InstanceId"]).instance_state
            entry["CurrentState"] = {"Code": state.code, "Name": state.name}
        self.ec2_backend.settings.wake()
        return result

    def get_console_output(self) -> ActionResult:
        """Returns the console output of the instance's host."""
        instance = self.ec2_backend.get_instance(self._get_param("InstanceId"))
        output = self.ec2_backend.settings.read_console(instance.id)
        return ActionResult(
            {
                "InstanceId": instance.id,
                "Timestamp": instance.host_ended_at or utcnow(),  # when the newest output was written
                "Output": Base64EncodedString.from_raw_string(output),
            }
        )


def _aware(at: dt.datetime | None) -> dt.datetime | None:
    return at.replace(tzinfo=dt.UTC) if at is not None and at.tzinfo is None else at
