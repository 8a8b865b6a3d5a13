"""The mounts of an existing cluster's nodes."""

from collections.abc import Sequence

from foundation.errors import ClusterError
from provision.aws.clients import Clients
from provision.model import ClusterState
from provision.resources.shared_volume import find_attached
from provision.volumes.config import VolumeConfig, find_head_volume
from provision.volumes.file_systems import Place, choose_file_system, describe_file_systems
from provision.volumes.source import AttachedVolume, MountSource, plan_mounts


def describe_mounts(clients: Clients, volumes: Sequence[VolumeConfig], state: ClusterState) -> tuple[MountSource, ...]:
    """Returns the mounts of the nodes of `state`, in the order of cluster.toml.

    Only reads. Makes no call for volumes of other kinds than "head" and "fs-...".
    Raises ClusterError when a file system needs nodes and there are none, or if the head's volume is not attached.
    Raises ConfigError, AwsError.
    """
    attached = None
    if find_head_volume(volumes) is not None and (found := find_attached(clients, state)) is not None:
        volume, node = found
        attached = AttachedVolume(
            volume_id=volume.volume_id,
            instance_id=node.instance_id,
            device=volume.device,
            server=node.private_ip or "",
        )
    systems = describe_file_systems(clients, volumes)
    head = state.head
    if systems and head is None:
        raise ClusterError(f"cluster {state.name} has no nodes", hint="cluster up")
    place = Place(vpc_id=(head.vpc_id if head else None) or "", zone=head.zone if head else "")
    return plan_mounts(
        volumes,
        region=clients.region,
        attached=attached,
        file_systems={
            volume.source: choose_file_system(systems[volume.source], volume, place)
            for volume in volumes
            if volume.source in systems
        },
    )
