"""EC2 as launchers know it, by small extensions of moto's own classes.

What moto leaves out and this adds: a default VPC of the sandbox's own range, public addresses that lead somewhere,
unknown images, key pairs and instance types refused, security groups in use kept, quotas. Its actions are in
ec2_actions.py, and moto_setup.py puts both in moto's place.
"""

import itertools
import threading
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from ipaddress import IPv4Network
from typing import Any, cast

from moto.core.common_types import TYPE_RESPONSE
from moto.ec2 import urls as ec2_urls
from moto.ec2.exceptions import (
    DependencyViolationError,
    EC2ClientError,
    InvalidSecurityGroupNotFoundError,
    MissingParameterError,
)
from moto.ec2.models import EC2Backend
from moto.ec2.models.instance_types import INSTANCE_TYPES
from moto.ec2.models.instances import Reservation
from moto.ec2.models.spot_requests import SpotInstanceRequest
from moto.ec2.models.vpcs import VPC

from sandbox import limits
from sandbox.config import SandboxConfig
from sandbox.consistency import Unsettled
from sandbox.faults import FaultBook
from sandbox.instances import SandboxInstance
from sandbox.metadata_options import MetadataOptionsOfInstances
from sandbox.placement_groups import PlacementGroups
from sandbox.quotas import Market
from sandbox.security_groups import SecurityGroupsOfInstances
from sandbox.tokens import Tokens


@dataclass(frozen=True, kw_only=True, slots=True)
class Ec2Settings:
    """How this sandbox's EC2 is set up.

    wake: called when there is something for the daemon to do. read_console: an instance's console output so far.
    enforce: brings the hosts' links in line with the security groups.
    config: [sandbox] of cluster.toml. book: the faults that are armed.
    """

    region: str
    private: IPv4Network
    public: IPv4Network
    wake: Callable[[], None]
    read_console: Callable[[str], str]
    enforce: Callable[["SandboxEC2Backend"], None]
    config: SandboxConfig
    book: FaultBook


DEFAULT_INSTANCE_TYPE = "m1.small"  # what EC2 takes when a launch names none

# moto's backends take no lock, and its requests come from many threads.
lock = threading.RLock()


class SandboxEC2Backend(SecurityGroupsOfInstances, MetadataOptionsOfInstances, EC2Backend):
    """moto's EC2 of one region. `settings` is set by `install` before the first backend is made."""

    settings: Ec2Settings
    _url_module = ec2_urls

    def __init__(self, region_name: str, account_id: str) -> None:
        super().__init__(region_name, account_id)
        self.launches: Tokens[Reservation] = Tokens()
        self.answers: Tokens[TYPE_RESPONSE] = Tokens()
        self.unsettled = Unsettled(self.settings.config.consistency_delay_s)
        self.placement_groups = PlacementGroups(region_name, account_id)

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
        known = set(self.reservations)
        try:
            reservation = super().run_instances(image_id, count, user_data, security_group_names, **kwargs)
        except EC2ClientError:
            # moto finds some errors when the first instances are there already; EC2 launches nothing then.
            for reservation_id in set(self.reservations) - known:
                self._take_back(reservation_id)
            raise
        for instance in reservation.instances:
            if instance.key_name:
                cast("SandboxInstance", instance).public_key = self.key_pairs[instance.key_name].public_key
        self.settings.wake()
        return reservation

    def _take_back(self, reservation_id: str) -> None:
        for instance in self.reservations[reservation_id].instances:
            cast("SandboxInstance", instance).finish_termination()
        del self.reservations[reservation_id]

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
        wanted = zone or min(subnets, default="")  # for launches that do not come from RunInstances
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

    def allow_by_quota(self, instance_type: str, market: Market, low: int, high: int) -> int:
        """How many more instances of a type the vCPU quota lets run. Raises EC2ClientError when less than `low`."""
        live = (i for i in self.sandbox_instances() if i.state in ("pending", "running"))
        return limits.allow_by_quota(
            instance_type,
            market,
            low,
            high,
            running=((instance.instance_type, instance.market) for instance in live),
            granted=self.settings.config.quotas,
            book=self.settings.book,
        )

    def describe_instance_type_offerings(
        self, location_type: str | None = None, filters: dict[str, Any] | None = None
    ) -> list[Any]:
        """As moto's, with * and ? in the filters' values."""
        offers = super().describe_instance_type_offerings(location_type)
        keys = {"location": "Location", "instance-type": "InstanceType"}
        for name, patterns in (filters or {}).items():
            if name not in keys:
                raise EC2ClientError("InvalidParameterValue", f"The filter '{name}' is invalid")
            offers = [o for o in offers if any(fnmatchcase(o[keys[name]], pattern) for pattern in patterns)]
        return offers

    def describe_spot_instance_requests(
        self, filters: Any = None, spot_instance_ids: list[str] | None = None
    ) -> list[SpotInstanceRequest]:
        """As moto's, which passes over ids that are not there."""
        for request_id in spot_instance_ids or []:
            self._get_spot_request(request_id)
        found: list[SpotInstanceRequest] = super().describe_spot_instance_requests(filters, spot_instance_ids)
        return found

    def cancel_spot_instance_requests(self, request_ids: list[str]) -> list[SpotInstanceRequest]:
        """They stay to be seen, as `cancelled`; moto forgets them. Their instances go on."""
        requests = [self._get_spot_request(request_id) for request_id in request_ids]
        for request in requests:
            request.state = "cancelled"
        return requests

    def _get_spot_request(self, request_id: str) -> SpotInstanceRequest:
        if request_id not in self.spot_instance_requests:
            raise EC2ClientError(
                "InvalidSpotInstanceRequestID.NotFound", f"The spot instance request ID '{request_id}' does not exist"
            )
        return self.spot_instance_requests[request_id]

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
