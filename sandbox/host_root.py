"""A sandbox host's file system: the machine's operating system seen through overlays, and everything else its own.

Part of process 1 of a host (pid1.py): standard library only, Python >= 3.10.
"""

import ctypes
import os
import shutil
import stat
import subprocess
import time
from pathlib import Path
from typing import Any

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT, MS_BIND = 1, 2, 4, 8, 32, 4096
MNT_DETACH = 2
ENVIRONMENT = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"}

NOTHING: dict[str, Any] = {"emptied": (), "hidden": (), "all_but": ()}
OS_DIRECTORIES = ("etc", "usr", "opt", "var")
MERGED_USR = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
OWN_DIRECTORIES = (("home", 0o755), ("root", 0o700), ("srv", 0o755), ("mnt", 0o755), ("media", 0o755), ("boot", 0o755),
                   ("run", 0o755), ("dev", 0o755), ("proc", 0o555), ("sys", 0o555), ("tmp", 0o1777))  # fmt: skip
DEVICES = (("null", 1, 3), ("zero", 1, 5), ("full", 1, 7), ("random", 1, 8), ("urandom", 1, 9), ("tty", 5, 0))
DEVICE_LINKS = (
    ("ptmx", "pts/ptmx"), ("fd", "/proc/self/fd"), ("stdin", "/proc/self/fd/0"),
    ("stdout", "/proc/self/fd/1"), ("stderr", "/proc/self/fd/2"),
)  # fmt: skip
# Through these, root in a host would reach the whole machine.
PROC_READ_ONLY = ("sysrq-trigger", "sys/kernel", "sys/vm", "irq", "bus")
# The machine's disks: what looks for instance store volumes, to format them, must not find these.
SYS_HIDDEN = ("block", "class/block", "dev/block")

libc = ctypes.CDLL(None, use_errno=True)


def say(text: str) -> None:
    """A line on the console, with the time since the machine's boot as the kernel's own lines have it."""
    os.write(1, f"[{time.monotonic():12.6f}] {text}\n".encode())


def mount(source: str, target: Path, kind: str, flags: int = 0, options: str = "") -> None:
    """The system call; OSError names the target."""
    if libc.mount(source.encode(), str(target).encode(), kind.encode(), flags, options.encode()) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"mount {kind}: {os.strerror(code)}", str(target))


def attach_disk(disk: str, root: Path, size_bytes: int) -> None:
    """The root volume: a loop device over a sparse ext4 image, or memory where there is no loop device (containers)."""
    attached = subprocess.run(
        ("mount", "-t", "ext4", "-o", "loop,noinit_itable,noatime", disk, str(root)),
        capture_output=True, text=True, check=False, env=ENVIRONMENT,
    )  # fmt: skip
    if attached.returncode == 0:
        say(f"EXT4-fs: mounted root volume, {size_bytes >> 30} GiB")
        return
    say(f"no loop device here ({attached.stderr.strip()}): the root volume is kept in memory")
    mount("tmpfs", root, "tmpfs", MS_NODEV, f"mode=0755,size={size_bytes}")


def whiteout(path: Path) -> None:
    """Hides the lower layer's entry of that name (kernel.org/doc/html/latest/filesystems/overlayfs.html)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    os.mknod(path, stat.S_IFCHR, 0)


def opaque(path: Path, mode: int = 0o755) -> None:
    """A directory of the upper layer that shows nothing of the lower one's."""
    path.mkdir(parents=True)
    path.chmod(mode)
    os.setxattr(path, "trusted.overlay.opaque", b"y")


def prepare_upper(name: str, upper: Path, hiding: dict[str, Any]) -> None:
    """Fills a fresh upper layer with what hides the machine's own affairs from the host."""
    upper.mkdir(parents=True, mode=0o755)
    lower = Path("/", name)
    for entry, mode in hiding["emptied"]:
        if (lower / entry).is_dir():
            opaque(upper / entry, mode)
    for entry in hiding["hidden"]:
        if os.path.lexists(lower / entry):
            whiteout(upper / entry)
    for folder, kept in hiding["all_but"]:
        for path in (lower / folder).iterdir():
            if path.name not in kept and not path.is_symlink() and not (upper / folder / path.name).exists():
                whiteout(upper / folder / path.name)


