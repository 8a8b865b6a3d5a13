"""Mounts the volumes of cluster.toml on all nodes, and unmounts them."""

import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from typing import Any

from bootstrap.ssh.connection import NodeConnection
from bootstrap.ssh.connections import on_all
from bootstrap.ssh.node_program import NodeProgram
from bootstrap.volumes.mount_plan import (
    MountPlan,
    VolumeFacts,
    note_of,
    path_of,
    plan_volumes,
    render_exports,
)
from foundation.errors import ClusterError
from foundation.progress import Event, Report
from provision.aws.s3_access import S3Access
from provision.volumes.source import MountSource

STEP_S = 60.0
INSTALL_S = 900.0
FORMAT_S = 900.0
MOUNT_S = 90.0  # more than mount_volumes.py takes
DEVICE_S = 30.0  # from the attachment of a disk until its device appears
UNMOUNT_S = 60.0
SERVE_S = 90.0


class _Session(NodeProgram):
    """A session of mount_volumes.py on one node, as root. Its methods raise ClusterError and its kinds.

    plan: what `prepare`, `serve` and `mount` carry out. is_changed: whether they have changed the node.
    """

    def __init__(self, connection: NodeConnection, report: Report) -> None:
        super().__init__(connection, "mount_volumes", as_root=True)
        self.name = connection.host.name
        self.plan = MountPlan()
        self.is_changed = False
        self._report = report

    def do(self, step: str, *, what: str, timeout_s: float = STEP_S, hint: str = "", **arguments: Any) -> Any:
        """Carries out a step. Returns its result. what: the description of the step in an error."""
        hint = hint or f"cluster ssh {self.name}; then run the command again"
        answer = self.call({"step": step, **arguments}, dict[str, Any], timeout_s=timeout_s, what=what, hint=hint)
        return answer.get("result")

    def describe(self) -> VolumeFacts:
        """Gathers the facts about the node."""
        return self.read(self.do("describe", what="looking at the volumes"), VolumeFacts)

    def prepare(self) -> None:
        """Unmounts old volumes, installs packages, and mounts the disks."""
        for path in self.plan.unmount:
            self.do("unmount", what=f"unmounting {path}", mount=path, lazily=True)
            self._note_change(f"unmounted {path}")
        if self.plan.install:
            listed = ", ".join(self.plan.install)
            self._report(Event(kind="start", what=f"installing {listed}", where=self.name))
            self.do("install", what=f"installing {listed}", timeout_s=INSTALL_S, packages=self.plan.install)
        for source in self.plan.disks:
            formatted = self.do(
                "disk",
                what=f"the disk of {source.mount}",
                timeout_s=FORMAT_S,
                volume_id=source.volume_id,
                device=source.device,
                path=path_of(source),
                read_only=source.read_only,
                wait_s=DEVICE_S,
            )
            if formatted:
                self._note_change(f"the disk of {source.mount} was blank, and has a new ext4 file system")

    def serve(self, addresses: Sequence[str]) -> None:
        """Has the node serve its volumes to the others. addresses: of all nodes."""
        if self.plan.exports:
            others = [address for address in addresses if address != self.connection.host.private_ip]
            exports = render_exports(self.plan.exports, others)
            self.do("serve", what="exporting volumes", timeout_s=SERVE_S, exports=exports)

    def mount(self, now: float) -> None:
        """Mounts the missing volumes. Remounts those that need new keys, unless they are in use."""
        for mount in self.plan.mounts:
            path = mount.source.mount
            if path in self.plan.renew and self.do("unmount", what=f"unmounting {path}", mount=path, lazily=False):
                self._report(Event(kind="info", what=f"{path} is in use, and keeps its S3 keys", where=self.name))
                continue
            self.do(
                "mount",
                what=f"mounting {mount.server} at {path}",
                timeout_s=MOUNT_S,
                hint=f"cluster data ls s3://{mount.source.bucket}/" if mount.how == "s3fs" else "",
                mount=path,
                words=mount.words,
                entry=note_of(mount, now=now),
                env=dict(mount.env),
            )
            self._note_change(f"mounted {mount.server} at {path} ({mount.how})")

    def _note_change(self, what: str) -> None:
        self.is_changed = True
        self._report(Event(kind="done", what=what, where=self.name))


def mount_volumes(
    connections: Sequence[NodeConnection],
    sources: Sequence[MountSource],
    *,
    s3: S3Access,
    report: Report,
) -> frozenset[str]:
    """Mounts the volumes on all nodes, and unmounts those that are no longer wanted. Changes only what differs.

    All nodes finish a step before the next one. connections: to the nodes, the head first. s3: for s3:// volumes.
    Returns the names of the changed nodes. Raises ClusterError, which names every failed node.
    """
    now = time.time()
    hosts = [connection.host for connection in connections]
    addresses = [host.private_ip for host in hosts]
    with ExitStack() as stack:
        sessions = [stack.enter_context(closing(_Session(connection, report))) for connection in connections]
        facts = on_all(sessions, lambda one: (one.name, one.describe()))
        plans = plan_volumes(sources, hosts, dict(facts), s3=s3, now=now)
        for session in sessions:
            session.plan = plans[session.name]
        on_all(sessions, _Session.prepare)
        on_all(sessions, lambda one: one.serve(addresses))
        on_all(sessions, lambda one: one.mount(now))
        return frozenset(one.name for one in sessions if one.is_changed)


def unmount_volumes(connections: Sequence[NodeConnection], *, report: Report) -> None:
    """Unmounts all volumes on the nodes of these connections, the head last.

    Warns of failures, and of mounts that are in use: these are unmounted as soon as they are not in use any more. Does
    not raise, and takes at most UNMOUNT_S per step.
    """
    for group in (
        [one for one in connections if not one.host.is_head],
        [one for one in connections if one.host.is_head],
    ):
        on_all(group, lambda connection: _unmount(connection, report))


def _unmount(connection: NodeConnection, report: Report) -> None:
    name = connection.host.name
    try:
        with closing(_Session(connection, report)) as session:
            busy = session.do("unmount_all", what="unmounting volumes", timeout_s=UNMOUNT_S)
    except ClusterError as error:
        report(Event(kind="warn", what=f"volumes were not unmounted: {error.message}", where=name))
        return
    for path in busy:
        report(Event(kind="warn", what=f"{path} is in use, and is unmounted when nobody uses it", where=name))
