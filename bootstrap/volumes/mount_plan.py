"""Plans how nodes mount the volumes of cluster.toml, from the facts about each node. Pure."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from bootstrap.ssh.host import Host
from bootstrap.volumes import commands
from bootstrap.volumes.commands import S3Access
from foundation.errors import ClusterError
from node.setup.volumes.volume_probe import DISKS
from provision.volumes.source import MountSource

PACKAGES = {"nfs": ("mount.nfs4", "nfs-common"), "server": ("exportfs", "nfs-kernel-server"), "s3fs": ("s3fs", "s3fs")}
"""A command, and the package of Debian and Ubuntu that has it, by what they are for."""


class Noted(Struct, frozen=True):
    """A mount that mount_volumes.py has made. signature: that of the Mount. server: its name in errors.

    made_at: the time of the mount. ends_at: the time when its keys expire, or None. Both in seconds since the epoch.
    """

    signature: str
    server: str = ""
    made_at: float = 0.0
    ends_at: float | None = None


Id = Annotated[int, Meta(ge=0, le=1 << 32)]


class VolumeFacts(Struct, frozen=True):
    """The facts about a node that matter to volumes.

    uid, gid: the user whose jobs use the volumes. mounted: the folders on which a file system is mounted. dead: by
    folder, why a noted mount does not work. disks: the folders below DISKS at which EBS volumes are mounted.
    """

    commands: tuple[str, ...]
    uid: Id
    gid: Id
    noted: dict[str, Noted]
    mounted: tuple[str, ...]
    dead: dict[str, str]
    disks: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Mount:
    """How a node mounts a volume. server: the name of its server in errors. env: secrets, only for the command.

    how: the file system in a word. words: the command. left_s: how long its keys are still valid, as in S3Access.
    """

    source: MountSource
    how: str
    server: str
    words: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    left_s: float | None = None

    @property
    def signature(self) -> str:
        """A digest that identifies how the volume is mounted. It does not depend on secrets."""
        return hashlib.sha256(json.dumps(self.words).encode()).hexdigest()[:16]


class MountPlan(Struct, frozen=True, kw_only=True):
    """The changes on a node, in this order, except that `renew` comes just before the mounts. Empty if none is needed.

    unmount: folders to unmount. renew: folders whose keys expire soon, which are unmounted unless they are in use.
    install: packages to install. disks: EBS volumes to mount below DISKS. exports: the volumes that it serves
    to others, by path. mounts: the mounts to make after all that.
    """

    unmount: tuple[str, ...] = ()
    renew: tuple[str, ...] = ()
    install: tuple[str, ...] = ()
    disks: tuple[MountSource, ...] = ()
    exports: Mapping[str, MountSource] = msgspec.field(default_factory=dict)
    mounts: tuple[Mount, ...] = ()


def plan_volumes(
    sources: Sequence[MountSource],
    hosts: Sequence[Host],
    facts: Mapping[str, VolumeFacts],
    *,
    s3: S3Access | None,
    now: float,
) -> dict[str, MountPlan]:
    """Plans the changes on each node, by its name. hosts: the nodes, the head first. facts: by the node's name.

    now: the time in seconds since the epoch. Raises ClusterError for a bucket without credentials.
    """
    servers = {source.mount: server for source in sources if (server := find_server(source, hosts)) is not None}
    planned = {}
    for host in hosts:
        here = facts[host.name]
        wanted = [
            _plan_served(source, host, servers[source.mount])
            if source.mount in servers
            else _plan_other(source, here, s3)
            for source in sources
        ]
        gone = [path for path in here.noted if path not in {mount.source.mount for mount in wanted}]
        disks = tuple(source for source in sources if source.kind == "head" and servers[source.mount] == host)
        gone += [path for path in here.disks if path not in map(path_of, disks)]
        missing = [mount for mount in wanted if not _is_current(mount, here)]
        old = [mount for mount in wanted if mount not in missing and _ends_soon(here.noted[mount.source.mount], now)]
        mine = [source for source in sources if servers.get(source.mount) == host and len(hosts) > 1]
        planned[host.name] = MountPlan(
            unmount=(*gone, *(mount.source.mount for mount in missing if mount.source.mount in here.noted)),
            renew=tuple(mount.source.mount for mount in old),
            install=_find_packages([*missing, *old], here, serves=bool(mine)),
            disks=disks,
            exports={path_of(source): source for source in mine},
            mounts=tuple(mount for mount in wanted if mount in missing or mount in old),
        )
    return planned


def find_server(source: MountSource, hosts: Sequence[Host]) -> Host | None:
    """The node that serves a volume; None if it is served from elsewhere."""
    if source.kind == "head":
        return next((host for host in hosts if host.instance_id == source.instance_id), hosts[0])
    if source.kind == "nfs":
        return next((host for host in hosts if source.server in (host.name, host.private_ip)), None)
    return None


def path_of(source: MountSource) -> str:
    """The folder of a volume on the node that serves it."""
    return f"{DISKS}/{commands.name_of(source.mount)}" if source.kind == "head" else source.export


def _plan_served(source: MountSource, host: Host, server: Host) -> Mount:
    """How a node mounts a volume that a node serves."""
    named = f"{server.name} ({server.private_ip})"
    if server == host:
        return Mount(source=source, how="bind", server=named, words=commands.bind_words(path_of(source), source))
    words = commands.nfs_words(source, address=server.private_ip, export=path_of(source))
    return Mount(source=source, how="nfs", server=named, words=words)


def _plan_other(source: MountSource, here: VolumeFacts, s3: S3Access | None) -> Mount:
    """How a node mounts a volume that is not served by a node."""
    if source.kind == "s3":
        return _plan_s3(source, here, s3)
    if source.kind == "lustre":
        return Mount(source=source, how="lustre", server=_name(source), words=commands.lustre_words(source))
    words = commands.nfs_words(source, address=source.server, export=source.export)
    return Mount(source=source, how="nfs", server=_name(source), words=words)


def _name(source: MountSource) -> str:
    return f"{source.server} ({source.source})" if source.server not in source.source else source.source


def _plan_s3(source: MountSource, here: VolumeFacts, s3: S3Access | None) -> Mount:
    if s3 is None:
        raise ClusterError(f'[[volumes]] source = "{source.source}": no credentials for S3', hint="aws configure")
    words, env = commands.s3fs_words(source, s3, uid=here.uid, gid=here.gid), commands.s3fs_environment(s3)
    server = f"{source.source} at {s3.endpoint_url}" if s3.endpoint_url else source.source
    return Mount(source=source, how="s3fs", server=server, words=words, env=env, left_s=s3.left_s)


def _is_current(mount: Mount, here: VolumeFacts) -> bool:
    path = mount.source.mount
    noted = here.noted.get(path)
    is_same = noted is not None and noted.signature == mount.signature
    return is_same and path in here.mounted and path not in here.dead


def _ends_soon(noted: Noted, now: float) -> bool:
    """Whether the keys of a mount have less than half of their validity left."""
    return noted.ends_at is not None and now > (noted.made_at + noted.ends_at) / 2


def _find_packages(mounts: Sequence[Mount], here: VolumeFacts, *, serves: bool) -> tuple[str, ...]:
    needed = [PACKAGES[how] for how in (*(mount.how for mount in mounts), *["server"] * serves) if how in PACKAGES]
    return tuple(dict.fromkeys(package for command, package in needed if command not in here.commands))


def note_of(mount: Mount, *, now: float) -> Noted:
    """The entry that mount_volumes.py notes for a mount."""
    ends_at = None if mount.left_s is None else now + mount.left_s
    return Noted(mount.signature, mount.server, made_at=now, ends_at=ends_at)
