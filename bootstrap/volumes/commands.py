"""The command lines and configuration files with which nodes mount and serve volumes. Pure.

A dead server must cause an I/O error within 15 s. A file that one node has written and closed must be readable on all
others.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from provision.model import domain_of
from provision.volumes.source import MountSource

# The first wait, in tenths of a second, and the retries. Each wait is longer by the first: 2 + 4 + 6 s (nfs(5)).
NFS_TIMEO, NFS_RETRANS = 20, 2


@dataclass(frozen=True, kw_only=True, slots=True)
class S3Access:
    """How nodes reach S3. endpoint_url: None for AWS's own. keys: AWS_ variables; None for the nodes' instance profile.

    left_s: how long the keys are still valid, in seconds; None if they do not expire, or if that is unknown.
    """

    region: str
    endpoint_url: str | None = None
    keys: Mapping[str, str] | None = field(default=None, repr=False)
    left_s: float | None = None


def name_of(mount: str) -> str:
    """A name for a mount that is unique among mounts and has no slash: "/data/a" becomes "data-a"."""
    return mount.strip("/").replace("-", "--").replace("/", "-")


def nfs_words(source: MountSource, *, address: str, export: str) -> tuple[str, ...]:
    """The `mount` command for an NFS or EFS export.

    For EFS's options, see docs.aws.amazon.com/efs, "mounting-fs-nfs-mount-settings". With retry=0, `mount` itself gives
    up after its first attempt.
    """
    options = [f"soft,timeo={NFS_TIMEO},retrans={NFS_RETRANS},retry=0,proto=tcp,nosuid,nodev"]
    if source.kind == "efs":
        options.append("nfsvers=4.1,rsize=1048576,wsize=1048576,noresvport")
    options += ["ro" if source.read_only else "rw"]
    return ("mount", "-t", "nfs", "-o", ",".join(options), f"{address}:{export}", source.mount)


def lustre_words(source: MountSource) -> tuple[str, ...]:
    """The `mount` command for an FSx for Lustre file system; `export` is its mount name."""
    options = ["noatime,flock,nosuid,nodev", "ro" if source.read_only else "rw"]
    export = source.export.strip("/")
    return ("mount", "-t", "lustre", "-o", ",".join(options), f"{source.server}@tcp:/{export}", source.mount)


def bind_words(path: str, source: MountSource) -> tuple[str, ...]:
    """The `mount` command on the node that serves the volume itself."""
    return ("mount", "-o", "bind,ro" if source.read_only else "bind", path, source.mount)


def s3fs_words(source: MountSource, access: S3Access, *, uid: int, gid: int) -> tuple[str, ...]:
    """The `s3fs` command of the distribution for a bucket or a folder in it. Its keys are in `s3fs_environment`.

    uid, gid: the user of the node whose jobs use the volume.
    """
    where = f"{source.bucket}:/{source.prefix.rstrip('/')}" if source.prefix else source.bucket
    region = source.region or access.region
    url = access.endpoint_url or f"https://s3.{region}.{domain_of(region)}"
    # No certificate of AWS is for BUCKET.s3.REGION.amazonaws.com if the bucket's name has dots.
    has_own_name = access.endpoint_url is None and "." not in source.bucket
    options = [
        f"url={url}", f"endpoint={region}",
        *([] if has_own_name else ["use_path_request_style"]),
        "iam_role=auto" if access.keys is None else "use_session_token",
        "allow_other,nosuid,nodev",
        f"uid={uid},gid={gid},umask=0022,mp_umask=0022",
        # Neither s3fs nor the kernel knows of another node's changes, so neither may cache anything.
        "stat_cache_expire=0,attr_timeout=0,entry_timeout=0,negative_timeout=0",
        "connect_timeout=4,readwrite_timeout=5,retries=1",
        "ro" if source.read_only else "rw",
    ]  # fmt: skip
    return ("s3fs", where, source.mount, "-o", ",".join(options))


def s3fs_environment(access: S3Access) -> dict[str, str]:
    """The environment variables with the keys, under the names that s3fs uses."""
    keys = access.keys or {}
    return {name.replace("_", ""): value for name, value in keys.items()}


# -- the node that serves a volume -------------------------------------------------------------------------------------


def render_nfs_exports(folders: Mapping[str, MountSource], addresses: Sequence[str]) -> str:
    """The lines of exports(5) that export folders to these addresses only."""
    lines = []
    for path, source in sorted(folders.items()):
        options = f"({'ro' if source.read_only else 'rw'},sync,no_subtree_check)"
        lines.append(" ".join([path, *(f"{address}{options}" for address in sorted(addresses))]))
    return "".join(f"{line}\n" for line in lines)
