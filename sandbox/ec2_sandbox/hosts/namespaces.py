"""A host's namespaces and file system: the kernel's functions that process 1 (pid1.py) needs.

Imports only the standard library; Python 3.10 or later, like pid1.py.
"""

import ctypes
import errno
import os
import shutil
import signal
import stat
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

# linux/mount.h, linux/sched.h, linux/prctl.h
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_BIND = 1, 2, 4, 8, 4096
MS_MOVE, MS_REC, MS_PRIVATE, MS_SHARED = 1 << 13, 1 << 14, 1 << 18, 1 << 20
MNT_DETACH = 2
CLONE_NEWNS, CLONE_NEWCGROUP, CLONE_NEWUTS, CLONE_NEWIPC = 0x20000, 0x2000000, 0x4000000, 0x8000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
PR_SET_PDEATHSIG, PR_SET_DUMPABLE = 1, 4
# The numbers are the same on every architecture. The C library of Debian 12 has no functions for these calls.
SYS_OPEN_TREE, SYS_MOVE_MOUNT, SYS_MOUNT_SETATTR = 428, 429, 442
AT_FDCWD, AT_EMPTY_PATH, OPEN_TREE_CLONE, MOVE_MOUNT_F_EMPTY_PATH = -100, 0x1000, 1, 4
MOUNT_ATTR_RDONLY, MOUNT_ATTR_IDMAP = 1, 0x100000
ENVIRONMENT = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"}

# In the host's folder on the machine: the mount points of its disk, of the layers of the operating system, and of the
# host's root.
VOLUME, STAGE, ROOT = Path("volume"), Path("stage"), Path("root")
OWN_DIRECTORIES = (("home", 0o755), ("root", 0o700), ("srv", 0o755), ("mnt", 0o755), ("media", 0o755), ("boot", 0o755),
                   ("run", 0o755), ("dev", 0o755), ("proc", 0o555), ("sys", 0o555), ("tmp", 0o1777))  # fmt: skip
DEVICES = ("null", "zero", "full", "random", "urandom", "tty", "fuse")
DEVICE_LINKS = (
    ("ptmx", "pts/ptmx"), ("fd", "/proc/self/fd"), ("stdin", "/proc/self/fd/0"),
    ("stdout", "/proc/self/fd/1"), ("stderr", "/proc/self/fd/2"),
)  # fmt: skip
# The machine's disks, which a program that formats instance store volumes must not find.
SYS_HIDDEN = ("block", "class/block", "dev/block")
# The kernel allows a new mount of proc or sysfs, which containers and `ip netns exec` need, only if a mount exists that
# hides nothing. LXC uses such a folder, too.
UNHIDDEN = "dev/.sandbox"
DMI_OF_ROOT = ("product_uuid", "product_serial")
PACKAGES = "run/host/packages"
TRIAL_UID = 1 << 29
TRIAL_RULES = "table inet one { chain two { type filter hook forward priority 0; ct state established accept; }; }"

libc = ctypes.CDLL(None, use_errno=True)


def log_to_console(text: str) -> None:
    """Writes a line to the console with the time since the machine's boot, as the kernel does."""
    os.write(1, f"[{time.monotonic():12.6f}] {text}\n".encode())


def check(result: int, what: str) -> int:
    """Returns a system call's result. Raises OSError, with `what` in its message, if the call failed."""
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
    return result


def mount(source: str, target: Path, kind: str, flags: int = 0, options: str = "") -> None:
    """Makes the system call. Raises OSError that names the target."""
    result = libc.mount(source.encode(), str(target).encode(), kind.encode(), flags, options.encode())
    check(result, f"mount {kind or 'bind'} {target}")


def unshare(flags: int) -> None:
    """Makes the system call for this process. Raises OSError."""
    check(libc.unshare(flags), "unshare")


def end_with_parent() -> None:
    """Makes the kernel kill this process when its current parent ends."""
    check(libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "prctl")


