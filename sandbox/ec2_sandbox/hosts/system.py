"""The machine's operating system as hosts see it: /usr and /opt of the machine, and copies of other files.

A host cannot read files that an ordinary user of the machine cannot read: they are not copied, and are masked in /usr
and /opt. Hosts cannot reach the individual layers of their file systems.
"""

import os
import shutil
import stat
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

# Files that the machine's users can read, but hosts must not: accounts, keys, disks and network peers.
NOT_IN_ETC = frozenset({
    "passwd-", "group-", "subuid", "subgid", "subuid-", "subgid-", "fstab", "crypttab", "NetworkManager", "netplan",
    "systemd/network", "wpa_supplicant", "wireguard", "openvpn", "ppp", "letsencrypt", "kubernetes", "rancher",
    "docker", "postgresql", "mysql", "exports", "ssh", "sudoers.d", "cron.d",
})  # fmt: skip
EMPTY_IN_VAR = (("cache", 0o755), ("local", 0o755), ("log", 0o755), ("mail", 0o755), ("opt", 0o755), ("spool", 0o755),
                ("tmp", 0o1777))  # fmt: skip
LINKS_IN_VAR = {"lock": "/run/lock", "run": "/run"}
# Hosts have only the folders of /var that belong to packages: copies of the small ones, and the machine's package
# database, each with the large folder in it whose files dpkg and apt read or replace, but never change. Without man-db,
# dpkg does not rebuild the index of all manual pages, which takes five seconds.
COPIED_OF_VAR_LIB = ("pam", "python", "ucf", "sgml-base", "xml-core", "ca-certificates")
SHARED_OF_VAR_LIB = {"dpkg": "info", "apt": "lists"}
# These may contain secrets, because their files are not from packages of the distribution.
MASKED = ("opt", "usr/local")
# Folders with set-uid programs, and with files that sudo accepts only if root owns them.
RUNS_AS_ROOT = ("usr/bin", "usr/sbin", "usr/lib/openssh", "usr/lib/sudo", "usr/libexec/sudo")
MERGED_USR = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
UNKNOWN_ID = 65534  # /proc/sys/kernel/overflowuid
READABLE_FOLDER, READABLE_FILE = 0o005, 0o004


@dataclass(frozen=True, kw_only=True, slots=True)
class Layer:
    """A folder in a host's root. sources: the folders that it consists of, topmost first."""

    name: str
    sources: tuple[str, ...]


def is_machines_root() -> bool:
    """Returns whether this process is the machine's root, and not root in a user's namespace (rootless.py)."""
    return Path("/proc/self/uid_map").read_text().split() == ["0", "0", str(2**32 - 1)]


def copy_system(target: Path, *, as_own: bool = False) -> tuple[Layer, ...]:
    """Copies the parts of /etc and /var that hosts see to `target`, masks secrets, and returns the layers.

    Outer layers come first. as_own: this process is not the machine's root, and must own the files that belong to root
    in a host. Then the copies are in memory, because they have every folder of the machine's system.
    """
    if as_own:
        target.mkdir()
        subprocess.run(("mount", "-t", "tmpfs", "-o", "mode=0755", "tmpfs", str(target)), check=True)
    masks = {name: tuple(_find_unreadable(Path("/", name))) for name in MASKED}
    copy_readable(Path("/etc"), target / "etc", NOT_IN_ETC)
    for name, mode in (*EMPTY_IN_VAR, ("lib", 0o755)):
        _make_folder(target / "var" / name, mode)
    for name, leads_to in LINKS_IN_VAR.items():
        (target / "var" / name).symlink_to(leads_to)
    for name in COPIED_OF_VAR_LIB:
        if Path("/var/lib", name).is_dir():
            copy_readable(Path("/var/lib", name), target / "var/lib" / name)
    layers = [Layer(name=name, sources=(str(target / name),)) for name in ("etc", "var")]
    for name in ("usr", "opt"):
        hidden = [path for below in MASKED if below.startswith(name) for path in masks[below]]
        mask, whole = target / "masks" / name, f"/{name}"
        _make_folder(mask, 0o755)
        if Path(whole) in hidden:
            sources: tuple[str, ...] = (str(mask),)
        elif as_own:  # this process cannot read files that others cannot read
            own_folders(Path(whole), mask)
            own_programs(Path(whole), mask)
            sources = (str(mask), whole)
        else:
            write_mask(target / "masks", hidden)
            sources = (str(mask), whole) if hidden else (whole,)
        layers.append(Layer(name=name, sources=sources))
    return (*layers, *_share_databases(target / "masks", as_own=as_own))


def _share_databases(masks: Path, *, as_own: bool) -> Iterator[Layer]:
    for name, replaced in SHARED_OF_VAR_LIB.items():
        source, mask = Path("/var/lib", name), masks / "var/lib" / name
        if as_own and source.is_dir():
            copy_readable(source, mask, (replaced,))
            own_folders(source, mask)
            write_mask(masks, _find_unreadable(source))  # such as locks
        if source.is_dir():
            yield Layer(name=f"var/lib/{name}", sources=(str(mask), str(source)) if as_own else (str(source),))


