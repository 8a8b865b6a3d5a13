"""Existing file systems of EFS and FSx for Lustre: their location, and whether the nodes can reach them. Only reads.

https://docs.aws.amazon.com/efs/latest/ug/accessing-fs.html
https://docs.aws.amazon.com/fsx/latest/LustreGuide/limit-access-security-groups.html
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network
from typing import TYPE_CHECKING, Literal

from botocore.exceptions import ClientError

from foundation.errors import ConfigError
from provision.aws.clients import Clients, aws_errors, error_code
from provision.model import resource_name
from provision.volumes.config import VolumeConfig
from provision.volumes.source import FileSystem

if TYPE_CHECKING:
    from mypy_boto3_ec2.type_defs import IpPermissionOutputTypeDef, SecurityGroupTypeDef
    from mypy_boto3_fsx.type_defs import FileSystemTypeDef

PORTS = {"efs": 2049, "lustre": 988}
"""TCP ports of the servers."""
NAMES = {"efs": "EFS", "lustre": "FSx for Lustre"}
_READY = "available"
# FSx for Lustre remains usable while AWS updates it.
_USABLE = frozenset({_READY, "updating"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """An address at which a file system can be mounted. zone, address: "" if unknown. group_ids: security groups."""

    vpc_id: str
    zone: str = ""
    address: str = ""
    group_ids: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class FoundFileSystem:
    """A file system as AWS reports it. state: its life cycle state in lower case. export: see MountSource."""

    kind: Literal["efs", "lustre"]
    file_system_id: str
    state: str
    dns_name: str
    export: str
    targets: tuple[Target, ...]
    open_to: Mapping[str, tuple[IPv4Network | str, ...]]
    """Security group -> the networks, and the ids of groups, that may reach the port through it."""

    def choose_target(self, *, vpc_id: str, zone: str) -> Target | None:
        """Returns the target in the zone, or another one of the VPC; None if the VPC has none. Pure."""
        here = [target for target in self.targets if target.vpc_id == vpc_id]
        return next((target for target in here if target.zone == zone), here[0] if here else None)


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """The location of the nodes. network: of their subnet. group_ids: the cluster's security groups."""

    vpc_id: str
    zone: str
    network: IPv4Network | None = None
    group_ids: tuple[str, ...] = ()


# --- describe


def describe_file_systems(clients: Clients, volumes: Sequence[VolumeConfig]) -> Mapping[str, FoundFileSystem]:
    """Returns the file systems of [[volumes]] source = "fs-...", by id. Makes no call without any.

    Raises ConfigError, AwsError.
    """
    ids = dict.fromkeys(volume.source for volume in volumes if volume.kind == "file-system")
    return {each: _describe(clients, each) for each in ids}


def _describe(clients: Clients, file_system_id: str) -> FoundFileSystem:
    with aws_errors(f"looking for the file system {file_system_id}"):
        found = _find_efs(clients, file_system_id) or _find_fsx(clients, file_system_id)
    if found is None:
        raise ConfigError(
            f'[[volumes]] source = "{file_system_id}": neither EFS nor FSx has this file system in {clients.region}',
            hint="correct source or [provision] region; to list them: aws efs describe-file-systems; "
            "aws fsx describe-file-systems",
        )
    return found


def _find_efs(clients: Clients, file_system_id: str) -> FoundFileSystem | None:
    efs = clients.efs
    try:
        [shown] = efs.describe_file_systems(FileSystemId=file_system_id)["FileSystems"]
    except ClientError as error:
        if error_code(error) not in {"FileSystemNotFound", "BadRequest"}:  # BadRequest: the id has FSx's form
            raise
        return None
    pages = efs.get_paginator("describe_mount_targets").paginate(FileSystemId=file_system_id)
    targets = tuple(
        Target(
            vpc_id=target.get("VpcId", ""),
            zone=target.get("AvailabilityZoneName", ""),
            address=target.get("IpAddress", ""),
            group_ids=tuple(
                efs.describe_mount_target_security_groups(MountTargetId=target["MountTargetId"]).get(
                    "SecurityGroups", ()
                )
            ),
        )
        for page in pages
        for target in page["MountTargets"]
        if target["LifeCycleState"] == _READY
    )
    return FoundFileSystem(
        kind="efs",
        file_system_id=file_system_id,
        state=shown["LifeCycleState"],
        dns_name=f"{file_system_id}.efs.{clients.region}.{_suffix(clients.region)}",
        export="/",
        targets=targets,
        open_to=_describe_groups(clients, targets, port=PORTS["efs"]),
    )


def _find_fsx(clients: Clients, file_system_id: str) -> FoundFileSystem | None:
    try:
        systems = clients.fsx.describe_file_systems(FileSystemIds=[file_system_id])["FileSystems"]
    except ClientError as error:
        if error_code(error) not in {"FileSystemNotFound", "BadRequest"}:
            raise
        return None
    if not systems:
        return None
    [shown] = systems
    if shown.get("FileSystemType") != "LUSTRE":
        raise ConfigError(
            f'[[volumes]] source = "{file_system_id}": it is FSx for {shown.get("FileSystemType")}, and only FSx for '
            "Lustre is mounted by id",
            hint=f'if it has an NFS export, use that: source = "{shown.get("DNSName", "HOST")}:/EXPORT"',
        )
    targets = _find_fsx_targets(clients, shown)
    return FoundFileSystem(
        kind="lustre",
        file_system_id=file_system_id,
        state=shown.get("Lifecycle", "").lower(),
        dns_name=shown.get("DNSName", ""),
        export=f"/{shown.get('LustreConfiguration', {}).get('MountName', 'fsx')}",
        targets=targets,
        open_to=_describe_groups(clients, targets, port=PORTS["lustre"]),
    )


