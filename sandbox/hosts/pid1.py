"""Process 1 of a sandbox host: builds the host's file system, starts sshd, reaps, and stays.

Started by the daemon as `/usr/bin/python3 -I -S -B pid1.py MARK READY_FD` inside new mount, pid, uts, ipc and network
namespaces. Standard library only and Python >= 3.10, because the machine's own Python runs it: the virtual
environment's may be in a folder that the host does not see.

The first line of standard input is the host's description (`HostSpec` in files.py); it stays open as long as the daemon
lives, and the host ends when it is closed. Standard output is the console. One byte is written to the descriptor
READY_FD when the network is up and sshd answers.

Everything is mounted in the host's own mount namespace, and the disk is a loop device that detaches itself: when the
last process of the host dies, for whatever reason, the kernel removes it all.
"""

import ctypes
import errno
import json
import os
import pwd
import select
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

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
# With these, root in a host could affect the whole machine.
PROC_READ_ONLY = ("sysrq-trigger", "sys/kernel", "sys/vm", "irq", "bus")
# The machine's disks, which a program that formats instance store volumes must not find.
SYS_HIDDEN = ("block", "class/block", "dev/block")

libc = ctypes.CDLL(None, use_errno=True)

PR_CAPBSET_DROP = 24
# Root in a host may do anything to the host, but nothing to the machine's clock, kernel modules or block devices.
# linux/capability.h: SYS_MODULE, SYS_RAWIO, SYS_TIME, MKNOD, MAC_OVERRIDE, MAC_ADMIN, SYSLOG, WAKE_ALARM
DROPPED_CAPABILITIES = (16, 17, 25, 27, 32, 33, 34, 35)
SSHD = ("/usr/sbin/sshd", "-D", "-E", "/var/log/auth.log", "-f", "/etc/ssh/sshd_config")
SSHD_RESTART_S = 0.1  # as Ubuntu's ssh.service: Restart=on-failure, RestartSec=100ms
SSHD_TIMEOUT_S = 10.0
SSH_PORT = 22
NETWORK_TIMEOUT_S = 20.0
# After that, remaining processes are killed; like systemd's DefaultTimeoutStopSec, but shorter.
SHUTDOWN_S = 5.0
# systemd(1), "Signals". The exit codes tell the daemon what to do with the instance (hosts.py).
POWER_OFF, REBOOT = signal.SIGRTMIN + 4, signal.SIGRTMIN + 5
POWERED_OFF_CODE, REBOOT_CODE = 70, 71
SHUTDOWNS = {POWER_OFF: ("power down", POWERED_OFF_CODE), REBOOT: ("restarting system", REBOOT_CODE)}


def say(text: str) -> None:
    """A line on the console, with the time since the machine's boot as in the kernel's lines."""
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
    """Makes a directory of the upper layer that hides the lower layer's."""
    path.mkdir(parents=True)
    path.chmod(mode)
    os.setxattr(path, "trusted.overlay.opaque", b"y")


def prepare_upper(name: str, upper: Path, hiding: dict[str, Any]) -> None:
    """Fills a new upper layer with what hides parts of the machine's system from the host."""
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
    (root / "run/utmp").touch(0o664)  # sshd notes logins only if it exists; `logname` and `who` read it
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


def enter(root: Path) -> None:
    """Makes `root` the root of this namespace and unmounts the machine's."""
    os.chdir(root)
    subprocess.run(("pivot_root", ".", "."), check=True, env=ENVIRONMENT)
    if libc.umount2(b".", MNT_DETACH) != 0:
        raise OSError(ctypes.get_errno(), "umount2 of the old root")
    os.chdir("/")


def build_root(spec: dict[str, Any]) -> bool:
    """Mounts the host's root and enters it. True at the first boot, when the disk is empty."""
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


def read_spec() -> dict[str, Any]:
    """The host's description: the first and only line of standard input."""
    line = bytearray()
    while not line.endswith(b"\n"):
        chunk = os.read(0, 65536)
        if not chunk:
            sys.exit("the daemon went away before the host was described")
        line += chunk
    spec: dict[str, Any] = json.loads(line)
    return spec


def configure_network(commands: str) -> None:
    """Waits until the daemon has added eth0, then sets it up with `ip -batch`."""
    deadline = time.monotonic() + NETWORK_TIMEOUT_S
    while not Path("/sys/class/net/eth0").exists():
        if time.monotonic() > deadline:
            sys.exit(f"eth0 did not appear within {NETWORK_TIMEOUT_S:.0f} s")
        time.sleep(0.005)
    subprocess.run(("ip", "-batch", "-"), input=commands, text=True, check=True, env=ENVIRONMENT)


def make_host_keys() -> None:
    """Makes the host keys."""
    for kind in ("ed25519", "ecdsa"):
        path = f"/etc/ssh/ssh_host_{kind}_key"
        subprocess.run(("ssh-keygen", "-q", "-t", kind, "-N", "", "-C", f"root@{socket.gethostname()}", "-f", path),
                       check=True, env=ENVIRONMENT)  # fmt: skip