# --- on the machine, as its root


def open_user_namespace(uid_map: str, gid_map: str) -> int:
    """Returns a descriptor of a new user namespace with these maps (user_namespaces(7)). Raises OSError."""
    ready_read, ready_write = os.pipe()
    holder = os.fork()
    if holder == 0:
        unshare(CLONE_NEWUSER)
        os.write(ready_write, b"+")
        signal.pause()
    os.close(ready_write)
    try:
        if not os.read(ready_read, 1):
            raise OSError(errno.EPERM, "no user namespace can be made")
        Path(f"/proc/{holder}/uid_map").write_text(uid_map)
        Path(f"/proc/{holder}/gid_map").write_text(gid_map)
        return os.open(f"/proc/{holder}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(ready_read)
        os.kill(holder, signal.SIGKILL)
        os.waitpid(holder, 0)


def open_shift(spec: dict[str, Any]) -> int | None:
    """Returns the user namespace that shows files with the host's owners, or None if the host has the daemon's ids.

    The machine's own root can also write there. Its files then belong to nobody.
    """
    first, count = spec["first_uid"], spec["uids"]
    if first is None:
        return None
    ids = f"0 {first} {count}\n{count} 0 1\n"
    return open_user_namespace(ids, ids)


def open_users(spec: dict[str, Any]) -> int:
    """Returns a descriptor of the host's user namespace."""
    first, count = spec["first_uid"], spec["uids"]
    if first is None:
        return open_user_namespace(read_same_ids("uid_map"), read_same_ids("gid_map"))
    return open_user_namespace(f"0 {first} {count}\n", f"0 {first} {count}\n")


def read_same_ids(name: str) -> str:
    """Returns a map that keeps all ids of this namespace."""
    lines = [line.split() for line in Path("/proc/self", name).read_text().splitlines()]
    return "".join(f"{inside} {inside} {count}\n" for inside, _, count in lines)


def start_building(spec: dict[str, Any]) -> tuple[int, int]:
    """Starts a process that makes the mounts outside the host while this process creates the host's namespaces.

    Returns its pid and a pipe to wait on. Both processes share this mount namespace, which process 1 copies.
    """
    unshare(CLONE_NEWNS)
    mount("none", Path("/"), "", MS_REC | MS_PRIVATE)
    # From here on, paths are relative, because the host's root cannot pass through the parent folders.
    os.chdir(spec["folder"])
    built_read, built_write = os.pipe()
    builder = os.fork()
    if builder == 0:
        build_outside(spec)
        os.write(built_write, b"+")
        os._exit(0)  # the rest is for the parent
    os.close(built_write)
    return builder, built_read


def await_built(built: int) -> None:
    """Waits for all mounts outside the host, and copies them into the host's mount namespace."""
    if not os.read(built, 1):
        sys.exit("could not mount the host's file systems")
    os.close(built)
    unshare(CLONE_NEWNS | CLONE_NEWCGROUP)


def enter_namespaces(users: int, cgroup: str, outer_cgroup: str) -> int:
    """Forks process 1 in new namespaces, whose root has no rights outside. Returns its pid or 0, as fork(2) does.

    cgroup: the host's control group, or "". outer_cgroup: the control group that this process returns to.
    """
    if cgroup:
        Path(cgroup, "cgroup.procs").write_text("0")
    check(libc.setns(users, CLONE_NEWUSER), "setns")
    os.close(users)
    unshare(CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWUTS | CLONE_NEWIPC)
    first = os.fork()
    if first:
        if cgroup:
            Path(outer_cgroup, "cgroup.procs").write_text("0")
    else:
        os.setgroups([])
        os.setresgid(0, 0, 0)
        os.setresuid(0, 0, 0)
        # The change of ids has cleared this flag, and PR_SET_PDEATHSIG.
        check(libc.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0), "prctl")
    return first


