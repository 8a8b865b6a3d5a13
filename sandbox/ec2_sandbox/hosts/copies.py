"""Copies of disks, in the background: snapshots of volumes, and volumes from snapshots. Use them under EC2's lock.

A running host stands still while its disk is copied, so that the copy has the bytes as of the call.
"""

import logging
import os
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from pathlib import Path

from ec2_sandbox.api.ec2 import Regions
from ec2_sandbox.api.volumes import SandboxSnapshot, SandboxVolume
from ec2_sandbox.hosts import cgroups
from ec2_sandbox.hosts.disks import make_image
from ec2_sandbox.hosts.hosts import Host
from ec2_sandbox.hosts.network import run_quietly
from ec2_sandbox.paths import SandboxPaths

log = logging.getLogger("ec2_sandbox.copies")


@dataclass(frozen=True, kw_only=True, slots=True)
class Copy:
    """A copy in progress, and the host that stands still for it."""

    future: "Future[None]"
    host: Host | None


class Copies:
    """The copies in progress, by the id of the snapshot or volume that they make."""

    def __init__(self, paths: SandboxPaths, pool: Executor, wake: Callable[[], None]) -> None:
        self._paths = paths
        self._pool = pool
        self._wake = wake
        self._copies: dict[str, Copy] = {}

    def capture(self, snapshot: SandboxSnapshot, host: Host | None) -> None:
        """Starts to copy the bytes that a snapshot's volume has now. host: the running host whose disk it is."""
        source = self._paths.volumes_dir / snapshot.volume.id
        if host is not None and host.pid is not None:
            hold(host, host.pid)
        self._start(snapshot.id, source, self._paths.snapshots_dir / snapshot.id, 0, host)

    def fill(self, volume: SandboxVolume) -> bool:
        """Copies a snapshot to a volume made from it. Returns whether this is done. A root volume does it at boot."""
        if volume.id in self._copies:
            return bool(self.finish(volume.id))
        source, target = self._paths.snapshots_dir / str(volume.snapshot_id), self._paths.volumes_dir / volume.id
        if volume.is_root or target.exists() or not source.exists():
            return True
        self._start(volume.id, source, target, volume.image_bytes, None)
        return False

    def _start(self, copy_id: str, source: Path, target: Path, size_bytes: int, host: Host | None) -> None:
        future = self._pool.submit(_copy, source, target, size_bytes)
        future.add_done_callback(lambda _: self._wake())
        self._copies[copy_id] = Copy(future=future, host=host)

    def finish(self, copy_id: str) -> bool | None:
        """Returns whether a copy succeeded, or None while it is in progress. Releases the host after its last copy."""
        copy = self._copies[copy_id]
        if not copy.future.done():
            return None
        del self._copies[copy_id]
        if copy.host is not None and all(other.host is not copy.host for other in self._copies.values()):
            release(copy.host)
        if error := copy.future.exception():
            log.error("%s: could not copy its bytes: %s", copy_id, error)
        return copy.future.exception() is None

    def remove_deleted(self, regions: Regions) -> None:
        """Removes the disks of deleted volumes and snapshots, unless a copy in progress may need them."""
        volumes = {one.id for backend in regions for one in backend.sandbox_volumes()}
        snapshots = {one.id for backend in regions for one in backend.sandbox_snapshots()}
        for folder, known in ((self._paths.volumes_dir, volumes), (self._paths.snapshots_dir, snapshots)):
            if folder.exists() and not self._copies:
                for disk in folder.iterdir():
                    if disk.name.partition(".")[0] not in known:  # "ID.new" is one that is being made
                        disk.unlink()

    def clear(self) -> None:
        """Waits for all copies, and forgets them."""
        for copy_id in tuple(self._copies):
            self._copies[copy_id].future.exception()
            self.finish(copy_id)


def _copy(source: Path, target: Path, size_bytes: int) -> None:
    """Copies a disk, or nothing if it is blank. size_bytes: the size of the copy, if it is larger."""
    if source.exists():
        make_image(target, size_bytes, source)


def hold(host: Host, pid: int) -> None:
    """Stops all processes of a host, and writes its changes to its disks. pid: of its process 1.

    Without a control group, the processes continue: then the copy may also have later changes.
    """
    if host.cgroup and host.cgroup.exists():
        cgroups.freeze(host.cgroup)
    run_quietly(("sync", "--file-system", f"/proc/{pid}/root"))
    for device in host.disks.values():
        os.fsync(device)


def release(host: Host) -> None:
    """Continues the processes of a host."""
    if host.cgroup and host.cgroup.exists():
        cgroups.thaw(host.cgroup)