def print_host_keys() -> None:
    """Writes the host keys to the console as cloud-init does at every boot, so that clients can compare them."""
    publics = sorted(Path("/etc/ssh").glob("ssh_host_*_key.pub"))
    for name, show in (("FINGERPRINTS", ("ssh-keygen", "-l", "-f")), ("KEYS", ("cat",))):
        os.write(1, f"-----BEGIN SSH HOST KEY {name}-----\n".encode())
        for public in publics:
            subprocess.run((*show, str(public)), check=True, env=ENVIRONMENT)
        os.write(1, f"-----END SSH HOST KEY {name}-----\n".encode())


def log_in(user: str) -> None:
    """Sets the login name for `logname`, which PAM would do if sshd used it.

    Kernels without audit, and those that allow it to the machine's own root only, have no login name.
    """
    try:
        Path("/proc/self/loginuid").write_text(str(pwd.getpwnam(user).pw_uid))
    except OSError as error:
        say(f"no login name: {error}")


def drop_capabilities() -> None:
    """Drops the capabilities that affect the machine, for everything that is started from here on."""
    for capability in DROPPED_CAPABILITIES:
        if libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) != 0 and ctypes.get_errno() != errno.EINVAL:
            raise OSError(ctypes.get_errno(), f"cannot drop capability {capability}")


def start_sshd() -> int:
    """Starts sshd in a session of its own; returns its pid when it answers."""
    null = os.open("/dev/null", os.O_RDWR)
    pid = os.posix_spawn(
        SSHD[0], SSHD, ENVIRONMENT, setsid=True,
        file_actions=[(os.POSIX_SPAWN_DUP2, null, fd) for fd in (0, 1, 2)],
    )  # fmt: skip
    os.close(null)
    deadline = time.monotonic() + SSHD_TIMEOUT_S
    while not sshd_answers() and time.monotonic() < deadline:
        time.sleep(0.005)
    return pid


def sshd_answers() -> bool:
    """Whether it accepts connections; asked from inside, where security groups do not apply."""
    try:
        with socket.create_connection(("127.0.0.1", SSH_PORT), timeout=1.0):
            return True
    except OSError:
        return False


def stay(spec: dict[str, Any], ready_fd: int) -> NoReturn:
    """Reaps processes, restarts sshd, and ends the host when it is told to or when the daemon has ended."""
    wakeup_read, wakeup_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wakeup_write)
    for number in (signal.SIGCHLD, POWER_OFF, REBOOT):
        signal.signal(number, lambda *_: None)
    sshd = start_sshd() if spec["sshd"] else None
    os.write(ready_fd, b"+")
    os.close(ready_fd)
    if spec["after_boot"]:
        os.posix_spawn(spec["after_boot"][0], spec["after_boot"], ENVIRONMENT, setsid=True)
    while True:
        ready, _, _ = select.select([0, wakeup_read], [], [])
        if 0 in ready and not os.read(0, 4096):
            sys.exit(0)
        arrived = os.read(wakeup_read, 4096) if wakeup_read in ready else b""
        for number, (what, code) in SHUTDOWNS.items():
            if number in arrived:
                shut_down(what, code)
        if sshd in reap():
            say("sshd ended: starting it again")
            time.sleep(SSHD_RESTART_S)
            sshd = start_sshd()


def shut_down(what: str, code: int) -> NoReturn:
    """Ends every process, first by SIGTERM, and then this one with `code`."""
    say(f"{what}: sending SIGTERM to all processes")
    deadline = time.monotonic() + SHUTDOWN_S
    _kill_all(signal.SIGTERM)
    while _has_children() and time.monotonic() < deadline:
        time.sleep(0.01)
    _kill_all(signal.SIGKILL)
    say(what)
    os._exit(code)


def _kill_all(number: int) -> None:
    """A signal to all processes of the host but this one."""
    try:
        os.kill(-1, number)
    except ProcessLookupError:
        return


def _has_children() -> bool:
    reap()
    return bool(Path("/proc/1/task/1/children").read_text().strip())


def reap() -> list[int]:
    """The pids of the children, including adopted ones, that have ended since the last call."""
    ended: list[int] = []
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended.append(pid)


def boot(spec: dict[str, Any]) -> None:
    """From a bare namespace to a host that is ready for sshd."""
    first_boot = build_root(spec)
    socket.sethostname(spec["hostname"])
    if first_boot:
        make_host_keys()
    configure_network(spec["network"])
    print_host_keys()


def main() -> NoReturn:
    """Boots the host and stays."""
    ready_fd = int(sys.argv[2])
    os.set_inheritable(ready_fd, False)  # noqa: FBT003 -- takes it by position only
    spec = read_spec()
    say(f"{spec['instance_id']}: booting {spec['hostname']}")
    boot(spec)
    log_in("ubuntu")
    drop_capabilities()
    say(f"{spec['hostname']} login: sshd starts")
    stay(spec, ready_fd)


if __name__ == "__main__":
    main()
