"""The control group of each host. Its subtree belongs to root in the host (cgroups(7), "Delegating a hierarchy")."""

import os
import time
from pathlib import Path

DELEGATED = ("cgroup.procs", "cgroup.threads", "cgroup.subtree_control")
END_TIMEOUT_S = 10
POLL_S = 0.01


def cgroup_of(sandbox_id: str) -> Path | None:
    """Returns the control group of a sandbox, which contains those of its hosts.

    Returns None without cgroup2, or without permission to write to it.
    """
    mounted = _find_mount()
    return mounted / f"ec2-sandbox-{sandbox_id}" if mounted and os.access(mounted, os.W_OK) else None


def find_own() -> str:
    """Returns the control group of this process, or "" on a machine without cgroup2."""
    mounted = _find_mount()
    line = next((line for line in Path("/proc/self/cgroup").read_text().splitlines() if line.startswith("0::")), None)
    return f"{mounted}{line.removeprefix('0::')}" if mounted and line else ""


def make(path: Path, owner: int) -> None:
    """Creates a host's control group for the user `owner`, with the controllers that the machine delegates."""
    path.mkdir(parents=True, exist_ok=True)
    delegated = (path.parents[1] / "cgroup.subtree_control").read_text().split()
    (path.parent / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in delegated))
    for file in (path, *(path / name for name in DELEGATED)):
        os.chown(file, owner, owner)


def freeze(path: Path) -> None:
    """Stops all processes in a control group, and waits until they have stopped, at most END_TIMEOUT_S."""
    (path / "cgroup.freeze").write_text("1")
    deadline = time.monotonic() + END_TIMEOUT_S
    while "frozen 1" not in (path / "cgroup.events").read_text() and time.monotonic() < deadline:
        time.sleep(POLL_S)


def thaw(path: Path) -> None:
    """Continues the processes that `freeze` stopped."""
    (path / "cgroup.freeze").write_text("0")


def remove(path: Path) -> None:
    """Kills all processes in a control group, and removes it with its subgroups.

    Raises OSError if the processes do not end within END_TIMEOUT_S.
    """
    deadline = time.monotonic() + END_TIMEOUT_S
    while "populated 1" in (path / "cgroup.events").read_text() and time.monotonic() < deadline:
        (path / "cgroup.kill").write_text("1")
        time.sleep(POLL_S)
    for folder, _, _ in os.walk(path, topdown=False):
        Path(folder).rmdir()


def _find_mount() -> Path | None:
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        if after.split()[0] == "cgroup2":
            return Path(before.split()[4])
    return None
