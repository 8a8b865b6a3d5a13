"""EC2's actions: those of moto, one at a time, and those that moto lacks or implements only in part."""

import base64
import copy
import datetime as dt
import re
from fnmatch import fnmatchcase
from typing import Any, cast

from moto.core.common_types import TYPE_RESPONSE
from moto.core.exceptions import ServiceException
from moto.core.responses import ActionResult, EmptyResult
from moto.core.types import Base64EncodedString
from moto.core.utils import utcnow
from moto.ec2.exceptions import DryRunClientError, EC2ClientError

from ec2_sandbox.api import limits
from ec2_sandbox.api.actions.disks import DiskActions
from ec2_sandbox.api.actions.fleets import FleetActions
from ec2_sandbox.api.actions.templates import check_keys
from ec2_sandbox.api.ec2 import lock
from ec2_sandbox.api.instances import SandboxInstance
from ec2_sandbox.api.prices import ON_DEMAND, spot_price, spot_times

PRICE_PAGE = 1000
NAMESPACE = "http://ec2.amazonaws.com/doc/2016-11-15"
NOTHING_ELSE = r"(Response xmlns=[^>]*>(?:<requestId>[^<]*</requestId>)?)(</\w+Response>$)"
# Actions with these words in their names change the firewall immediately.
FIREWALL_WORDS = ("SecurityGroup", "ModifyInstanceAttribute", "ModifyNetworkInterfaceAttribute")

MODIFIED = {
    "InstanceType", "Kernel", "UserData", "DisableApiTermination", "DisableApiStop", "SourceDestCheck", "EbsOptimized",
    "InstanceInitiatedShutdownBehavior", "BlockDeviceMappings", "Groups", "InstanceId", "DryRun",
}  # fmt: skip

# By default. moto's pages are short, and of templates it has one only.
ON_ONE_PAGE = ("DescribeInstances", "DescribeLaunchTemplates", "DescribeLaunchTemplateVersions")
# By action: the list in its response, and the prefix of the ids in it.
LISTED = {
    "DescribeImages": ("Images", "ami"), "DescribeInstanceStatus": ("InstanceStatuses", "i"),
    "DescribePlacementGroups": ("PlacementGroups", "pg"), "DescribeSecurityGroups": ("SecurityGroups", "sg"),
    "DescribeSnapshots": ("Snapshots", "snap"), "DescribeVolumes": ("Volumes", "vol"),
}  # fmt: skip
# Of DescribeInstanceStatus: moto would ignore others.
STATUS_FILTERS = {"instance-state-code", "instance-state-name"}


