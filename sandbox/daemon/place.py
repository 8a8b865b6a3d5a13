"""What belongs to a sandbox: its id, folder, files, processes and mounts; and how to find and remove all of it.

Everything follows from the project's folder alone, so `reset` finds all of it when every file is lost.
"""

import hashlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any, TypeVar

from msgspec.json import encode

from foundation.decode import decode
from foundation.files import write_whole
from sandbox.config import SandboxConfig
from sandbox.hosts.network import Ranges

STATE_ROOT = Path("/var/lib/cluster-sandbox")

# No bucket's name begins with a dot.
CHECKIP_PATH = "/.sandbox/checkip"

KILL_TIMEOUT_S = 10.0
POLL_S = 0.02
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Where one sandbox lives on this machine."""

    id: str
    state_dir: Path

    @property
    def mark(self) -> str:
        """An argument of its own on the command line of each process of the sandbox."""
        return f"cluster-sandbox:{self.id}"

    @property
    def interface(self) -> str:
        """The machine's network interface into the sandbox; at most 15 characters (IFNAMSIZ)."""
        return f"csb-{self.id}"

    @property
    def settings_file(self) -> Path:
        """Written by `start` for the daemon."""
        return self.state_dir / "settings.json"

    @property
    def credentials_file(self) -> Path:
        """The access key; for its owner alone."""
        return self.state_dir / "credentials.json"

    @property
    def status_file(self) -> Path:
        """Written by the daemon: who it is, where it serves, and its hosts."""
        return self.state_dir / "status.json"

    @property
    def ca_file(self) -> Path:
        """The certificate of the sandbox's own authority."""
        return self.state_dir / "ca.pem"

    @property
    def daemon_log(self) -> Path:
        """What the daemon says."""
        return self.state_dir / "daemon.log"

    @property
    def api_log(self) -> Path:
        """One JSON object per API call."""
        return self.state_dir / "api.jsonl"

    @property
    def control_socket(self) -> Path:
        """Where a running sandbox listens to its owner."""
        return self.state_dir / "control.sock"

    @property
    def objects_dir(self) -> Path:
        """Where moto spools what S3's objects hold, in files without a name."""
        return self.state_dir / "objects"

    @property
    def hosts_dir(self) -> Path:
        """A folder per instance: its disk and its console."""
        return self.state_dir / "hosts"


def place_of(project_dir: Path) -> Place:
    """The sandbox that belongs to a project's folder."""
    resolved = os.fsencode(project_dir.resolve())
    sandbox_id = hashlib.sha256(resolved).hexdigest()[:8]
    return Place(id=sandbox_id, state_dir=STATE_ROOT / sandbox_id)


def read_arguments(pid: int) -> list[str]:
    """A process's command line; empty when it is gone, a kernel thread, or hidden from this user (hidepid)."""
    try:
        raw = Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return []
    return [os.fsdecode(word) for word in raw.split(b"\0")[:-1]]


def find_processes(mark: str) -> Iterator[int]:
    """Pids of the sandbox's own processes: those with its mark as an argument, or as one's beginning up to a colon."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        pid = int(entry.name)
        if pid != os.getpid() and any(word == mark or word.startswith(f"{mark}:") for word in read_arguments(pid)):
            yield pid


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """A sandbox's settings. `policy`: the text of the IAM policy that [sandbox] of cluster.toml names, or ""."""

    project_dir: str
    region: str
    private: str
    public: str
    config: SandboxConfig = field(default_factory=SandboxConfig)
    policy: str = ""

    @property
    def ranges(self) -> Ranges:
        """The address ranges."""
        return Ranges(private=IPv4Network(self.private), public=IPv4Network(self.public))


@dataclass(frozen=True, kw_only=True, slots=True)
class AccessKey:
    """The sandbox's credentials, made anew at each start."""

    access_key_id: str
    secret_access_key: str


