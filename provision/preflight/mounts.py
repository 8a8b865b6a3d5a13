"""Checks the volumes of [[volumes]] before a launch. Only reads."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Network

from provision.aws.clients import Clients
from provision.model import LaunchOption
from provision.plan import Wanted
from provision.resources.shared_volume import choose_volume
from provision.volumes.config import VolumeConfig, find_head_volume
from provision.volumes.file_systems import NAMES, Place, choose_file_system, describe_file_systems, find_warnings


@dataclass(frozen=True, kw_only=True, slots=True)
class Mounts:
    """lines: the planned mounts of the nodes; warnings: possible problems with them."""

    lines: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def describe_planned_mounts(clients: Clients, wanted: Wanted, option: LaunchOption) -> Mounts:
    """Returns the mounts of the nodes if they are launched at `option`.

    Makes no call without file systems of EFS or FSx. Raises ConfigError for a file system that the nodes cannot use,
    AwsError, and boto3's errors.
    """
    systems = describe_file_systems(clients, wanted.volumes)
    place = Place(vpc_id=option.vpc_id, zone=option.zone)
    if systems:
        [subnet] = clients.ec2.describe_subnets(SubnetIds=[option.subnet_id])["Subnets"]
        groups = tuple(group.group_id for group in wanted.state.security_groups if group.ours)
        place = Place(
            vpc_id=option.vpc_id, zone=option.zone, network=IPv4Network(subnet["CidrBlock"]), group_ids=groups
        )
    lines: list[str] = []
    warnings: list[str] = []
    for volume in wanted.volumes:
        how = ", read-only" if volume.read_only else ""
        if volume.kind != "file-system":
            lines.append(f"{volume.mount}: {_describe_head(wanted, volume) or volume.source}{how}")
            continue
        found = systems[volume.source]
        system = choose_file_system(found, volume, place)
        at = f" at {system.address}" if system.address else ""
        lines.append(f"{volume.mount}: {volume.source}, {NAMES[found.kind]}{at}{how}")
        warnings += find_warnings(found, volume, place, cluster=wanted.name)
    return Mounts(lines=tuple(lines), warnings=tuple(warnings))


def _describe_head(wanted: Wanted, volume: VolumeConfig) -> str | None:
    """Describes the head's volume in words; None for another kind."""
    if volume.kind != "head":
        return None
    existing = choose_volume(wanted)
    ending = "cluster down keeps it" if volume.keep else "cluster down deletes it"
    if existing is not None:
        return f"{existing.volume_id}, {existing.size_gib} GiB, on the head; {ending}"
    return f"a new volume of {volume.size_gib} GiB on the head, gp3, encrypted; {ending}"


def find_volume_gib(wanted: Wanted) -> int:
    """Returns the size of the head's volume in GiB; 0 without one. Pure."""
    config = find_head_volume(wanted.volumes)
    if config is None:
        return 0
    existing = choose_volume(wanted)
    return config.size_gib if existing is None else existing.size_gib