class SandboxEC2Response(FleetActions, DiskActions):
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
        if self._get_action() in ON_ONE_PAGE:
            self.params = {"MaxResults": 1_000_000, **self.params}
        status, headers, body = self._call_action()
        namespace = f' xmlns="{NAMESPACE}/"' if status < 400 else ""
        answer = str(body).replace(f' xmlns="{NAMESPACE}"', namespace, 1)
        return status, headers, re.sub(NOTHING_ELSE, r"\1<return>true</return>\2", answer)

    def _call_action(self) -> TYPE_RESPONSE:
        """Adds what all actions have in common: ids that are not yet visible, client tokens, dry runs.

        Tells the daemon about each change.
        """
        backend, action, given = self.sandbox_backend, self._get_action(), copy.deepcopy(self.params)
        token = self._get_param("ClientToken")
        repeatable = bool(token) and not self._get_param("DryRun")
        try:
            backend.unsettled.check(action, self.params)
            if self._get_param("DryRun") and action != "RunInstances":
                raise DryRunClientError
            if repeatable and (found := backend.answers.find(action, token, given)):
                if action == "RunInstances":
                    self._check_repeated(str(found[2]))
                return found
            status, headers, body = super().call_action()
        except NotImplementedError as error:
            unsupported = EC2ClientError("UnsupportedOperation", f"The sandbox's EC2 cannot do this: {error}")
            return self._render_error(unsupported)
        except ServiceException as error:
            return self._render_error(error)
        if status < 400:
            if not action.startswith(("Describe", "Get")):
                backend.settings.wake()
            if any(word in action for word in FIREWALL_WORDS):
                backend.settings.fleet.enforce(backend.whole)
            backend.unsettled.note(action, self.params, str(body))
            if repeatable:
                backend.answers.keep(action, token, given, (status, headers, body))
        return status, headers, body

    def serialized(self, action_result: ActionResult) -> TYPE_RESPONSE:
        """As in moto, but without resources that are not yet visible."""
        answer, hides = action_result.result, self.sandbox_backend.unsettled.hides
        if isinstance(answer, dict) and self._get_action() in LISTED:
            name, kind = LISTED[self._get_action()]
            answer[name] = [one for one in answer[name] if not hides(kind, one.id)]
        return super().serialized(action_result)

    def _refuse(self) -> ActionResult:
        raise NotImplementedError(self._get_action())

    # moto would make images and snapshots without bytes, and knows none of our fleets.
    copy_image = copy_snapshot = delete_fleets = describe_fleets = describe_fleet_instances = _refuse

    def _check_repeated(self, answer: str) -> None:
        """Raises EC2ClientError if all instances of an earlier launch are terminated."""
        states = {i.id: i.state for i in self.sandbox_backend.sandbox_instances()}
        if all(states.get(one, "terminated") == "terminated" for one in re.findall(r"\bi-[0-9a-f]{17}\b", answer)):
            message = "The client token you have provided is associated with an instance that has been terminated."
            raise EC2ClientError("IdempotentInstanceTerminated", message)

    def _render_error(self, error: ServiceException) -> TYPE_RESPONSE:
        status, headers, body = self.serialized(ActionResult(error))
        headers["status"] = str(status)
        return status, headers, body

    def create_tags(self) -> ActionResult:
        """As in moto, but raises EC2ClientError for AWS's own keys. A tag may lack a value."""
        tags = [{"Value": "", **tag} for tag in self._get_param("Tags", [])]
        check_keys(tags)
        self.params = {**self.params, "Tags": tags}
        return super().create_tags()

    def delete_key_pair(self) -> ActionResult:
        """As in moto, but also by the id of the key pair."""
        key_id = self._get_param("KeyPairId")
        if found := next((pair for pair in self.sandbox_backend.key_pairs.values() if pair.id == key_id), None):
            self.params = {**self.params, "KeyName": found.key_name}
        return super().delete_key_pair()

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
        return ActionResult({"PlacementGroups": found})

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
        reservation = self.sandbox_backend.capacity_reservations.create(given, count=count)
        reservation.add_tags(self._parse_tag_specification("capacity-reservation").get("capacity-reservation", {}))
        return ActionResult({"CapacityReservation": reservation})

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

    def describe_spot_price_history(self) -> ActionResult:
        """Returns invented prices, newest first. The price for a given time is always the same."""
        given = cast("dict[str, list[str]]", self._filters_from_querystring())
        if unknown := set(given) - {"instance-type", "availability-zone", "product-description"}:
            raise EC2ClientError("InvalidParameterValue", f"The filter '{min(unknown)}' is invalid")
        patterns = given.get("instance-type", ["*"])
        types = [name for name in self._get_param("InstanceTypes", []) or ON_DEMAND
                 if any(fnmatchcase(name, pattern) for pattern in patterns)]  # fmt: skip
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
            for instance_type in types
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

    def describe_instance_status(self) -> ActionResult:
        """As in moto, but refuses filters that moto would ignore."""
        if unknown := self._filters_from_querystring().keys() - STATUS_FILTERS:
            raise NotImplementedError(f"DescribeInstanceStatus with the filter {min(unknown)}")
        return super().describe_instance_status()

    def stop_instances(self) -> ActionResult:
        """As in moto, but not for one-time spot instances."""
        backend = self.sandbox_backend
        for instance in backend.sandbox_instances():
            request = backend.spot_instance_requests.get(instance.spot_instance_request_id or "")
            if request and request.type == "one-time" and instance.id in self._get_param("InstanceIds", []):
                which = f"the Spot Instance '{instance.id}' because it is associated with a one-time request"
                raise EC2ClientError("UnsupportedOperation", f"You can't stop {which}.")
        return super().stop_instances()

    def start_instances(self) -> ActionResult:
        """As in moto, if quota and capacity allow it."""
        found = self.sandbox_backend.get_multi_instances_by_id(self._get_param("InstanceIds", []))
        reserved: list[SandboxInstance] = []
        try:
            for instance in cast("list[SandboxInstance]", found):
                instance.check_start()
                if instance.state == "stopped":
                    self._reserve_for(instance, reserved)
                    reserved.append(instance)
        except EC2ClientError:
            for instance in reserved:  # none is started
                instance.give_capacity_back()
            raise
        return super().start_instances()

    def _reserve_for(self, instance: SandboxInstance, starting: list[SandboxInstance]) -> None:
        """Reserves what an instance needs. starting: the instances that the call starts, too."""
        backend, instance_type, market = self.sandbox_backend, instance.instance_type, instance.market
        if reservation_id := instance.capacity_reservation_id:
            together = sum(one.capacity_reservation_id == reservation_id for one in (instance, *starting))
            backend.capacity_reservations.check_start(reservation_id, together)
            return
        backend.allow_by_quota(instance_type, market, 1, 1, starting=starting)
        zones = [str(instance.placement.zone)]
        _, _, instance.capacity_fault = limits.reserve_capacity(
            instance_type, market, 1, 1, zones=zones, book=backend.settings.book, named=True
        )

    def modify_instance_attribute(self) -> ActionResult:
        """As in moto, and also the shutdown behavior, which moto lacks, and user data, which moto refuses.

        moto would take the instance out of its groups for what it does not know.
        """
        if unknown := self.params.keys() - MODIFIED:
            raise NotImplementedError(f"ModifyInstanceAttribute of {min(unknown)}")
        backend, instance_id = self.ec2_backend, self._get_param("InstanceId")
        behavior, user_data = (
            self._get_param(f"{name}.Value") for name in ("InstanceInitiatedShutdownBehavior", "UserData")
        )
        if behavior is not None:
            if behavior not in {"stop", "terminate"}:
                raise EC2ClientError("InvalidParameterValue", f"Invalid value '{behavior}' for the shutdown behavior.")
            if behavior == "stop" and backend.get_instance(instance_id).lifecycle == "spot":
                raise EC2ClientError("UnsupportedOperation", "One-time spot instances cannot be stopped.")
            backend.modify_instance_attribute(instance_id, "instance_initiated_shutdown_behavior", behavior)
            return EmptyResult()
        if isinstance(user_data, bytes):
            encoded = Base64EncodedString(base64.b64encode(user_data).decode("ascii"))
            backend.modify_instance_attribute(instance_id, "user_data", encoded)
            return EmptyResult()
        return super().modify_instance_attribute()

    def get_console_output(self) -> ActionResult:
        """Returns the console output of the instance's host."""
        instance = self.ec2_backend.get_instance(self._get_param("InstanceId"))
        output = self.ec2_backend.settings.fleet.read_console(instance.id)
        return ActionResult(
            {
                "InstanceId": instance.id,
                "Timestamp": instance.host_ended_at or utcnow(),  # when the newest output was written
                "Output": Base64EncodedString.from_raw_string(output),
            }
        )


def _aware(at: dt.datetime | None) -> dt.datetime | None:
    return at.replace(tzinfo=dt.UTC) if at is not None and at.tzinfo is None else at
