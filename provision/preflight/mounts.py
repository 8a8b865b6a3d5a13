"""The volumes of [[volumes]] before a launch. Only reads."""

from provision.aws.clients import Clients
from provision.plan import World
from provision.resources.shared_volume import choose_volume
from provision.volumes.config import VolumeConfig, find_head_volume
from provision.volumes.file_systems import NAMES, find_file_system


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
        return f"{volume.source}, {NAMES[find_file_system(clients, volume.source).kind]}"
    if volume.kind != "head":
        return volume.source
    existing = choose_volume(world)
    ending = "cluster down keeps it" if volume.keep else "cluster down deletes it"
    if existing is not None:
        return f"{existing.volume_id}, {existing.size_gib} GiB, on the head; {ending}"
    return f"a new volume of {volume.size_gib} GiB on the head, gp3, encrypted; {ending}"


def find_volume_gib(world: World) -> int:
    """Returns the size of the head's volume in GiB; 0 without one. Pure."""
    config = find_head_volume(world.request.volumes)
    if config is None:
        return 0
    existing = choose_volume(world)
    return config.size_gib if existing is None else existing.size_gib