def _find_fsx_targets(clients: Clients, shown: FileSystemTypeDef) -> tuple[Target, ...]:
    """Returns one target for each network interface; only the VPC if AWS lists none."""
    ids = shown.get("NetworkInterfaceIds", [])
    interfaces = clients.ec2.describe_network_interfaces(NetworkInterfaceIds=ids)["NetworkInterfaces"] if ids else []
    targets = tuple(
        Target(
            vpc_id=interface.get("VpcId", ""),
            zone=interface.get("AvailabilityZone", ""),
            address=interface.get("PrivateIpAddress", ""),
            group_ids=tuple(group["GroupId"] for group in interface.get("Groups", []) if "GroupId" in group),
        )
        for interface in interfaces
    )
    return targets or (Target(vpc_id=shown.get("VpcId", "")),)


def _describe_groups(
    clients: Clients, targets: Iterable[Target], *, port: int
) -> dict[str, tuple[IPv4Network | str, ...]]:
    ids = sorted({group_id for target in targets for group_id in target.group_ids})
    groups = clients.ec2.describe_security_groups(GroupIds=ids)["SecurityGroups"] if ids else []
    return {group["GroupId"]: tuple(_read_rules(group, port)) for group in groups}


def _read_rules(group: SecurityGroupTypeDef, port: int) -> Iterable[IPv4Network | str]:
    for rule in group.get("IpPermissions", []):
        if _covers(rule, port):
            yield from (IPv4Network(one["CidrIp"], strict=False) for one in rule.get("IpRanges", []) if "CidrIp" in one)
            yield from (pair["GroupId"] for pair in rule.get("UserIdGroupPairs", []) if "GroupId" in pair)


def _covers(rule: IpPermissionOutputTypeDef, port: int) -> bool:
    if rule.get("IpProtocol") == "-1":
        return True
    return rule.get("IpProtocol") in {"tcp", "6"} and rule.get("FromPort", 0) <= port <= rule.get("ToPort", 65535)


def _suffix(region: str) -> str:
    return "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"


# --- judge


def choose_file_system(found: FoundFileSystem, volume: VolumeConfig, place: Place) -> FileSystem:
    """Returns what the nodes mount. Pure. Raises ConfigError when the file system is unavailable or in another VPC."""
    name = NAMES[found.kind]
    where = f'[[volumes]] source = "{volume.source}"'
    if found.state not in _USABLE:
        raise ConfigError(
            f"{where}: the {name} file system is {found.state or 'in an unknown state'}",
            hint="wait until it is available, then run the command again",
        )
    target = found.choose_target(vpc_id=place.vpc_id, zone=place.zone)
    if target is None:
        others = ", ".join(sorted({each.vpc_id for each in found.targets if each.vpc_id}))
        have = f"only in {others}" if others else "nowhere"
        make = (
            f"make one: aws efs create-mount-target --file-system-id {found.file_system_id} --subnet-id SUBNET"
            if found.kind == "efs"
            else "use a file system of that VPC"
        )
        raise ConfigError(
            f"{where}: the nodes are in {place.vpc_id}, and the {name} file system has a mount target {have}",
            hint=f"{make}; or set [provision] subnet_id to a subnet of its VPC",
        )
    return FileSystem(
        kind=found.kind,
        file_system_id=found.file_system_id,
        dns_name=found.dns_name,
        address=target.address,
        export=found.export,
    )


def find_warnings(found: FoundFileSystem, volume: VolumeConfig, place: Place, *, cluster: str) -> Iterable[str]:
    """Yields the reasons why the nodes may fail to mount a file system, or why it costs more. Pure."""
    target = found.choose_target(vpc_id=place.vpc_id, zone=place.zone)
    if target is None:
        return
    if target.zone not in {"", place.zone}:
        yield (
            f"{volume.mount}: {volume.source} has no mount target in {place.zone}: nodes use the one in {target.zone}, "
            "and AWS charges for traffic between zones"
        )
    if target.group_ids and not _admits(found, target.group_ids, place):
        # Before the launch, the cluster's group may not exist.
        group = place.group_ids[0] if place.group_ids else f"the id of {resource_name(cluster)}"
        yield (
            f"{volume.mount}: no security group of {volume.source} ({', '.join(target.group_ids)}) admits the nodes to "
            f"TCP port {PORTS[found.kind]}; once the cluster's group exists: aws ec2 authorize-security-group-ingress "
            f"--group-id {target.group_ids[0]} --protocol tcp --port {PORTS[found.kind]} --source-group {group}"
        )


def _admits(found: FoundFileSystem, group_ids: Collection[str], place: Place) -> bool:
    """Returns whether a rule names the cluster's group or contains the network of the nodes' subnet."""
    return any(
        peer in place.group_ids
        if isinstance(peer, str)
        else peer.prefixlen == 0 or (place.network is not None and place.network.subnet_of(peer))
        for group_id in group_ids
        for peer in found.open_to.get(group_id, ())
    )
