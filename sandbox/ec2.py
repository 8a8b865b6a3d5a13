"""EC2 as launchers know it, by small extensions of moto's own classes.

What moto leaves out and this adds: a default VPC of the sandbox's own range, public addresses that lead somewhere,
MinCount to MaxCount, ClientToken, unknown images, key pairs and instance types refused, security groups in use kept,
console output of real hosts.
"""

import datetime as dt
import itertools
import threading
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import IPv4Network
from typing import Any, cast

from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.core.responses import ActionResult
from moto.core.types import Base64EncodedString
from moto.core.utils import utcnow
from moto.ec2 import urls as ec2_urls
from moto.ec2.exceptions import (
    DependencyViolationError,
    EC2ClientError,
    InvalidSecurityGroupNotFoundError,
    MissingParameterError,
)
from moto.ec2.models import EC2Backend, ec2_backends, elastic_ip_addresses, elastic_network_interfaces, instances
from moto.ec2.models.instance_types import INSTANCE_TYPES
from moto.ec2.models.instances import Reservation
from moto.ec2.models.vpcs import VPC
from moto.ec2.responses import EC2Response

from sandbox import images
from sandbox.instances import SandboxInstance


@dataclass(frozen=True, kw_only=True, slots=True)
class Ec2Settings:
    """How this sandbox's EC2 is set up.

    wake: called when there is something for the daemon to do. read_console: an instance's console output so far.
    """

    region: str
    private: IPv4Network
    public: IPv4Network
    wake: Callable[[], None]
    read_console: Callable[[str], str]


DEFAULT_INSTANCE_TYPE = "m1.small"  # what EC2 takes when a launch names none

# moto's backends take no lock, and its requests come from many threads.
lock = threading.RLock()