def mount_os(root: Path, hiding: dict[str, Any], *, first_boot: bool) -> None:
    """The operating system: overlays over the machine's, whose upper layers are on the host's disk."""
    layers = root / ".overlay"
    layers.mkdir(mode=0o700, exist_ok=True)
    for name in (*OS_DIRECTORIES, *MERGED_USR):
        lower, target = Path("/", name), root / name
        if lower.is_symlink():
            if first_boot:
                target.symlink_to(lower.readlink())
            continue
        if not lower.is_dir():
            continue
        upper, work = layers / name / "upper", layers / name / "work"
        if first_boot:
            prepare_upper(name, upper, hiding.get(name, NOTHING))
            work.mkdir()
            target.mkdir()
        mount("overlay", target, "overlay", 0, f"lowerdir={lower},upperdir={upper},workdir={work}")


def mount_kernel_filesystems(root: Path) -> None:
    """/proc, /sys, /dev and /run of the host's own namespaces."""
    mount("proc", root / "proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    for name in PROC_READ_ONLY:
        path = root / "proc" / name
        if path.exists():
            mount(str(path), path, "", MS_BIND)
            mount("", path, "", MS_BIND | MS_REMOUNT | MS_RDONLY | MS_NOSUID | MS_NODEV | MS_NOEXEC)
    mount("sysfs", root / "sys", "sysfs", MS_NOSUID | MS_NODEV | MS_NOEXEC | MS_RDONLY)
    for name in SYS_HIDDEN:
        if (root / "sys" / name).exists():
            mount("tmpfs", root / "sys" / name, "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC | MS_RDONLY, "mode=0555")
    mount("tmpfs", root / "run", "tmpfs", MS_NOSUID | MS_NODEV, "mode=0755")
    (root / "run/sshd").mkdir(mode=0o755)
    (root / "run/lock").mkdir(mode=0o1777)
    (root / "run/utmp").touch(0o664)  # sshd notes who is logged in where it exists: `logname` and `who` ask it
    dev = root / "dev"
    mount("tmpfs", dev, "tmpfs", MS_NOSUID, "mode=0755,size=64k")
    for name, major, minor in DEVICES:
        os.mknod(dev / name, stat.S_IFCHR, os.makedev(major, minor))
        (dev / name).chmod(0o666)
    for name, target in DEVICE_LINKS:
        (dev / name).symlink_to(target)
    (dev / "pts").mkdir()
    mount("devpts", dev / "pts", "devpts", MS_NOSUID | MS_NOEXEC, "newinstance,gid=5,mode=0620,ptmxmode=0666")
    (dev / "shm").mkdir()
    mount("tmpfs", dev / "shm", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777")


def write_files(root: Path, files: list[dict[str, Any]]) -> None:
    """The host's own settings, accounts and keys; `append` adds to what the machine's file holds."""
    for file in files:
        path = root / file["path"].lstrip("/")
        for parent in reversed(path.parents):
            if parent.is_relative_to(root) and not parent.exists():
                parent.mkdir(mode=file["directory_mode"])
                os.chown(parent, file["uid"], file["uid"])
        if file["append"]:
            with path.open("a") as stream:
                stream.write(file["content"])
            continue
        path.unlink(missing_ok=True)
        if file["link"]:
            path.symlink_to(file["content"])
            continue
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, file["mode"]), "w") as stream:
            os.fchmod(stream.fileno(), file["mode"])
            os.fchown(stream.fileno(), file["uid"], file["uid"])
            stream.write(file["content"])


def enter(root: Path) -> None:
    """Makes `root` the root of this namespace and lets go of the machine's."""
    os.chdir(root)
    subprocess.run(("pivot_root", ".", "."), check=True, env=ENVIRONMENT)
    if libc.umount2(b".", MNT_DETACH) != 0:
        raise OSError(ctypes.get_errno(), "umount2 of the old root")
    os.chdir("/")


def build_root(spec: dict[str, Any]) -> bool:
    """Mounts the host's root and enters it. True when this is the first boot, when the disk was empty.

    spec: `HostSpec.render` of host_files.py.
    """
    root = Path(spec["root"])
    os.umask(0o022)
    attach_disk(spec["disk"], root, spec["disk_bytes"])
    root.chmod(0o755)
    first_boot = not (root / ".overlay").exists()
    if first_boot:
        shutil.rmtree(root / "lost+found", ignore_errors=True)
        for name, mode in OWN_DIRECTORIES:
            (root / name).mkdir()
            (root / name).chmod(mode)
    mount_os(root, spec["hiding"], first_boot=first_boot)
    mount_kernel_filesystems(root)
    if first_boot:
        write_files(root, spec["files"])
    enter(root)
    return first_boot