def own_folders(source: Path, target: Path) -> None:
    """Creates a layer in `target` in which the folders of `source` belong to this process.

    Root in a host cannot write to a folder of an unknown user. A folder that only some users can read is left out with
    all in it. A machine has tens of thousands of folders.
    """
    for line in _find(source, "-type", "d", "(", "-perm", "-0005", "-printf", r"%m %P\0", "-o", "-prune", ")"):
        mode, _, path = line.partition(" ")
        folder = f"{target}/{path}"
        with suppress(FileExistsError):
            os.mkdir(folder)  # noqa: PTH102 -- for speed
        if mode != "755":
            os.chmod(folder, int(mode, 8))  # noqa: PTH101 -- as above


def own_programs(source: Path, target: Path) -> None:
    """Copies the set-uid programs and sudo's files in `source`. Another user's could not make a host's user root."""
    for folder in (Path("/", name) for name in RUNS_AS_ROOT if Path("/", name).is_relative_to(source)):
        privileged = () if folder.name == "sudo" else ("-perm", "/6000")
        for name in _find(folder, "-type", "f", "-perm", "-0004", *privileged, "-print0"):
            shutil.copy(name, target / Path(name).relative_to(source))


def _find(folder: Path, *tests: str) -> list[str]:
    """Returns what find(1) prints, whose exit code is that of folders which it could not enter."""
    found = subprocess.run(("find", str(folder), "-xdev", *tests), check=False, capture_output=True)
    return [os.fsdecode(name) for name in found.stdout.split(b"\0")[:-1]]


def find_links() -> tuple[tuple[str, str], ...]:
    """Returns the links in / to folders in /usr, such as /bin, and their targets."""
    return tuple((name, str(Path("/", name).readlink())) for name in MERGED_USR if Path("/", name).is_symlink())


def copy_readable(source: Path, target: Path, left_out: Iterable[str] = ()) -> None:
    """Copies the files in a folder that all users can read. left_out: paths below it that are not copied."""
    shown = source.stat()
    _make_folder(target, stat.S_IMODE(shown.st_mode))
    _give(target, shown)
    for entry in os.scandir(source):
        into = target / entry.name
        below = [path.partition("/")[2] for path in left_out if path.startswith(f"{entry.name}/")]
        with suppress(FileNotFoundError):  # deleted in the meantime
            status = entry.stat(follow_symlinks=False)
            if entry.name in left_out or not is_readable(status.st_mode):
                continue
            if entry.is_dir(follow_symlinks=False):
                copy_readable(Path(entry.path), into, below)
            elif entry.is_symlink() or entry.is_file():
                shutil.copy2(entry.path, into, follow_symlinks=False)
                _give(into, status)


def is_readable(mode: int) -> bool:
    """Returns whether all users can read a file, or read and enter a folder, with this mode. Pure."""
    if stat.S_ISLNK(mode):
        return True
    needed = READABLE_FOLDER if stat.S_ISDIR(mode) else READABLE_FILE
    return mode & needed == needed


def write_mask(target: Path, hidden: Iterable[Path]) -> None:
    """Writes a layer below `target` that hides absolute paths from the layers below it.

    A device 0:0 hides the file with its name (kernel.org/doc/html/latest/filesystems/overlayfs.html). The layer's
    folders have the same owners and modes as the machine's folders that they cover.
    """
    for path in hidden:
        with suppress(FileNotFoundError):  # deleted in the meantime
            for folder in reversed(path.parents):
                shown, masked = folder.stat(), target / folder.relative_to("/")
                _make_folder(masked, stat.S_IMODE(shown.st_mode))
                _give(masked, shown)
            os.mknod(target / path.relative_to("/"), stat.S_IFCHR, 0)


def _find_unreadable(folder: Path) -> Iterator[Path]:
    """Yields the topmost files and folders in a folder of the machine that not all users can read."""
    if not folder.is_dir():
        return
    hidden = ("(", "-type", "d", "!", "-perm", "-0005", "-o",
              "!", "-type", "d", "!", "-type", "l", "!", "-perm", "-0004", ")")  # fmt: skip
    yield from map(Path, _find(folder, *hidden, "-print0", "-prune"))


def _give(path: Path, like: os.stat_result) -> None:
    """Gives a file the owner of another file, or root if that owner is unknown in this namespace."""
    uid, gid = (0 if owner == UNKNOWN_ID else owner for owner in (like.st_uid, like.st_gid))
    os.chown(path, uid, gid, follow_symlinks=False)


def _make_folder(path: Path, mode: int) -> None:
    path.mkdir(parents=True, exist_ok=True)
    path.chmod(mode)
