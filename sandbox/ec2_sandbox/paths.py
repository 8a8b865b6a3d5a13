"""Everything that belongs to a sandbox (id, folder, files, address ranges, processes, mounts), and its removal.

All of it is derived from the project's folder, so `stop` finds it even if all files are lost.
"""

import hashlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from ipaddress import IPv4Interface, IPv4Network
from pathlib import Path
from typing import Any

from msgspec.json import Decoder

from ec2_sandbox.config import FolderSettings
from ec2_sandbox.errors import SandboxError
from ec2_sandbox.faults import FaultError
from ec2_sandbox.hosts import cgroups

# An argument of process 1 of an ordinary user's namespaces (rootless.py). The next argument is the user's STATE_ROOT.
USERS_MARK = "ec2-sandbox-user"
PYTHON = "/usr/bin/python3"  # the machine's own, which hosts have, too
# No bucket's name begins with a dot.
CHECKIP_PATH = "/.sandbox/checkip"
CONTROL_TIMEOUT_S = 30.0

KILL_TIMEOUT_S = 10.0
POLL_S = 0.02
LOG_LINES = 10


def read_arguments(pid: int) -> list[str]:
    """Returns a process's command line.

    It is empty if the process has ended, is a kernel thread, or is hidden from this user (hidepid).
    """
    try:
        raw = Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return []
    return [os.fsdecode(word) for word in raw.split(b"\0")[:-1]]


def _find_state_root() -> Path:
    """Returns the folder of all sandboxes: root's, or in an ordinary user's namespaces, that user's."""
    words = read_arguments(1)
    mark = next((number for number, word in enumerate(words) if word.startswith(f"{USERS_MARK}:")), None)
    return Path("/var/lib/ec2-sandbox") if mark is None else Path(words[mark + 1])


STATE_ROOT = _find_state_root()


@dataclass
class SandboxPaths:
    """The files and names of one sandbox on this machine."""

    id: str
    state_dir: Path

    def __post_init__(self) -> None:
        # An argument on the command line of each process of the sandbox, which identifies the process.
        self.mark = f"ec2-sandbox:{self.id}"
        # The machine's network interface into the sandbox; at most 15 characters (IFNAMSIZ).
        self.interface = f"csb-{self.id}"
        self.cgroup = cgroups.cgroup_of(self.id)
        # Written by `start`, with the credentials: only its owner can read it.
        self.settings_file = self.state_dir / "settings.json"
        self.aws_dir = self.state_dir / "aws"  # replaces the user's ~/.aws; its files are empty
        self.ca_file = self.state_dir / "ca.pem"  # the certificate of the sandbox's authority
        self.daemon_log = self.state_dir / "daemon.log"
        self.api_log = self.state_dir / "api.jsonl"
        self.state_log = self.state_dir / "states.jsonl"
        self.control_socket = self.state_dir / "control.sock"
        self.objects_dir = self.state_dir / "objects"  # moto keeps the content of S3 objects here, in unnamed files
        self.hosts_dir = self.state_dir / "hosts"  # a folder for each instance, with its console output
        self.volumes_dir = self.state_dir / "volumes"  # the image of each volume that a host has had
        self.snapshots_dir = self.state_dir / "snapshots"  # the bytes of each snapshot of a volume that was not blank
        self.system_dir = self.state_dir / "system"  # copies of the machine's system for hosts (hosts/system.py)
        self.packages_dir = self.state_dir / "packages"  # a folder for each `ec2-sandbox install`, with its packages

    def console_of(self, instance_id: str) -> Path:
        """Returns the file with a host's console output since the launch."""
        return self.hosts_dir / instance_id / "console.log"


def paths_of(project_dir: Path) -> SandboxPaths:
    """Returns the paths of the sandbox that belongs to a project's folder."""
    resolved = os.fsencode(project_dir.resolve())
    sandbox_id = hashlib.sha256(resolved).hexdigest()[:8]
    return SandboxPaths(id=sandbox_id, state_dir=STATE_ROOT / sandbox_id)


def find_places() -> list[SandboxPaths]:
    """Returns the places of all sandboxes in STATE_ROOT, running or not; [] if that is another user's."""
    if not os.access(STATE_ROOT, os.R_OK | os.X_OK, effective_ids=True):
        return []
    return [SandboxPaths(id=path.name, state_dir=path) for path in sorted(STATE_ROOT.iterdir())]


