"""The mounts of a cluster's nodes, and those that a launch will make. Only reads."""

from collections.abc import Sequence

from msgspec.structs import replace

from foundation.errors import ClusterError
from provision.aws.clients import Clients
from provision.model import ClusterState
from provision.plan import World
from provision.resources.shared_volume import choose_volume, find_attached
from provision.volumes.config import VolumeConfig
from provision.volumes.file_systems import NAMES, find_file_system
from provision.volumes.source import MountSource, plan_mount


def describe_mounts(clients: Clients, volumes: Sequence[VolumeConfig], state: ClusterState) -> tuple[MountSource, ...]:
    """Returns the mounts of the nodes of `state`, in the order of cluster.toml.

    Only reads. Makes no call for volumes of other kinds than "head" and "fs-...". Raises ClusterError if the head's
    volume is not attached, ConfigError, AwsError.
    """
    return tuple(_describe_mount(clients, volume, state) for volume in volumes)


def _describe_mount(clients: Clients, volume: VolumeConfig, state: ClusterState) -> MountSource:
    planned = plan_mount(volume, region=clients.region)
    if volume.kind == "head":
        attached = find_attached(clients, state)
        if attached is None:
            raise ClusterError(
                f'[[volumes]] mount = "{volume.mount}": the disk of source = "head" is not attached to a node',
                hint="cluster up",
            )
        return replace(
            planned, volume_id=attached.volume_id, instance_id=attached.instance_id or "", device=attached.device
        )
    return find_file_system(clients, planned) if volume.kind == "file-system" else planned


def describe_planned_mounts(clients: Clients, world: World) -> tuple[str, ...]:
    """Returns a line for each volume that the nodes will mount.

    Makes no call without file systems of EFS or FSx. Raises ConfigError for one that the nodes cannot use, AwsError.
    """
    return tuple(
        f"{volume.mount}: {_describe_volume(clients, world, volume)}{', read-only' if volume.read_only else ''}"
        for volume in world.request.volumes
    )


def _describe_volume(clients: Clients, world: World, volume: VolumeConfig) -> str:
    if volume.kind == "file-system":
        planned = plan_mount(volume, region=clients.region)
        return f"{volume.source}, {NAMES[find_file_system(clients, planned).kind]}"
    if volume.kind != "head":
        return volume.source
    existing = choose_volume(world)
    ending = "cluster down keeps it" if volume.keep else "cluster down deletes it"
    if existing is not None:
        return f"{existing.volume_id}, {existing.size_gib} GiB, on the head; {ending}"
    return f"a new volume of {volume.size_gib} GiB on the head, gp3, encrypted; {ending}"