def build_outside(spec: dict[str, Any]) -> None:
    """Mounts the host's disk and the machine's system for process 1.

    Files on the disk and in the machine's folders belong to the machine's root. In these mounts, they belong to the
    host's root, who is an ordinary user of the machine.
    """
    shift = open_shift(spec)
    attach_disk(spec["disk"], spec["disk_bytes"])
    VOLUME.chmod(0o755)
    show(VOLUME, ROOT, shift)
    mount("tmpfs", STAGE, "tmpfs", 0, "mode=0755")
    for number, layer in enumerate(spec["layers"]):
        for depth, source in enumerate(layer["sources"]):
            target = STAGE / f"{number}.{depth}"
            target.mkdir()
            show(Path(source), target, shift, MOUNT_ATTR_RDONLY)
    (STAGE / "packages").mkdir()
    show(Path(spec["packages"]), STAGE / "packages", shift, MOUNT_ATTR_RDONLY)
    if spec["fuse"]:
        # Hosts can mount FUSE file systems, as on EC2. The machine's own device may allow only its root.
        os.mknod(STAGE / "fuse", stat.S_IFCHR, os.makedev(10, 229))
        (STAGE / "fuse").chmod(0o666)
        mount(str(STAGE / "fuse"), Path("/dev/fuse"), "", MS_BIND)


def attach_disk(image: str, size_bytes: int) -> None:
    """Mounts the root volume, a loop device with a sparse ext4 image. Without loop devices, it stays a folder."""
    attached = subprocess.run(
        ("mount", "-t", "ext4", "-o", "loop,noinit_itable,noatime", image, VOLUME),
        capture_output=True, text=True, check=False, env=ENVIRONMENT,
    )  # fmt: skip
    if attached.returncode == 0:
        log_to_console(f"EXT4-fs: mounted root volume, {size_bytes >> 30} GiB")
    else:
        log_to_console(f"no loop device ({attached.stderr.strip()}): the root volume is a folder without a size limit")


def show(source: Path, target: Path, shift: int | None, attributes: int = 0) -> None:
    """Mounts a directory at `target`, with the host's owners if `shift` is not None (mount_setattr(2))."""
    tree = open_tree(source)
    if shift is not None:
        attributes |= MOUNT_ATTR_IDMAP
    mount_attr = struct.pack("=QQQQ", attributes, 0, 0, shift or 0)
    changed = libc.syscall(SYS_MOUNT_SETATTR, tree, b"", AT_EMPTY_PATH, mount_attr, len(mount_attr))
    check(changed, f"mount_setattr {source}")
    move_mount(tree, target)
    os.close(tree)


def open_tree(source: Path) -> int:
    """Returns a descriptor of a new mount of a file or directory, which is not yet visible. Raises OSError."""
    flags = OPEN_TREE_CLONE | os.O_CLOEXEC
    return check(libc.syscall(SYS_OPEN_TREE, AT_FDCWD, os.fsencode(source), flags), f"open_tree {source}")


def move_mount(tree: int, target: Path) -> None:
    """Makes a mount of `open_tree` visible at `target`, also in another mount namespace. Raises OSError."""
    moved = libc.syscall(SYS_MOVE_MOUNT, tree, b"", AT_FDCWD, os.fsencode(target), MOVE_MOUNT_F_EMPTY_PATH)
    check(moved, f"move_mount {target}")


