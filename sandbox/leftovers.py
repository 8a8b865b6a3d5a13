"""Finding and removing everything that belongs to a sandbox, from nothing but its id."""

import os
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from sandbox.hosts import loop_devices_below, wait_for_loop_devices
from sandbox.marks import Place, find_processes

KILL_TIMEOUT_S = 10.0
POLL_S = 0.02


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


def remove(place: Place) -> Leftovers:
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