def find_processes(mark: str) -> Iterator[int]:
    """Yields the pids of the sandbox's processes: those with an argument `mark`, or `mark` followed by a colon."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        pid = int(entry.name)
        if pid != os.getpid() and any(word == mark or word.startswith(f"{mark}:") for word in read_arguments(pid)):
            yield pid


@dataclass(frozen=True, kw_only=True, slots=True)
class Ranges:
    """A sandbox's address ranges: that of its VPC, and the one that represents EC2's public addresses."""

    private: IPv4Network
    public: IPv4Network

    @property
    def gateway(self) -> IPv4Interface:
        """The machine's own address in the VPC: the first one, which EC2 also reserves for the router."""
        return IPv4Interface(f"{self.private[1]}/{self.private.prefixlen}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """A sandbox's settings.

    owner: the pid of the process with which the sandbox ends. The credentials are new at each start.
    """

    project_dir: str
    private: str
    public: str
    access_key_id: str
    secret_access_key: str
    config: FolderSettings
    owner: int | None = None

    @property
    def ranges(self) -> Ranges:
        """The address ranges."""
        return Ranges(private=IPv4Network(self.private), public=IPv4Network(self.public))


@dataclass(frozen=True, kw_only=True, slots=True)
class HostStatus:
    """A host, as `ec2-sandbox status` shows it. `pid`: the machine's pid of the host's process 1."""

    instance_id: str
    state: str
    private_ip: str | None
    public_ip: str | None
    pid: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class DaemonStatus:
    """The daemon's pid and its port."""

    pid: int
    port: int


# Made here, in the main thread: msgspec crashes if two threads decode a type for the first time at once.
_SETTINGS = Decoder(Settings)


def read_settings(paths: SandboxPaths) -> Settings:
    """Reads a sandbox's settings. Raises OSError or ValueError if they are missing, damaged or another user's."""
    return _SETTINGS.decode(paths.settings_file.read_bytes())


def ask(paths: SandboxPaths, **request: str) -> Any:
    """Sends a request to the daemon's socket (ec2_sandbox/daemon.py), and returns the result.

    Raises OSError if the daemon cannot be reached, and FaultError with its message if it refuses the request.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(CONTROL_TIMEOUT_S + 5)
        connection.connect(str(paths.control_socket))
        connection.sendall(json.dumps(request).encode() + b"\n")
        with connection.makefile("rb") as stream:
            line = stream.readline()
    if not line:
        raise ConnectionResetError("the sandbox closed the connection without an answer")
    answer = json.loads(line)
    if "error" in answer:
        raise FaultError(answer["error"])
    return answer["result"]


def find_daemon(paths: SandboxPaths) -> DaemonStatus | None:
    """Returns the daemon's status, or None if it does not run. Raises SandboxError if it runs and does not answer."""
    try:
        return DaemonStatus(**ask(paths, do="status"))
    except (BlockingIOError, TimeoutError) as error:  # `start` would remove a crashed one, with all that is in it
        raise SandboxError(f"The sandbox runs, but does not answer: {error}", hint="ec2-sandbox stop --yes") from error
    except OSError:
        return None


def read_log_end(paths: SandboxPaths) -> str:
    """Returns the last lines of the daemon's log. Raises OSError if there is none."""
    return "\n".join(paths.daemon_log.read_text(errors="replace").splitlines()[-LOG_LINES:])


# --- removal


@dataclass(frozen=True, kw_only=True, slots=True)
class Leftovers:
    """Everything that a sandbox has on the machine. folders: its own folder, and its control group."""

    processes: tuple[int, ...]
    mounts: tuple[str, ...]
    interfaces: tuple[str, ...]
    loop_devices: tuple[str, ...]
    folders: tuple[Path, ...]

    def __bool__(self) -> bool:
        return any((self.processes, self.mounts, self.interfaces, self.loop_devices, self.folders))


def find_leftovers(paths: SandboxPaths) -> Leftovers:
    """Returns everything that currently belongs to the sandbox, whether it runs or has crashed."""
    return Leftovers(
        processes=tuple(find_processes(paths.mark)),
        mounts=tuple(_mounts_below(paths.state_dir)),
        interfaces=(paths.interface,) if _has_interface(paths) else (),
        loop_devices=tuple(_loop_devices_below(paths.state_dir)),
        folders=tuple(folder for folder in (paths.state_dir, paths.cgroup) if folder and folder.exists()),
    )


def remove_all(paths: SandboxPaths) -> None:
    """Removes everything that belongs to a sandbox. Raises SandboxError that lists what could not be removed.

    Ends the processes first: with a host's last process, the kernel removes its mounts, loop device and network.
    """
    wait_until(lambda: not _kill_all(paths), KILL_TIMEOUT_S)
    for target in reversed(_mounts_below(paths.state_dir)):
        _try("umount", "--lazy", target)
    wait_for_loop_devices(paths.state_dir, KILL_TIMEOUT_S)
    # The kernel removes it too, but that takes seconds with many hosts. It may already have started.
    _try("ip", "link", "delete", paths.interface)
    wait_until(lambda: not _has_interface(paths), KILL_TIMEOUT_S)
    if paths.cgroup and paths.cgroup.exists():
        cgroups.remove(paths.cgroup)
    if paths.state_dir.exists():
        shutil.rmtree(paths.state_dir)
    if left := find_leftovers(paths):
        raise SandboxError(
            f"Could not remove everything of the sandbox {paths.id}. This is left: {left}", hint="ec2-sandbox stop"
        )


def _try(*words: str) -> None:
    subprocess.run(words, check=False, capture_output=True)


def wait_until(done: Callable[[], bool], timeout_s: float) -> bool:
    """Waits until `done` returns true. Returns False if it does not within `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while not done():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_S)
    return True


def _kill_all(paths: SandboxPaths) -> list[int]:
    """Kills the sandbox's processes, and returns the pids that it found."""
    processes = list(find_processes(paths.mark))
    for pid in processes:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    return processes


def _has_interface(paths: SandboxPaths) -> bool:
    return Path("/sys/class/net", paths.interface).exists()


def _mounts_below(path: Path) -> list[str]:
    targets = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    return [target for target in targets if Path(target).is_relative_to(path)]


def _loop_devices_below(path: Path) -> list[str]:
    """Returns the names of the loop devices whose image is, or was, below `path`."""
    found = []
    for backing in Path("/sys/block").glob("loop*/loop/backing_file"):
        try:
            image = backing.read_text().strip().removesuffix(" (deleted)")
        except OSError:  # just detached: ENOENT, ENODEV or ENXIO
            continue
        if Path(image).is_relative_to(path):
            found.append(backing.parts[3])
    return found


def wait_for_loop_devices(path: Path, timeout_s: float) -> bool:
    """Waits until no loop device has its image below `path`. Returns False if one still does after `timeout_s`."""
    return wait_until(lambda: not _loop_devices_below(path), timeout_s)


# --- address ranges that are not in use on this machine, and never in use on the Internet

# RFC 1918. EC2 accepts at most a /16 for a VPC. 10/8 is first, because Docker uses 172.17/16 and up.
PRIVATE_POOLS = (IPv4Network("10.0.0.0/8"), IPv4Network("172.16.0.0/12"))
PRIVATE_PREFIX = 16
# RFC 2544: for benchmarks between networks, and never routed on the Internet.
PUBLIC_POOLS = (IPv4Network("198.18.0.0/15"),)
PUBLIC_PREFIX = 20
# A name server may have an address that only the default route covers. The second file is systemd-resolved's.
RESOLV_CONFS = (Path("/etc/resolv.conf"), Path("/run/systemd/resolve/resolv.conf"))


def choose_ranges(taken: Iterable[IPv4Network], seed: int) -> Ranges:
    """Returns free ranges, which are the same for the same seed as long as they are free.

    taken: the ranges that the machine's routes and addresses cover. Raises SandboxError if no range is free.
    """
    occupied = tuple(taken)
    return Ranges(
        private=_choose(PRIVATE_POOLS, PRIVATE_PREFIX, occupied, seed),
        public=_choose(PUBLIC_POOLS, PUBLIC_PREFIX, occupied, seed),
    )


def _choose(pools: tuple[IPv4Network, ...], prefix: int, occupied: tuple[IPv4Network, ...], seed: int) -> IPv4Network:
    for pool in pools:
        _, *candidates = pool.subnets(new_prefix=prefix)  # not the first, because many networks use 10.0.0.0/16
        start = seed % len(candidates)
        for candidate in candidates[start:] + candidates[:start]:
            if not any(candidate.overlaps(other) for other in occupied):
                return candidate
    raise SandboxError(
        f"The sandbox needs a free /{prefix} of {' and '.join(map(str, pools))}, but this machine's routes cover them "
        "all.", hint="ip -4 route",
    )  # fmt: skip


def describe_taken() -> tuple[IPv4Network, ...]:
    """Returns the ranges that this machine's addresses and routes cover, and the addresses of its name servers.

    Omits default routes, and the halves into which VPN clients split them (0.0.0.0/1 and 128.0.0.0/1), because the
    sandbox's own routes are more specific.
    """
    routes = [route["dst"] for route in _ip_json("route", "show", "table", "all") if route["dst"] != "default"]
    addresses = [
        f"{address['local']}/{address['prefixlen']}"
        for link in _ip_json("addr", "show")
        for address in link.get("addr_info", [])
    ]
    servers = [server for path in RESOLV_CONFS if path.exists() for server in find_name_servers(path.read_text())]
    found = [IPv4Network(text, strict=False) for text in (*routes, *addresses, *servers)]
    return tuple(network for network in found if network.prefixlen >= 8)


def find_name_servers(text: str) -> list[str]:
    """Returns the IPv4 addresses of the name servers in a resolv.conf(5). Pure."""
    return re.findall(r"^nameserver\s+(\d+\.\d+\.\d+\.\d+)\s*$", text, re.MULTILINE)


def _ip_json(*words: str) -> list[dict[str, Any]]:
    output = subprocess.run(("ip", "-json", "-4", *words), check=True, capture_output=True, text=True).stdout
    found: list[dict[str, Any]] = json.loads(output or "[]")
    return found
