"""The information that a node needs to mount a volume of [[volumes]]."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from foundation.errors import ClusterError
from provision.volumes.config import VolumeConfig

MountKind = Literal["head", "nfs", "efs", "lustre", "s3"]


@dataclass(frozen=True, kw_only=True, slots=True)
class MountSource:
    """A volume, as nodes mount it.

    mount: the folder on the nodes. server: what the nodes connect to: the private address of the node that has the disk
    ("head"), a DNS name ("efs", "lustre"), the host of "HOST:/export" ("nfs"); "" for s3. address: an IPv4 address of
    the server in the nodes' VPC that works without DNS; "" if unknown. export: the path on the server that is mounted:
    "/export" (nfs), "/" (efs), "/fsx" (lustre, its mount name); "" for head and s3.
    volume_id, instance_id: for head, the EBS volume ("vol-...", the serial number of its NVMe device) and the instance
    to which it is attached. device: the name under which it is attached, such as "/dev/sdf". bucket, prefix: for s3;
    the prefix is "" or ends with a slash. region: of the bucket or the file system; "" if unknown.
    """

    kind: MountKind
    mount: str
    source: str
    read_only: bool = False
    server: str = ""
    address: str = ""
    export: str = ""
    volume_id: str = ""
    instance_id: str = ""
    device: str = ""
    bucket: str = ""
    prefix: str = ""
    region: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class AttachedVolume:
    """The disk of source = "head". server: the private address of the instance to which it is attached."""

    volume_id: str
    instance_id: str
    device: str
    server: str


@dataclass(frozen=True, kw_only=True, slots=True)
class FileSystem:
    """An existing file system of EFS or FSx for Lustre. address, export: see MountSource."""

    kind: Literal["efs", "lustre"]
    file_system_id: str
    dns_name: str
    address: str
    export: str


def plan_mounts(
    volumes: Sequence[VolumeConfig],
    *,
    region: str = "",
    attached: AttachedVolume | None = None,
    file_systems: Mapping[str, FileSystem] | None = None,
) -> tuple[MountSource, ...]:
    """Returns the mounts of the nodes, in the order of cluster.toml. Pure.

    attached: for source = "head"; file_systems: by id, for "fs-...". region: of the cluster. Raises ClusterError if the
    disk is not attached.
    """
    return tuple(_plan_mount(volume, region, attached, file_systems or {}) for volume in volumes)


def _plan_mount(
    volume: VolumeConfig, region: str, attached: AttachedVolume | None, file_systems: Mapping[str, FileSystem]
) -> MountSource:
    mount, source, read_only = volume.mount, volume.source, volume.read_only
    if volume.kind == "head":
        if attached is None:
            raise ClusterError(
                f'[[volumes]] mount = "{mount}": the disk of source = "head" is not attached to a node',
                hint="cluster up",
            )
        return MountSource(
            kind="head",
            mount=mount,
            source=source,
            read_only=read_only,
            server=attached.server,
            address=attached.server,
            volume_id=attached.volume_id,
            instance_id=attached.instance_id,
            device=attached.device,
            region=region,
        )
    if volume.kind == "s3":
        bucket, _, prefix = source.removeprefix("s3://").partition("/")
        return MountSource(
            kind="s3", mount=mount, source=source, read_only=read_only, bucket=bucket, prefix=prefix, region=region
        )
    if volume.kind == "nfs":
        server, _, export = source.partition(":")
        return MountSource(kind="nfs", mount=mount, source=source, read_only=read_only, server=server, export=export)
    found = file_systems[source]
    return MountSource(
        kind=found.kind,
        mount=mount,
        source=source,
        read_only=read_only,
        server=found.dns_name,
        address=found.address,
        export=found.export,
        region=region,
    )
