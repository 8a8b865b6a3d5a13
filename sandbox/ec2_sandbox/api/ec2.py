"""EC2's state, as an extension of moto's backend. ec2_actions.py has the actions; moto_setup.py installs both.

The extension adds a default VPC in the sandbox's own range, public addresses that reach a host, quotas, and errors for
unknown images, key pairs and instance types and for security groups in use.
"""

import itertools
import threading
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass
from ipaddress import IPv4Network
from typing import TYPE_CHECKING, Any, cast

from moto.ec2 import urls as ec2_urls
from moto.ec2.exceptions import (
    DependencyViolationError,
    EC2ClientError,
    InvalidSecurityGroupNotFoundError,
    MissingParameterError,
)
from moto.ec2.models import EC2Backend
from moto.ec2.models.availability_zones_and_regions import Region
from moto.ec2.models.elastic_block_store import VolumeAttachment
from moto.ec2.models.instance_types import INSTANCE_TYPES
from moto.ec2.models.instances import MetadataOptions, Reservation
from moto.ec2.models.security_groups import SecurityGroup
from moto.ec2.models.tags import TagBackend
from moto.ec2.models.vpcs import VPC

from ec2_sandbox.api import images, limits
from ec2_sandbox.api.consistency import Tokens, Unsettled
from ec2_sandbox.api.instances import IncorrectInstanceStateError, PlacementGroups, SandboxInstance
from ec2_sandbox.api.reservations import CapacityReservations
from ec2_sandbox.api.volumes import SandboxSnapshot, SandboxVolume, check_attachable
from ec2_sandbox.config import GRANTED, FolderSettings, Market
from ec2_sandbox.faults import FaultBook
from ec2_sandbox.paths import Ranges

if TYPE_CHECKING:
    from ec2_sandbox.hosts.fleet import PhantomFleet


@dataclass(frozen=True, kw_only=True, slots=True)
class Ec2Settings:
    """The settings of this sandbox's EC2.

    wake: tells the daemon that it has something to do. fleet: the instances' hosts. book: the armed faults. note: logs
    an instance's new state.
    """

    config: FolderSettings
    ranges: Ranges
    wake: Callable[[], None]
    fleet: "PhantomFleet"
    book: FaultBook
    note: Callable[[SandboxInstance], None] = lambda _: None

    @property
    def regions(self) -> tuple[str, ...]:
        """The regions that can have instances, the sandbox's own first."""
        return tuple(dict.fromkeys((self.config.region, *self.config.others)))

    def range_of(self, region: str) -> IPv4Network:
        """Returns the address range of a region's default VPC.

        The sandbox's own region has the whole range and uses its first half. Each other region has a quarter of the
        range, from its second half, so that the hosts of all regions have different addresses.
        """
        if region not in self.regions[1:]:
            return self.ranges.private
        quarters = list(self.ranges.private.subnets(prefixlen_diff=2))
        return quarters[1 + self.regions.index(region)]


VCPUS: dict[str, int] = {name: known["VCpuInfo"]["DefaultVCpus"] for name, known in INSTANCE_TYPES.items()}
DEFAULT_INSTANCE_TYPE = "m1.small"  # of a launch that does not name a type

# Calls arrive in many threads, and moto's backends are not thread-safe.
lock = threading.RLock()


