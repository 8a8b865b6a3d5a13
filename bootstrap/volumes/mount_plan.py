"""Plans how nodes mount and serve the volumes of cluster.toml, from the facts about each node. Pure.

A dead server must cause an I/O error within 15 s. A file that one node has written and closed must be readable on all
others.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from bootstrap.ssh.host import Host
from node.setup.volumes.volume_probe import DISKS
from provision.aws.s3_access import S3Access
from provision.model import domain_of
from provision.volumes.source import MountSource

PACKAGES = {"nfs": ("mount.nfs4", "nfs-common"), "server": ("exportfs", "nfs-kernel-server"), "s3fs": ("s3fs", "s3fs")}
"""A command, and the package of Debian and Ubuntu that has it, by what they are for."""
# The first wait, in tenths of a second, and the retries. Each wait is longer by the first: 2 + 4 + 6 s (nfs(5)).
NFS_TIMEO, NFS_RETRANS = 20, 2


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

    uid, gid: the user whose jobs use the volumes. dead: by folder, why a noted mount does not work. disks: the folders
    below DISKS at which EBS volumes are mounted.
    """

    commands: tuple[str, ...]
    uid: Id
    gid: Id
    noted: dict[str, Noted]
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
    s3: S3Access,
    now: float,
) -> dict[str, MountPlan]:
    """Plans the changes on each node, by its name. hosts: the nodes, the head first. facts: by the node's name.

    s3: for s3:// volumes. now: the time in seconds since the epoch.
    """
    servers = {source.mount: server for source in sources if (server := find_server(source, hosts)) is not None}
    planned = {}
    for host in hosts:
        here = facts[host.name]
        wanted = [_plan_mount(source, host, servers.get(source.mount), here, s3) for source in sources]
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
    """The folder of a volume on the node that serves it. Mounts below DISKS have no slash: "/data/a" is "data-a"."""
    if source.kind != "head":
        return source.export
    return f"{DISKS}/{source.mount.strip('/').replace('-', '--').replace('/', '-')}"


def _plan_mount(source: MountSource, host: Host, server: Host | None, here: VolumeFacts, s3: S3Access) -> Mount:
    """How a node mounts a volume. server: the node that serves it, or None."""
    if source.kind == "s3":
        return plan_s3fs(source, s3, uid=here.uid, gid=here.gid)
    rights = "ro" if source.read_only else "rw"
    if server is None:
        named = f"{source.server} ({source.source})" if source.server not in source.source else source.source
        address, export = source.server, source.export
    else:
        named, address, export = f"{server.name} ({server.private_ip})", server.private_ip, path_of(source)
    if server == host:
        how, options, path = "bind", "bind" + ",ro" * source.read_only, export
    elif source.kind == "lustre":
        how, options = "lustre", f"noatime,flock,nosuid,nodev,{rights}"
        path = f"{address}@tcp:/{export.strip('/')}"  # the file system's mount name
    else:
        # With retry=0, `mount` itself gives up after its first attempt.
        how, options = "nfs", f"soft,timeo={NFS_TIMEO},retrans={NFS_RETRANS},retry=0,proto=tcp,nosuid,nodev"
        if source.kind == "efs":  # docs.aws.amazon.com/efs, "mounting-fs-nfs-mount-settings"
            options += ",nfsvers=4.1,rsize=1048576,wsize=1048576,noresvport"
        options, path = f"{options},{rights}", f"{address}:{export}"
    kind = () if how == "bind" else ("-t", how)
    return Mount(source=source, how=how, server=named, words=("mount", *kind, "-o", options, path, source.mount))


def plan_s3fs(source: MountSource, access: S3Access, *, uid: int, gid: int) -> Mount:
    """How a node mounts a bucket, or a folder in it, by the distribution's s3fs, with its keys in its environment.

    uid, gid: the user of the node whose jobs use the volume.
    """
    where = f"{source.bucket}:/{source.prefix.rstrip('/')}" if source.prefix else source.bucket
    region, endpoint = source.region, access.env.get("AWS_ENDPOINT_URL")
    url = endpoint or f"https://s3.{region}.{domain_of(region)}"
    # No certificate of AWS is for BUCKET.s3.REGION.amazonaws.com if the bucket's name has dots.
    has_own_name = endpoint is None and "." not in source.bucket
    options = [
        f"url={url}", f"endpoint={region}",
        *([] if has_own_name else ["use_path_request_style"]),
        "iam_role=auto" if access.of_nodes else "use_session_token",
        "allow_other,nosuid,nodev",
        f"uid={uid},gid={gid},umask=0022,mp_umask=0022",
        # Neither s3fs nor the kernel knows of another node's changes, so neither may cache anything.
        "stat_cache_expire=0,attr_timeout=0,entry_timeout=0,negative_timeout=0",
        "connect_timeout=4,readwrite_timeout=5,retries=1",
        "ro" if source.read_only else "rw",
    ]  # fmt: skip
    return Mount(
        source=source,
        how="s3fs",
        server=f"{source.source} at {endpoint}" if endpoint else source.source,
        words=("s3fs", where, source.mount, "-o", ",".join(options)),
        env={name.replace("_", ""): value for name, value in access.secrets.items()},  # s3fs's names
        left_s=access.left_s,
    )


def render_exports(folders: Mapping[str, MountSource], addresses: Sequence[str]) -> str:
    """The lines of exports(5) that export folders to these addresses only."""
    lines = []
    for path, source in sorted(folders.items()):
        options = f"({'ro' if source.read_only else 'rw'},sync,no_subtree_check)"
        lines.append(" ".join([path, *(f"{address}{options}" for address in sorted(addresses))]))
    return "".join(f"{line}\n" for line in lines)


def _is_current(mount: Mount, here: VolumeFacts) -> bool:
    path = mount.source.mount
    noted = here.noted.get(path)
    return noted is not None and noted.signature == mount.signature and path not in here.dead


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