class SandboxEC2Backend(EC2Backend):
    """moto's EC2 of one region. `settings` is set by `install` before the first backend is made."""

    settings: Ec2Settings
    _url_module = ec2_urls

    def __init__(self, region_name: str, account_id: str) -> None:
        super().__init__(region_name, account_id)
        self.launches: dict[str, tuple[dict[str, Any], Reservation]] = {}

    def create_default_vpc(self) -> VPC:
        """The default VPC in the sandbox's own range, with a default subnet in each zone."""
        vpc = self.create_vpc(cidr_block=str(self.settings.private), is_default=True)
        for zone in self.describe_availability_zones():
            self.create_default_subnet(zone.name)
        return vpc

    def run_instances(
        self, image_id: str, count: int, user_data: Any, security_group_names: list[str], **kwargs: Any
    ) -> Reservation:
        """As moto's, after the checks that it does not make. Without a subnet a default one is taken, as on EC2."""
        if not image_id and kwargs.get("launch_template"):
            image_id = self._get_template_from_args(kwargs["launch_template"]).image_id
        self.check_launch(image_id, kwargs.get("key_name"), kwargs["instance_type"], kwargs.get("placement"))
        nics = kwargs.get("nics") or []
        if not kwargs.get("subnet_id") and not any("SubnetId" in nic for nic in nics):
            subnet_id = self._default_subnet_id(kwargs.get("placement"))
            if nics:
                nics[0]["SubnetId"] = subnet_id
            else:
                kwargs["subnet_id"] = subnet_id
        kwargs["block_device_mappings"] = self._complete_mappings(image_id, kwargs.get("block_device_mappings") or [])
        reservation = super().run_instances(image_id, count, user_data, security_group_names, **kwargs)
        for instance in reservation.instances:
            if instance.key_name:
                cast("SandboxInstance", instance).public_key = self.key_pairs[instance.key_name].public_key
        self.settings.wake()
        return reservation

    def check_launch(self, image_id: str, key_name: str | None, instance_type: str, zone: str | None) -> None:
        """Raises EC2ClientError, in EC2's words, for what a launch names and is not there."""
        if self.region_name != self.settings.region:
            raise EC2ClientError(
                "OptInRequired",
                f"This sandbox runs instances in {self.settings.region} only, not in {self.region_name}.",
            )
        if image_id not in self.amis:
            raise EC2ClientError("InvalidAMIID.NotFound", f"The image id '[{image_id}]' does not exist")
        if key_name and key_name not in self.key_pairs:
            raise EC2ClientError("InvalidKeyPair.NotFound", f"The key pair '{key_name}' does not exist")
        if instance_type not in INSTANCE_TYPES:
            raise EC2ClientError("InvalidParameterValue", f"Invalid value '{instance_type}' for InstanceType.")
        if zone and zone not in {known.name for known in self.describe_availability_zones()}:
            raise EC2ClientError("InvalidParameterValue", f"Invalid availability zone: [{zone}]")

    def _default_subnet_id(self, zone: str | None) -> str:
        subnets = self.get_default_subnets()
        wanted = zone or min(subnets, default="")
        if wanted not in subnets:
            raise EC2ClientError("MissingInput", f"No default subnet for availability zone: '{wanted}'.")
        return subnets[wanted].id

    def _complete_mappings(self, image_id: str, mappings: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The launch's block devices over the image's: what is not said is the image's."""
        complete = []
        for mapping in self.amis[image_id].block_device_mappings:
            own = next((m for m in mappings if m["DeviceName"] == mapping["DeviceName"]), None)
            said = {k: v for k, v in own["Ebs"].items() if v is not None} if own else {}
            complete.append({"DeviceName": mapping["DeviceName"], "Ebs": {**mapping["Ebs"], **said}})
        names = {mapping["DeviceName"] for mapping in complete}
        further = [mapping for mapping in mappings if mapping["DeviceName"] not in names]
        for mapping in further:
            if mapping.get("NoDevice") is None and not (mapping["Ebs"]["VolumeSize"] or mapping["Ebs"]["SnapshotId"]):
                raise MissingParameterError("size or snapshotId")
            mapping["Ebs"] = {key: value for key, value in mapping["Ebs"].items() if value is not None}
        return complete + further

    def delete_security_group(self, name: str | None = None, group_id: str | None = None) -> None:
        """As moto's, but not while a network interface or another group's rule uses it."""
        group = self.get_security_group_by_name_or_id(group_id or name or "")
        if group is None:
            raise InvalidSecurityGroupNotFoundError(group_id or name or "")
        if any(group in eni.group_set for eni in self.enis.values()) or self._is_referenced(group.id):
            raise DependencyViolationError(f"resource {group.id} has a dependent object")
        super().delete_security_group(name, group_id)

    def _is_referenced(self, group_id: str) -> bool:
        others = (group for groups in self.groups.values() for group in groups.values() if group.id != group_id)
        return any(
            rule.source_group.get("GroupId") == group_id
            for other in others
            for rule in (*other.ingress_rules, *other.egress_rules)
        )

    def sandbox_instances(self) -> list[SandboxInstance]:
        """All instances, the terminated ones too."""
        return [i for r in self.reservations.values() for i in r.instances if isinstance(i, SandboxInstance)]


class PublicAddresses:
    """The sandbox's public addresses, each given out as late as possible after it was given back."""

    def __init__(self, public: IPv4Network, backend: EC2Backend) -> None:
        self._backend = backend
        self._count = public.num_addresses - 2
        self._next = itertools.cycle(public.hosts())

    def take(self) -> str:
        """A free one."""
        used = {eni.public_ip for eni in self._backend.enis.values()}
        used |= {address.public_ip for address in self._backend.addresses}
        for address in itertools.islice(self._next, self._count):
            if str(address) not in used:
                return str(address)
        raise EC2ClientError("InsufficientAddressCapacity", "The sandbox has no free public address.")


class SandboxEC2Response(EC2Response):
    """moto's EC2 actions, one at a time, and those that it has only in name."""

    @classmethod
    def dispatch(cls, *args: Any, **kwargs: Any) -> Any:
        """One call after the other, and the daemon's own changes between them."""
        with lock:
            return super().dispatch(*args, **kwargs)

    def run_instances(self) -> ActionResult:
        """Launches MaxCount instances; the same ClientToken gives the same reservation again."""
        low, high = int(self._get_param("MinCount", 1)), int(self._get_param("MaxCount", 1))
        if not 1 <= low <= high:
            raise EC2ClientError(
                "InvalidParameterValue", f"Invalid counts: MinCount {low}, MaxCount {high}; 1 <= MinCount <= MaxCount."
            )
        token = self._get_param("ClientToken")
        asked = {key: value for key, value in self.params.items() if key not in ("ClientToken", "DryRun")}
        backend: SandboxEC2Backend = self.ec2_backend
        if token in backend.launches and not self._get_param("DryRun"):
            first, reservation = backend.launches[token]
            if first != asked:
                raise EC2ClientError(
                    "IdempotentParameterMismatch",
                    "The client token has been used with other parameters before.",
                )
            return ActionResult(reservation)
        if self._get_param("DryRun"):
            backend.check_launch(
                self._get_param("ImageId"),
                self._get_param("KeyName"),
                self._get_param("InstanceType", DEFAULT_INSTANCE_TYPE),
                self._get_param("Placement.AvailabilityZone"),
            )
        self.params = {**self.params, "MinCount": high}
        result = super().run_instances()
        if token:
            newest = next(reversed(backend.reservations.values()))
            backend.launches[token] = (asked, newest)
        return result

    @staticmethod
    def _validate_block_device_mapping(device_mapping: dict[str, Any]) -> None:
        """As moto's, but the size of the image's own volumes need not be said."""
        if "NoDevice" not in device_mapping and "Ebs" not in device_mapping:
            raise MissingParameterError("ebs")

    def _parse_block_device_mapping(self) -> list[dict[str, Any]]:
        """As moto's, but what the caller did not say stays unsaid, so that the image can say it."""
        mappings = super()._parse_block_device_mapping()
        for mapping, asked in zip(mappings, self._get_param("BlockDeviceMappings", []), strict=True):
            for option in ("DeleteOnTermination", "Encrypted"):
                mapping["Ebs"][option] = asked.get("Ebs", {}).get(option)
        return mappings

    def terminate_instances(self) -> ActionResult:
        """As moto's, with the state that each instance is really in."""
        result = super().terminate_instances()
        return self._with_states(result, "TerminatingInstances")

    def stop_instances(self) -> ActionResult:
        """As moto's, with the state that each instance is really in."""
        return self._with_states(super().stop_instances(), "StoppingInstances")

    def start_instances(self) -> ActionResult:
        """As moto's, with the state that each instance is really in."""
        return self._with_states(super().start_instances(), "StartingInstances")

    def reboot_instances(self) -> ActionResult:
        """As moto's; the hosts really boot again."""
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
        """What the instance's host wrote to its console."""
        instance = self.ec2_backend.get_instance(self._get_param("InstanceId"))
        output = self.ec2_backend.settings.read_console(instance.id)
        return ActionResult(
            {
                "InstanceId": instance.id,
                "Timestamp": utcnow(),
                "Output": Base64EncodedString.from_raw_string(output),
            }
        )


def install(settings: Ec2Settings) -> SandboxEC2Backend:
    """Puts the extensions in moto's place, for this whole process, and gives the backend of the sandbox's region."""
    SandboxEC2Backend.settings = settings
    ec2_backends.backend = SandboxEC2Backend
    ec2_urls.url_paths = {"{0}/": SandboxEC2Response.dispatch}
    instances.Instance = SandboxInstance  # type: ignore[misc]
    backend = ec2_backends[DEFAULT_ACCOUNT_ID][settings.region]
    assert isinstance(backend, SandboxEC2Backend)  # noqa: S101 -- made by the line above that names it
    addresses = PublicAddresses(settings.public, backend)
    elastic_network_interfaces.random_public_ip = addresses.take  # type: ignore[attr-defined]
    elastic_ip_addresses.random_ip = addresses.take  # type: ignore[attr-defined]
    images.publish(backend, _some_weeks_ago())
    return backend


def _some_weeks_ago() -> dt.datetime:
    """When the public images were published: recent, and the same for all of one month's sandboxes."""
    month = utcnow().replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    return (month - dt.timedelta(days=1)).replace(day=10)