class SandboxEC2Backend(EC2Backend):
    """moto's EC2 in one region. `install` sets `settings` before the first backend is created, and then `whole`."""

    settings: Ec2Settings
    whole: "Regions"
    _url_module = ec2_urls

    def __init__(self, region_name: str, account_id: str) -> None:
        super().__init__(region_name, account_id)
        self.answers = Tokens()
        self.unsettled = Unsettled(self.settings.config.consistency_delay_s)
        self.placement_groups = PlacementGroups(self)
        self.capacity_reservations = CapacityReservations(self)
        images.publish(self)

    def describe_tags(self, filters: dict[str, list[str]] | None = None) -> list[dict[str, str]]:
        """As in moto, but reads only the tags of the resources that the filter names.

        moto reads the tags of the whole account for each resource in a list, so its time grows with the square of the
        number of resources: 3 s instead of 0.3 for a list of 1000 instances.
        """
        named = (filters or {}).get("resource-id", [])
        if not named or any("*" in resource or "?" in resource for resource in named):
            return super().describe_tags(filters)
        some = TagBackend()
        some.tags.update({resource: self.tags[resource] for resource in named if resource in self.tags})
        return some.describe_tags(filters)

    def do_resources_exist(self, resource_ids: list[str]) -> bool:
        """As in moto, but also raises EC2ClientError for an unknown instance."""
        for instance_id in resource_ids:
            if instance_id.startswith("i-"):
                self.get_instance(instance_id)
        return super().do_resources_exist(resource_ids)

    def cancel_spot_instance_requests(self, request_ids: list[str]) -> Any:
        """Cancels the requests, which moto would remove. Their instances run on. Raises EC2ClientError."""
        known: Any = self.spot_instance_requests
        if unknown := [one for one in request_ids if one not in known]:
            message = f"The spot instance request ID '{unknown[0]}' does not exist"
            raise EC2ClientError("InvalidSpotInstanceRequestID.NotFound", message)
        for request_id in request_ids:
            known[request_id].state = "cancelled"
        return [known[one] for one in request_ids]

    def create_default_vpc(self) -> VPC:
        """Creates the default VPC in the sandbox's own range.

        It has an internet gateway, and a default subnet in each zone for which its range has room.
        Raises EC2ClientError if the region has one.
        """
        if self.get_default_vpc() is not None:
            raise EC2ClientError(
                "DefaultVpcAlreadyExists", "A Default VPC already exists for this account in this region."
            )
        own = self.settings.range_of(self.region_name)
        vpc = self.create_vpc(cidr_block=str(own), is_default=True)
        gateway = self.create_internet_gateway()
        self.attach_internet_gateway(gateway.id, vpc.id)
        main = self.describe_route_tables(filters={"vpc-id": vpc.id, "association.main": "true"})[0]
        self.create_route(main.id, "0.0.0.0/0", gateway_id=gateway.id)
        for zone, _ in zip(self.describe_availability_zones(), own.subnets(new_prefix=20), strict=False):
            self.create_default_subnet(zone.name)
        return vpc

    def run_instances(
        self, image_id: str, count: int, user_data: Any, security_group_names: list[str], **kwargs: Any
    ) -> Reservation:
        """As in moto, after more checks, and in a default subnet if the launch does not name one."""
        self.check_launch(image_id, kwargs.get("key_name"), kwargs["instance_type"], kwargs.get("placement"))
        for name in security_group_names:
            if self.get_security_group_by_name_or_id(name) is None:
                raise InvalidSecurityGroupNotFoundError(name)
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
            # moto detects some errors after it has created instances. EC2 launches none in this case.
            for reservation_id in set(self.reservations) - known:
                self._take_back(reservation_id)
            raise
        for instance in cast("list[SandboxInstance]", reservation.instances):
            instance.reservation_id = reservation.id
            if instance.key_name:
                instance.public_key = self.key_pairs[instance.key_name].public_key
            self.settings.note(instance)
        return reservation

    def _take_back(self, reservation_id: str) -> None:
        for instance in self.reservations[reservation_id].instances:
            cast("SandboxInstance", instance).finish_termination()
        del self.reservations[reservation_id]

    def check_launch(self, image_id: str, key_name: str | None, instance_type: str, zone: str | None) -> None:
        """Raises EC2ClientError, with EC2's code and message, for names that do not exist."""
        if not image_id:
            raise MissingParameterError("ImageId")
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
        wanted = zone or min(subnets, default="")  # for launches by calls other than RunInstances
        if wanted not in subnets:
            raise EC2ClientError("MissingInput", f"No default subnet for availability zone: '{wanted}'.")
        return subnets[wanted].id

    def _complete_mappings(self, image_id: str, mappings: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Returns the launch's block devices, with the image's values as defaults."""
        complete = []
        for mapping in self.amis[image_id].block_device_mappings:
            own = next((m for m in mappings if m["DeviceName"] == mapping["DeviceName"]), None)
            if own and own.get("NoDevice") is not None:
                if own["DeviceName"] == self.amis[image_id].root_device_name:
                    raise EC2ClientError("InvalidBlockDeviceMapping", "An instance needs its root volume.")
                continue
            given = {k: v for k, v in own["Ebs"].items() if v is not None} if own else {}
            complete.append({"DeviceName": mapping["DeviceName"], "Ebs": {**mapping["Ebs"], **given}})
        names = {mapping["DeviceName"] for mapping in self.amis[image_id].block_device_mappings}
        further = [mapping for mapping in mappings if mapping["DeviceName"] not in names]
        for mapping in further:
            if mapping.get("NoDevice") is None and not (mapping["Ebs"]["VolumeSize"] or mapping["Ebs"]["SnapshotId"]):
                raise MissingParameterError("size or snapshotId")
            mapping["Ebs"] = {key: value for key, value in mapping["Ebs"].items() if value is not None}
        return complete + further

    def create_volume(self, size: int, zone_name: str, *args: Any, **kwargs: Any) -> Any:
        """As in moto, but raises EC2ClientError for a zone that does not exist."""
        if zone_name not in {zone.name for zone in self.describe_availability_zones()}:
            raise EC2ClientError("InvalidZone.NotFound", f"The zone '{zone_name}' does not exist.")
        snapshot = self.snapshots.get(kwargs.get("snapshot_id") or "")
        if snapshot is not None:
            if snapshot.status != "completed":
                raise EC2ClientError("IncorrectState", f"Snapshot is in invalid state - {snapshot.status}")
            if size is not None and size < snapshot.volume_size:
                raise EC2ClientError("InvalidParameterValue", "The size of the volume is smaller than the snapshot.")
        return super().create_volume(size, zone_name, *args, **kwargs)

    def attach_volume(self, volume_id: str, instance_id: str, device_path: str, *args: Any) -> VolumeAttachment:
        """Starts to attach a volume; the daemon completes it. Raises EC2ClientError."""
        if not self.settings.fleet.has_disks:
            raise EC2ClientError("UnsupportedOperation", "A sandbox that runs without root cannot attach volumes.")
        instance = cast("SandboxInstance", self.get_instance(instance_id))
        check_attachable(self.get_volume(volume_id), instance, device_path)
        attachment = cast("VolumeAttachment", super().attach_volume(volume_id, instance_id, device_path, *args))
        attachment.status = "attaching"
        return attachment

    def create_snapshot(self, *args: Any, **kwargs: Any) -> Any:
        """As in moto, but the daemon copies the volume's bytes, as of now."""
        snapshot = super().create_snapshot(*args, **kwargs)
        if snapshot.status == "pending":
            self.settings.fleet.capture(cast("SandboxSnapshot", snapshot))
        return snapshot

    def delete_security_group(self, name: str | None = None, group_id: str | None = None) -> None:
        """As in moto, but fails while a network interface or a rule of another group uses the group."""
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

    def modify_instance_attribute(self, instance_id: str, key: str, value: Any) -> Any:
        """As in moto, but changes the type and user data only while the instance is stopped, and checks the type."""
        if key in ("instance_type", "user_data") and self.get_instance(instance_id).state != "stopped":
            raise IncorrectInstanceStateError(instance_id, "modified")
        if key == "instance_type" and value not in INSTANCE_TYPES:
            raise EC2ClientError("InvalidInstanceAttributeValue", f"Invalid value '{value}' for InstanceType.")
        return super().modify_instance_attribute(instance_id, key, value)

    def modify_instance_metadata_options(self, instance_id: str, *_: Any, **given: Any) -> MetadataOptions:
        """As in moto, but what the caller does not name stays."""
        before = self.get_instance(instance_id).metadata_options
        known = {
            "http_tokens": before.http_tokens, "hop_limit": before.http_put_response_hop_limit,
            "http_endpoint": before.http_endpoint, "http_protocol": before.http_protocol_ipv6,
            "metadata_tags": before.instance_metadata_tags,
        }  # fmt: skip
        known |= {name: value for name, value in given.items() if value is not None}
        return super().modify_instance_metadata_options(instance_id, **known)

    def get_security_group_from_id(self, group_id: str) -> SecurityGroup | None:
        """As in moto, but raises EC2ClientError for an unknown id, for which moto would make a group, or use None."""
        group = super().get_security_group_from_id(group_id)
        if group is None and group_id.startswith("sg-"):
            raise InvalidSecurityGroupNotFoundError(group_id)
        return group  # None: it may be a name

    def modify_instance_security_groups(self, instance_id: str, new_group_id_list: list[str]) -> Any:
        """As in moto, but also moves the instance's first interface, which moto leaves in its former groups."""
        instance = super().modify_instance_security_groups(instance_id, new_group_id_list)
        instance.nics[0]._group_set = list(instance.security_groups)  # noqa: SLF001 -- moto has no public way
        return instance

    def modify_network_interface_attribute(self, eni_id: str, group_ids: list[str], *args: Any, **kwargs: Any) -> None:
        """As in moto, but also moves the interface's instance, which moto leaves in its former groups."""
        super().modify_network_interface_attribute(eni_id, group_ids, *args, **kwargs)
        interface = self.get_network_interface(eni_id)
        if group_ids and interface.instance is not None and interface.device_index == 0:
            interface.instance.security_groups = list(interface._group_set)  # noqa: SLF001 -- moto has no public way

    def allow_by_quota(
        self, instance_type: str, market: Market, low: int, high: int, *, starting: Container[SandboxInstance] = ()
    ) -> int:
        """Returns how many instances of a type, `low` to `high`, the vCPU quota allows a launch.

        starting: instances that also count. Raises EC2ClientError for less than `low`.
        """
        quota = limits.find_quota(instance_type, market)
        if quota is None:
            return high
        limit = self.settings.config.quotas.get(quota.code, GRANTED)
        live = [i for i in self.sandbox_instances() if i.state in ("pending", "running") or i in starting]
        used = sum(VCPUS[i.instance_type] for i in live if limits.find_quota(i.instance_type, i.market) is quota)
        fault = self.settings.book.take("vcpu-limit", type=instance_type, market=market)
        count = 0 if fault else min(high, max(0, limit - used) // VCPUS[instance_type])
        if count >= low:
            return count
        if market == "spot":
            raise EC2ClientError("MaxSpotInstanceCountExceeded", "Max spot instance count exceeded")
        raise EC2ClientError(
            "VcpuLimitExceeded",
            f"You have requested more vCPU capacity than your current vCPU limit of {used if fault else limit} allows "
            "for the instance bucket that the specified instance type belongs to. Please visit "
            "http://aws.amazon.com/contact-us/ec2-request to request an adjustment to this limit.",
        )

    def describe_regions(self, region_names: list[str] | None = None) -> list[Region]:
        """Returns the regions that can have instances. Raises EC2ClientError for others."""
        known = self.settings.regions
        if unknown := set(region_names or ()) - set(known):
            raise EC2ClientError("InvalidParameterValue", f"Invalid region provided: {', '.join(sorted(unknown))}")
        return [region for region in self.regions if region.name in known]

    def find_private_address(self, public_ip: str) -> str | None:
        """Returns the private address of the interface with this public address, or None.

        Needs no lock, because `list` copies atomically.
        """
        found = (eni.private_ip_address for eni in list(self.enis.values()) if eni.public_ip == public_ip)
        return next((str(address) for address in found), None)

    def sandbox_instances(self) -> list[SandboxInstance]:
        """Returns all instances, including terminated ones."""
        return [i for r in self.reservations.values() for i in r.instances if isinstance(i, SandboxInstance)]

    def sandbox_volumes(self) -> list[SandboxVolume]:
        """Returns all volumes."""
        return [volume for volume in self.volumes.values() if isinstance(volume, SandboxVolume)]

    def sandbox_snapshots(self) -> list[SandboxSnapshot]:
        """Returns all snapshots."""
        return [snapshot for snapshot in self.snapshots.values() if isinstance(snapshot, SandboxSnapshot)]


Regions = tuple[SandboxEC2Backend, ...]
"""EC2 in each of a sandbox's regions, its own region first. Their hosts share a network."""


def list_instances(regions: Regions) -> list[SandboxInstance]:
    """Returns the instances of all regions, including terminated ones."""
    return [instance for backend in regions for instance in backend.sandbox_instances()]


class PublicAddresses:
    """The sandbox's public addresses. A released address is reused as late as possible."""

    def __init__(self, public: IPv4Network, backends: Iterable[EC2Backend]) -> None:
        self._backends = tuple(backends)
        self._count = public.num_addresses - 2
        self._next = itertools.cycle(public.hosts())

    def take(self) -> str:
        """Returns a free address. Raises EC2ClientError if there is none."""
        used = {eni.public_ip for backend in self._backends for eni in backend.enis.values()}
        used |= {address.public_ip for backend in self._backends for address in backend.addresses}
        for address in itertools.islice(self._next, self._count):
            if str(address) not in used:
                return str(address)
        raise EC2ClientError("InsufficientAddressCapacity", "The sandbox has no free public address.")