def try_kernel() -> None:
    """Tries the kernel's functions that hosts need. The kernel removes everything when this process ends."""
    unshare(CLONE_NEWNS)
    mount("none", Path("/"), "", MS_REC | MS_PRIVATE)
    mount("tmpfs", Path("/mnt"), "tmpfs")
    lower, upper, root = Path("/mnt/lower"), Path("/mnt/upper"), Path("/mnt/root")
    for path in (lower, upper, root):
        path.mkdir()
    is_machines_root = Path("/proc/self/uid_map").read_text().split() == ["0", "0", "4294967295"]
    spec = {"first_uid": TRIAL_UID if is_machines_root else None, "uids": 1 << 16}
    show(Path("/usr"), lower, open_shift(spec), MOUNT_ATTR_RDONLY)
    first = enter_namespaces(open_users(spec), "", "")
    if first:
        sys.exit(os.waitstatus_to_exitcode(os.waitpid(first, 0)[1]))
    unshare(CLONE_NEWNS)
    mount("tmpfs", upper, "tmpfs")
    for path in (upper / "upper", upper / "work"):
        path.mkdir()
    mount("overlay", root, "overlay", 0, f"lowerdir={lower},upperdir={upper}/upper,workdir={upper}/work,userxattr")
    mount("proc", Path("/proc"), "proc")
    subprocess.run(("ip", "link", "add", "one", "type", "veth", "peer", "name", "two"), check=True, env=ENVIRONMENT)
    subprocess.run(("nft", TRIAL_RULES), check=True, env=ENVIRONMENT)


# --- in the host, as its root


def build_root(spec: dict[str, Any]) -> bool:
    """Mounts the rest of the host's root and enters it. Returns True at the first boot of this instance.

    Its disk is empty, or was made from an image of another instance: then it has no id, or another one.
    """
    os.umask(0o022)
    # Only a mount that was made in this namespace can become the root.
    mount(str(ROOT), ROOT, "", MS_BIND | MS_REC)
    first_boot = not (ROOT / ".overlay").exists()
    if first_boot:
        shutil.rmtree(ROOT / "lost+found", ignore_errors=True)
        for name, mode in OWN_DIRECTORIES:
            (ROOT / name).mkdir()
            (ROOT / name).chmod(mode)
    mount_os(spec, first_boot=first_boot)
    mount_kernel_filesystems(ROOT, spec)
    instance_id = ROOT / ".overlay/instance-id"
    is_new = not instance_id.exists() or instance_id.read_text() != spec["instance_id"]
    if is_new:
        write_files(ROOT, spec["files"])
        instance_id.write_text(spec["instance_id"])
    else:
        renew_files(ROOT, [file for file in spec["files"] if file["each_boot"]])
    enter(ROOT)
    return is_new


def mount_os(spec: dict[str, Any], *, first_boot: bool) -> None:
    """Mounts the operating system: overlays of the machine's folders, with upper layers on the host's disk."""
    uppers = ROOT / ".overlay"
    uppers.mkdir(mode=0o700, exist_ok=True)
    if first_boot:
        for name, target in spec["links"]:
            (ROOT / name).symlink_to(target)
    for number, layer in enumerate(spec["layers"]):
        lowers = ":".join(f"{STAGE}/{number}.{depth}" for depth in range(len(layer["sources"])))
        upper, work = (uppers / layer["name"].replace("/", "-") / part for part in ("upper", "work"))
        for folder in (upper, work, ROOT / layer["name"]):
            folder.mkdir(parents=True, exist_ok=True)
        # userxattr: overlayfs stores its marks in attributes that the root of a user namespace can set.
        mount("overlay", ROOT / layer["name"], "overlay", 0,
              f"lowerdir={lowers},upperdir={upper},workdir={work},userxattr")  # fmt: skip


