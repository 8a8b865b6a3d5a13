"""The mounts of an existing cluster's nodes."""

from collections.abc import Sequence

from msgspec.structs import replace

from foundation.errors import ClusterError
from provision.aws.clients import Clients
from provision.model import ClusterState
from provision.resources.shared_volume import find_attached
from provision.volumes.config import VolumeConfig
from provision.volumes.file_systems import find_file_system
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
        disk, node = attached
        return replace(
            planned,
            server=node.private_ip or "",
            volume_id=disk.volume_id,
            instance_id=node.instance_id,
            device=disk.device,
        )
    if volume.kind == "file-system":
        found = find_file_system(clients, volume.source)
        return replace(planned, kind=found.kind, server=found.dns_name, export=found.export)
    return planned
