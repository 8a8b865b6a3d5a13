"""EC2's instances, with states that take time, and their spot requests and placement groups."""

import copy
import datetime as dt
import secrets
import time
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass
from typing import Any, Literal

from moto.core.utils import utcnow
from moto.ec2.exceptions import EC2ClientError
from moto.ec2.models import EC2Backend
from moto.ec2.models.core import TaggedEC2Resource
from moto.ec2.models.instances import Instance, InstanceState, StateReason
from moto.ec2.utils import generic_filter, random_spot_request_id

from ec2_sandbox.config import FolderSettings, Market
from ec2_sandbox.hosts.network import mac_address_of

STATES = {"pending": 0, "running": 16, "shutting-down": 32, "terminated": 48, "stopping": 64, "stopped": 80}
ENDED = ("shutting-down", "terminated")
INTERRUPTED = "Server.SpotInstanceTermination"  # the state reason of a spot instance that EC2 reclaimed
CheckResult = Literal["ok", "impaired", "initializing", "not-applicable"]
REACHABILITY = {"ok": "passed", "impaired": "failed", "initializing": "initializing"}
STRATEGIES = ("cluster", "spread", "partition")


class IncorrectInstanceStateError(EC2ClientError):
    """The instance's state does not allow the call."""

    def __init__(self, instance_id: str, action: str) -> None:
        super().__init__(
            "IncorrectInstanceState", f"The instance '{instance_id}' is not in a state from which it can be {action}."
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Checks:
    """The results of EC2's checks of a running instance: of the hardware below it, and of its own system."""

    system: CheckResult
    instance: CheckResult


@dataclass(frozen=True, kw_only=True, slots=True)
class Interruption:
    """The announced end of a spot instance. Both times are UTC."""

    noticed: dt.datetime
    at: dt.datetime


class SandboxInstance(Instance):
    """An instance whose states the daemon changes."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._devices = {one["DeviceName"]: one["Ebs"] for one in kwargs.get("block_device_mappings") or []}
        self._state = InstanceState("pending", STATES["pending"])
        # When its host ended, for whatever reason. None while it has a host.
        self.host_ended_at: dt.datetime | None = None
        # The public key of the key pair at launch. The key pair may be deleted later.
        self.public_key = ""
        # The number of RebootInstances calls. The daemon compares it with the number of reboots that it has done.
        self.reboots = 0
        self.reservation_id = ""
        # Set by register_spot_requests.
        self.spot_instance_request_id: str | None = None
        self._entered = time.monotonic()
        # The end of a spot instance, once it is announced.
        self.interruption: Interruption | None = None
        # Set by a fault: the instance gets no host and stays `pending`.
        self.never_boots = False
        # The id of the capacity fault whose `free` increases again when the instance ends.
        self.capacity_fault: str | None = None
        # The id of the capacity reservation in which it was launched.
        self.capacity_reservation_id: str | None = None

    def prep_nics(self, nic_spec: list[dict[str, Any]], *args: Any, **kwargs: Any) -> None:
        """As in moto, but by default, interfaces are deleted with their instance, as on EC2."""
        nics = nic_spec or [{"DeviceIndex": 0}]
        for nic in nics:
            if "NetworkInterfaceId" not in nic:
                nic.setdefault("DeleteOnTermination", True)
        super().prep_nics(nics, *args, **kwargs)
        for interface in self.nics.values():
            interface.mac_address = mac_address_of(str(interface.private_ip_address))
        # An instance has the groups of its first interface. moto sets only those that RunInstances itself names.
        self.security_groups = list(self.nics[0].group_set)

    def add_block_device(self, size: int, device_path: str, *args: Any, volume_type: str | None = None) -> None:
        """As in moto, but with the IOPS and throughput of the launch."""
        snapshot_id, encrypted, delete_on_termination, kms_key_id = args
        volume = self.ec2_backend.create_volume(
            size, self._placement.zone, snapshot_id=snapshot_id, encrypted=encrypted, kms_key_id=kms_key_id,
            volume_type=volume_type, iops=self._devices[device_path].get("Iops"),
            throughput=self._devices[device_path].get("Throughput"),
        )  # fmt: skip
        EC2Backend.attach_volume(self.ec2_backend, volume.id, self.id, device_path, delete_on_termination)

    @property
    def instance_id(self) -> str:
        """The id, under the name that moto's DescribeInstanceStatus reads."""
        return str(self.id)

    @property
    def checks(self) -> Checks:
        """The results of EC2's checks, which follow the host."""
        if self.never_boots:
            return Checks(system="ok", instance="impaired")
        if self.state == "pending":
            return Checks(system="initializing", instance="initializing")
        if self.state != "running":
            return Checks(system="not-applicable", instance="not-applicable")
        checks: Checks = self.ec2_backend.settings.fleet.check(self.id)
        return checks

    @property
    def system_status(self) -> dict[str, Any]:
        """The check of the hardware below it, in the format of the API."""
        return _describe_check(self.checks.system)

    @property
    def instance_status(self) -> dict[str, Any]:
        """The check of its own system, in the format of the API."""
        return _describe_check(self.checks.instance)

    def _enter(self, state: str) -> InstanceState:
        previous = copy.copy(self._state)
        self._state.name, self._state.code = state, STATES[state]
        self._entered = time.monotonic()
        self.host_ended_at = utcnow() if state in ("stopping", "shutting-down") else None
        return previous

    def _note(self) -> None:
        """Logs the state for the bill."""
        self.ec2_backend.settings.note(self)

    @property
    def may_arrive(self) -> bool:
        """Whether it has been booting or ending for at least the delay in its settings."""
        config: FolderSettings = self.ec2_backend.settings.config
        delay_s = config.boot_delay_s if self.state == "pending" else config.end_delay_s
        return time.monotonic() - self._entered >= delay_s

    @property
    def market(self) -> Market:
        """The market: spot or on-demand."""
        return "spot" if self.lifecycle == "spot" else "on-demand"

    def enter_running(self) -> None:
        """Makes the instance `running`. Call it when the host has booted."""
        self._enter("running")
        self._note()

    def fail_to_boot(self, reason: str) -> None:
        """Ends an instance whose host did not boot. `reason` becomes part of its StateReason."""
        self._end("shutting-down", "Server.InternalError", reason)

    def lose_host(self) -> None:
        """Stops an instance that has lost its host, as EC2 does after a hardware failure."""
        self._end("stopping", "Server.ScheduledStop", "Stopped due to scheduled retirement")

    def reclaim(self) -> None:
        """Reclaims a spot instance."""
        self._end("shutting-down", INTERRUPTED, "Spot instance termination")

    def shut_down_from_inside(self) -> None:
        """Stops or terminates an instance whose host was shut down from inside.

        InstanceInitiatedShutdownBehavior decides which.
        """
        stops = self.instance_initiated_shutdown_behavior == "stop"
        state = "stopping" if stops else "shutting-down"
        self._end(state, "Client.InstanceInitiatedShutdown", "Instance initiated shutdown")

    def _end_by_caller(self, state: str) -> InstanceState:
        # EC2 gives the time only for calls.
        reason = f"User initiated ({utcnow():%Y-%m-%d %H:%M:%S} GMT)"
        return self._end(state, "Client.UserInitiatedShutdown", "User initiated shutdown", reason=reason)

    def _end(self, state: str, code: str, message: str, *, reason: str = "") -> InstanceState:
        previous = self._enter(state)
        self._reason = reason or code
        self.state_reason = StateReason(f"{code}: {message}", code)
        self._note()
        return previous

    def _finish(self, end: Callable[[], object]) -> None:
        """Completes an end, which keeps its reason. end: what moto does, with a reason of its own."""
        reason, state_reason = self._reason, self.state_reason
        end()
        self._reason, self.state_reason = reason, state_reason
        self._note()
        self.give_capacity_back()

    def terminate(self) -> InstanceState:
        """Starts the termination. `finish_termination` completes it when the host has ended."""
        if self.state in ENDED:
            return copy.copy(self._state)
        return self._end_by_caller("shutting-down")

    def finish_termination(self) -> None:
        """Completes the termination: removes the interface, addresses and volumes. Call it when the host has ended."""
        self._finish(super().terminate)
        self.security_groups = []

    def give_capacity_back(self) -> None:
        """Makes room in the capacity fault that counts it."""
        if self.capacity_fault is not None:
            self.ec2_backend.settings.book.spend(self.capacity_fault, "free", -1)
            self.capacity_fault = None

    def stop(self) -> InstanceState:
        """Starts the stop. `finish_stop` completes it when the host has ended."""
        if self.state in ENDED:
            raise IncorrectInstanceStateError(self.id, "stopped")
        if self.state in ("stopping", "stopped"):
            return copy.copy(self._state)
        return self._end_by_caller("stopping")

    def finish_stop(self) -> None:
        """Completes the stop: keeps the disk, but not the public address. Call it when the host has ended."""
        self._finish(super().stop)
        self.ec2_backend.unsettled.hide("stopped", self.id)

    def check_start(self) -> None:
        """Raises EC2ClientError if it cannot start. Not all of EC2's servers know at once that it is stopped."""
        is_known = self.state == "stopped" and not self.ec2_backend.unsettled.hides("stopped", self.id)
        if not is_known and self.state not in ("pending", "running"):
            raise IncorrectInstanceStateError(self.id, "started")

    def start(self) -> InstanceState:
        """Boots a stopped instance again, with the same disk and a new public address."""
        self.check_start()
        if self.state != "stopped":
            return copy.copy(self._state)
        super().start()
        self.launch_time = utcnow()  # as on EC2, the time of the last start
        self._enter("pending")
        self._note()
        self.never_boots = False
        return InstanceState("stopped", STATES["stopped"])

    def reboot(self) -> None:
        """Asks the daemon to reboot the host. The instance stays `running`, as on EC2."""
        if self.state != "running":
            raise IncorrectInstanceStateError(self.id, "rebooted")
        self.reboots += 1

    @property
    def root_volume(self) -> Any:
        """The root volume."""
        return self.ec2_backend.get_volume(self.block_device_mapping[self.root_device_name].volume_id)


def _describe_check(result: CheckResult) -> dict[str, Any]:
    details = [{"Name": "reachability", "Status": REACHABILITY[result]}] if result in REACHABILITY else []
    return {"Status": result, "Details": details}


class SpotRequest(TaggedEC2Resource):
    """The spot request of an instance, with the attributes of EC2's response. Its state follows the instance's."""

    product_description = "Linux/UNIX"

    def __init__(self, instance: SandboxInstance, options: dict[str, Any], tags: dict[str, dict[str, str]]) -> None:
        self.ec2_backend = instance.ec2_backend
        self.id = self.spot_instance_request_id = random_spot_request_id()
        self.instance_id = instance.id
        self.launched_availability_zone = instance.placement.zone
        self.launch_specification = {
            "ImageId": instance.image_id, "InstanceType": instance.instance_type, "KeyName": instance.key_name,
            "Placement": {"AvailabilityZone": instance.placement.zone}, "SecurityGroups": instance.security_groups,
            "SubnetId": instance.subnet_id,
        }  # fmt: skip
        self.create_time = utcnow()
        self.spot_price = options.get("MaxPrice")
        self.type = options.get("SpotInstanceType", "one-time")
        self.valid_until = options.get("ValidUntil")
        self.instance_interruption_behavior = options.get("InstanceInterruptionBehavior", "terminate")
        self.is_cancelled = False
        self._instance = instance
        self.add_tags(tags.get("spot-instances-request", {}))

    @property
    def state(self) -> str:
        """`active` while the instance exists, then `closed`."""
        return "cancelled" if self.is_cancelled else "closed" if self._instance.state in ENDED else "active"

    @state.setter
    def state(self, value: str) -> None:
        self.is_cancelled = value == "cancelled"

    @property
    def status(self) -> dict[str, Any]:
        """The status, as in https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-request-status.html."""
        if self._instance.state not in ENDED:
            code = "request-canceled-and-instance-running" if self.is_cancelled else "fulfilled"
        elif self._instance.state_reason.code == INTERRUPTED:
            code = "instance-terminated-no-capacity"
        else:
            code = "instance-terminated-by-user"
        return {"Code": code, "Message": code.replace("-", " "), "UpdateTime": self.create_time}


def register_spot_requests(
    instances: list[SandboxInstance], options: dict[str, Any], tags: dict[str, dict[str, str]]
) -> None:
    """Creates a spot request for each instance of a spot launch."""
    for instance in instances:
        request = SpotRequest(instance, options, tags)
        instance.spot_instance_request_id = request.id
        instance.ec2_backend.spot_instance_requests[request.id] = request


class PlacementGroup(TaggedEC2Resource):
    """A placement group, with the attributes of EC2's response. It has no effect: all hosts run on one machine."""

    def __init__(self, ec2_backend: Any, name: str, strategy: str) -> None:
        self.ec2_backend = ec2_backend
        self.id = self.group_id = f"pg-0{secrets.token_hex(8)}"
        self.group_name = name
        self.group_arn = f"arn:aws:ec2:{ec2_backend.region_name}:{ec2_backend.account_id}:placement-group/{name}"
        self.state = "available"
        self.strategy = strategy


class PlacementGroups:
    """The placement groups of one region, which moto lacks. All methods may raise EC2ClientError.

    https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_CreatePlacementGroup.html
    """

    def __init__(self, ec2_backend: Any) -> None:
        self._backend = ec2_backend
        self._groups: dict[str, PlacementGroup] = {}

    def create(self, name: str, strategy: str) -> PlacementGroup:
        """Creates a group."""
        if name in self._groups:
            raise EC2ClientError("InvalidPlacementGroup.Duplicate", f"The Placement Group '{name}' already exists.")
        if strategy not in STRATEGIES:
            raise EC2ClientError("InvalidParameterValue", f"Invalid value '{strategy}' for strategy.")
        group = self._groups[name] = PlacementGroup(self._backend, name, strategy)
        return group

    def get(self, name: str) -> PlacementGroup:
        """Returns the group with this name or id, which must exist."""
        for group in self._groups.values():
            if name in (group.group_name, group.id):
                return group
        raise EC2ClientError("InvalidPlacementGroup.Unknown", f"The Placement Group '{name}' is unknown.")

    def delete(self, name: str, *, used: Container[str]) -> None:
        """Deletes a group. used: the names of the groups that have instances."""
        group = self.get(name)
        if group.group_name in used:
            raise EC2ClientError(
                "InvalidPlacementGroup.InUse", f"The placement group '{name}' is in use and may not be deleted."
            )
        del self._groups[group.group_name]
        self._backend.tags.pop(group.id, None)

    def describe(self, names: Iterable[str] = (), filters: dict[str, Any] | None = None) -> list[PlacementGroup]:
        """Returns the groups with these names or ids, or all groups, that match the filters."""
        groups = [self.get(name) for name in names] or list(self._groups.values())
        return generic_filter(filters or {}, groups)