def mount_kernel_filesystems(root: Path, spec: dict[str, Any]) -> None:
    """Mounts /proc, /sys, /dev and /run of the host's own namespaces."""
    mount("tmpfs", root / "run", "tmpfs", MS_NOSUID | MS_NODEV, "mode=0755")
    (root / PACKAGES).mkdir(parents=True)
    mount(str(STAGE / "packages"), root / PACKAGES, "", MS_BIND)
    dev = root / "dev"
    mount("tmpfs", dev, "tmpfs", MS_NOSUID, "mode=0755,size=64k")
    (root / UNHIDDEN).mkdir(mode=0o700)
    for top in (root, root / UNHIDDEN):
        for kind, name in (("proc", "proc"), ("sysfs", "sys")):
            (top / name).mkdir(exist_ok=True)
            mount(kind, top / name, kind, MS_NOSUID | MS_NODEV | MS_NOEXEC)
    identify(root, spec["dmi"])
    for name in SYS_HIDDEN:
        if (root / "sys" / name).exists():
            mount("tmpfs", root / "sys" / name, "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC | MS_RDONLY, "mode=0555")
    cgroups = root / "sys/fs/cgroup"
    mount("cgroup2", cgroups, "cgroup2", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    if spec["cgroup"]:
        # A cgroup with processes cannot have subgroups with limits (cgroups(7), "No internal processes").
        (cgroups / "init").mkdir(exist_ok=True)
        (cgroups / "init/cgroup.procs").write_text("0")
    (root / "run/sshd").mkdir(mode=0o755)
    (root / "run/lock").mkdir(mode=0o1777)
    (root / "run/utmp").touch(0o664)  # sshd records logins only if this exists; `logname` and `who` read it
    for name in DEVICES:
        if Path("/dev", name).exists():
            (dev / name).touch()
            mount(f"/dev/{name}", dev / name, "", MS_BIND)
    for name, target in DEVICE_LINKS:
        (dev / name).symlink_to(target)
    (dev / "pts").mkdir()
    mount("devpts", dev / "pts", "devpts", MS_NOSUID | MS_NOEXEC, "newinstance,gid=5,mode=0620,ptmxmode=0666")
    (dev / "shm").mkdir()
    mount("tmpfs", dev / "shm", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777")
    if "mqueue" in Path("/proc/filesystems").read_text().split():
        (dev / "mqueue").mkdir()  # podman run --ipc host needs it
        mount("mqueue", dev / "mqueue", "mqueue", MS_NOSUID | MS_NODEV | MS_NOEXEC, "")


def identify(root: Path, dmi: dict[str, str]) -> None:
    """Gives the host an instance's DMI data. dmi: file of /sys/class/dmi/id -> its content, for root alone."""
    own = root / "sys/devices/virtual/dmi/id"
    # On a machine without DMI: sysfs takes no folders, but all that is in these folders can be mounted elsewhere.
    targets = [own] if own.exists() else [root / "sys/devices/virtual", root / "sys/class"]
    staging = root / "run/dmi"
    staging.mkdir()
    for target in targets:
        mount("tmpfs", staging, "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, "mode=0755")
        for kind in target.iterdir() if target != own else ():
            (staging / kind.name).mkdir()
            mount(str(kind), staging / kind.name, "", MS_BIND)
        folder = staging if target == own else staging / "dmi/id"
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in dmi.items():
            (folder / name).write_text(f"{content}\n")
            (folder / name).chmod(0o400 if name in DMI_OF_ROOT else 0o444)
        mount(str(staging), target, "", MS_MOVE)
    staging.rmdir()


def write_files(root: Path, files: list[dict[str, Any]]) -> None:
    """Writes the host's own settings, accounts and keys (`HostFile` in files.py)."""
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


def renew_files(root: Path, files: list[dict[str, Any]]) -> None:
    """Writes the files whose content has changed since the last boot."""
    for file in files:
        path = root / file["path"].lstrip("/")
        try:
            if path.read_text() != file["content"]:
                fresh = path.with_name(f".{path.name}")
                fresh.write_text(file["content"])
                fresh.chmod(file["mode"])
                fresh.rename(path)
        except OSError as error:
            log_to_console(f"kept {file['path']} of the last boot: {error}")


def enter(root: Path) -> None:
    """Makes `root` the root of this mount namespace, and unmounts the machine's root."""
    os.chdir(root)
    check(libc.pivot_root(b".", b"."), "pivot_root")
    check(libc.umount2(b".", MNT_DETACH), "umount2 of the old root")
    os.chdir("/")
    mount("none", Path("/"), "", MS_REC | MS_SHARED)  # for containers, as with systemd
