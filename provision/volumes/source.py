"""The information that a node needs to mount a volume of [[volumes]]."""

from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from provision.volumes.config import VolumeConfig

MountKind = Literal["head", "nfs", "efs", "lustre", "s3"]


class MountSource(Struct, frozen=True, kw_only=True):
    """A volume, as nodes mount it.

    mount: the folder on the nodes. server: what the nodes connect to: a DNS name ("efs", "lustre"), the host of
    "HOST:/export" ("nfs"). export: the path on it that is mounted: "/export" (nfs), "/" (efs), "/fsx" (lustre, its
    mount name). volume_id, instance_id: for head, the EBS volume ("vol-...", the serial number of its NVMe device) and
    the instance to which it is attached. device: the name under which it is attached, such as "/dev/sdf".
    bucket, prefix, region: for s3; the prefix is "" or ends with a slash.
    """

    kind: MountKind
    mount: str
    source: str
    read_only: bool = False
    server: str = ""
    export: str = ""
    volume_id: str = ""
    instance_id: str = ""
    device: str = ""
    bucket: str = ""
    prefix: str = ""
    region: str = ""


def plan_mount(volume: VolumeConfig, *, region: str) -> MountSource:
    """Returns how nodes mount a volume, as far as cluster.toml says it. region: of the cluster. Pure."""
    planned = MountSource(kind="head", mount=volume.mount, source=volume.source, read_only=volume.read_only)
    if volume.kind == "nfs":
        server, _, export = volume.source.partition(":")
        return replace(planned, kind="nfs", server=server, export=export)
    if volume.kind == "s3":
        bucket, _, prefix = volume.source.removeprefix("s3://").partition("/")
        return replace(planned, kind="s3", bucket=bucket, prefix=prefix, region=region)
    return planned