@dataclass(frozen=True, kw_only=True, slots=True)
class HostStatus:
    """A host, as `cluster sandbox status` shows it. `pid`: its process 1, as the machine numbers it."""

    instance_id: str
    state: str
    private_ip: str | None
    public_ip: str | None
    pid: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class DaemonStatus:
    """Who the daemon is and what it runs."""

    pid: int
    port: int
    hosts: tuple[HostStatus, ...] = ()


def write_json(path: Path, value: Any, mode: int = 0o644) -> None:
    """Writes it whole: a reader sees the old file or the new one."""
    write_whole(path, encode(value), mode=mode)


def read_json(path: Path, kind: type[T]) -> T:
    """Raises OSError or ValueError when the file is missing, another user's or damaged."""
    return decode(path.read_bytes(), kind)


@dataclass(frozen=True, kw_only=True, slots=True)
class Leftovers:
    """What of a sandbox is on the machine."""

    processes: tuple[int, ...]
    mounts: tuple[str, ...]
    interfaces: tuple[str, ...]
    loop_devices: tuple[str, ...]
    folders: tuple[Path, ...]

    def __bool__(self) -> bool:
        return any((self.processes, self.mounts, self.interfaces, self.loop_devices, self.folders))


def find_leftovers(place: Place) -> Leftovers:
    """All of the sandbox's that is there now, whether it runs or is left over."""
    return Leftovers(
        processes=tuple(find_processes(place.mark)),
        mounts=tuple(_mounts_below(place.state_dir)),
        interfaces=(place.interface,) if Path("/sys/class/net", place.interface).exists() else (),
        loop_devices=tuple(loop_devices_below(place.state_dir)),
        folders=(place.state_dir,) if place.state_dir.exists() else (),
    )


def remove_leftovers(place: Place) -> Leftovers:
    """Removes what is there and returns what is still there after that: nothing, if all went well.

    Processes first: with a host's last process its mounts, its loop device and its network go by themselves.
    """
    _kill_all(place)
    for target in reversed(_mounts_below(place.state_dir)):
        subprocess.run(("umount", "--lazy", target), check=False, capture_output=True)
    wait_for_loop_devices(place.state_dir, KILL_TIMEOUT_S)
    for device in loop_devices_below(place.state_dir):
        subprocess.run(("losetup", "--detach", f"/dev/{device}"), check=False, capture_output=True)
    # The kernel would take it away by itself, but with many hosts only after seconds.
    subprocess.run(("ip", "link", "delete", place.interface), check=False, capture_output=True)
    _wait_for_interface(place)
    if place.state_dir.exists():
        shutil.rmtree(place.state_dir)
    return find_leftovers(place)


def _kill_all(place: Place) -> None:
    deadline = time.monotonic() + KILL_TIMEOUT_S
    while processes := list(find_processes(place.mark)):
        for pid in processes:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        if time.monotonic() > deadline:
            return
        time.sleep(POLL_S)


def _wait_for_interface(place: Place) -> None:
    """For when `ip link delete` came while the kernel was already at it."""
    deadline = time.monotonic() + KILL_TIMEOUT_S
    while Path("/sys/class/net", place.interface).exists() and time.monotonic() < deadline:
        time.sleep(POLL_S)


def _mounts_below(path: Path) -> list[str]:
    targets = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    return [target for target in targets if Path(target).is_relative_to(path)]


def loop_devices_below(path: Path) -> list[str]:
    """Names of the loop devices whose image is, or was, below `path`."""
    found = []
    for backing in Path("/sys/block").glob("loop*/loop/backing_file"):
        try:
            image = backing.read_text().strip().removesuffix(" (deleted)")
        except OSError:  # detached in between: ENOENT, ENODEV or ENXIO
            continue
        if Path(image).is_relative_to(path):
            found.append(backing.parts[3])
    return found


def wait_for_loop_devices(path: Path, timeout_s: float) -> bool:
    """Waits until no loop device has its image below `path`; False when one still does after `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while loop_devices_below(path):
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_S)
    return True
