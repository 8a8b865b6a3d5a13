"""[[volumes]] of cluster.toml: file systems that every node mounts."""

import posixpath
import re
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from pathlib import PurePosixPath
from typing import Annotated, Literal

from msgspec import Meta

from foundation.setting_types import Settings

SourceKind = Literal["head", "file-system", "s3", "nfs"]

HEAD = "head"
# An EFS file system, or an FSx file system: https://docs.aws.amazon.com/fsx/latest/APIReference/API_FileSystem.html
_FILE_SYSTEM = re.compile(r"fs-[0-9a-f]{8,40}")
# The key's characters have no special meaning in command lines, fstab and URLs.
_S3 = re.compile(r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[A-Za-z0-9._=+@-]+)*/?")
_NFS = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?:(/[A-Za-z0-9._+@-]+)+/?|[A-Za-z0-9][A-Za-z0-9.-]*:/")
_PATH = re.compile(r"(/[A-Za-z0-9_][A-Za-z0-9._+-]*)+/?")
_SOURCES = (
    '"head" (a new disk on the head), "fs-..." (EFS or FSx for Lustre), "s3://bucket/folder/" or "HOST:/export" (NFS)'
)
_SYSTEM_FOLDERS = frozenset(
    {
        *("bin", "boot", "dev", "etc", "lib", "lib32", "lib64", "libx32", "lost+found"),
        *("proc", "root", "run", "sbin", "snap", "sys", "tmp", "usr", "var"),
    }
)
"""Volumes cannot be mounted on or below these folders of /: the system, or its clean-up of old files, uses them."""
_FOLDERS_OF_OTHERS = frozenset({"home", "media", "mnt", "opt", "srv"})
"""Volumes can be mounted below these folders of /, but not on them: they have other contents."""


def _check_mount(value: str) -> str:
    """Returns the folder without a slash at its end. Pure. Raises ValueError."""
    if not _PATH.fullmatch(value):
        raise ValueError('must be an absolute path of letters, digits and . _ + -, such as "/shared"')
    path = PurePosixPath(posixpath.normpath(value))
    top = path.parts[1]
    if top in _SYSTEM_FOLDERS:
        raise ValueError(f'/{top} belongs to the system; choose another folder, such as "/shared"')
    if len(path.parts) == 2 and top in _FOLDERS_OF_OTHERS:
        raise ValueError(f'would hide what is in /{top}; choose a folder below it, or another one, such as "/shared"')
    if top == "home" and len(path.parts) == 3:
        raise ValueError(f'would hide a home folder; choose a folder below it, such as "{path}/shared"')
    return str(path)


def _check_source(value: str) -> str:
    """Returns the source: s3:// with a slash at its end, and an export without one. Pure. Raises ValueError."""
    if value == HEAD or _FILE_SYSTEM.fullmatch(value):
        return value
    if _S3.fullmatch(value):
        return f"{value.rstrip('/')}/"
    if _NFS.fullmatch(value) and not value.startswith("s3:"):
        return value if value.endswith(":/") else value.rstrip("/")
    raise ValueError(f"must be {_SOURCES}")


class VolumeConfig(Settings, frozen=True, kw_only=True):
    """A file system that every node mounts."""

    mount: Annotated[
        str, _check_mount, Meta(description='the folder on every node where it is mounted, such as "/shared"')
    ]
    source: Annotated[
        str,
        _check_source,
        Meta(
            description='"head": a new disk on the head; "fs-...": an existing EFS or FSx for Lustre file system; '
            '"s3://bucket/folder/"; or "HOST:/export": an existing NFS server'
        ),
    ]
    keep: Annotated[bool, Meta(description='true: `cluster down` keeps the disk of source = "head"')] = False
    read_only: Annotated[bool, Meta(description="true: nodes can only read")] = False
    size_gib: Annotated[
        int,
        Meta(ge=1, le=16384, description='the size of the disk of source = "head" in GiB, 1 to 16384'),
    ] = 100

    @property
    def kind(self) -> SourceKind:
        """The kind of the source."""
        if self.source == HEAD:
            return "head"
        if self.source.startswith("s3://"):
            return "s3"
        return "nfs" if ":" in self.source else "file-system"

    def conflicts(self, given: AbstractSet[str]) -> Iterator[str]:
        """Yields a message for each invalid combination of valid settings."""
        if self.kind != "head":
            for key in sorted({"keep", "size_gib"} & given):
                if key == "size_gib" or self.keep:
                    yield (
                        f'{key} is for source = "head"; "{self.source}" exists already, and is neither changed nor '
                        "deleted"
                    )
        elif self.read_only and not self.keep:
            yield 'read_only = true with source = "head" needs keep = true: a new disk is empty'


def find_head_volume(volumes: Sequence[VolumeConfig]) -> VolumeConfig | None:
    """Returns the volume with source = "head"; None if there is none. Pure."""
    return next((volume for volume in volumes if volume.kind == "head"), None)


def find_conflicts(volumes: Sequence[VolumeConfig], *, in_ec2: bool) -> Iterator[str]:
    """Yields the contradictions between volumes. Pure. in_ec2: whether the nodes are instances."""
    heads = [volume for volume in volumes if volume.kind == "head"]
    if len(heads) > 1:
        mounts = ", ".join(volume.mount for volume in heads)
        yield f'[[volumes]] source = "head" appears {len(heads)} times ({mounts}); a cluster has one such volume'
    for at, volume in enumerate(volumes):
        where = f'volumes[{at}].source = "{volume.source}"'
        if not in_ec2 and volume.kind in {"head", "file-system"}:
            yield f'{where}: needs instances of EC2; with cloud = "hosts", use "HOST:/export" or "s3://..."'
        for earlier in volumes[:at]:
            if volume.mount == earlier.mount:
                yield f'[[volumes]] mount = "{volume.mount}" appears twice'
            elif _is_below(volume.mount, earlier.mount) or _is_below(earlier.mount, volume.mount):
                yield f'[[volumes]] mount = "{volume.mount}" and mount = "{earlier.mount}": one would be in the other'


def _is_below(path: str, folder: str) -> bool:
    return PurePosixPath(folder) in PurePosixPath(path).parents
