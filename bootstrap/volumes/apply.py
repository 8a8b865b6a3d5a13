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
    S3Access,
    VolumeFacts,
    note_of,
    path_of,
    plan_volumes,
    render_exports,
)
from foundation.errors import ClusterError
from foundation.progress import Event, Report
from provision.volumes.source import MountSource

STEP_S = 60.0
INSTALL_S = 900.0
FORMAT_S = 900.0
MOUNT_S = 90.0  # more than mount_volumes.py takes
DEVICE_S = 30.0  # from the attachment of a disk until its device appears
UNMOUNT_S = 60.0
SERVE_S = 90.0


class _Session(NodeProgram):
    """A session of mount_volumes.py on one node, as root. Its methods raise ClusterError and its kinds."""

    def __init__(self, connection: NodeConnection) -> None:
        super().__init__(connection, "mount_volumes", as_root=True)
        self.name = connection.host.name

    def do(self, step: str, *, what: str, timeout_s: float = STEP_S, hint: str = "", **arguments: Any) -> Any:
        """Carries out a step. Returns its result. what: the description of the step in an error."""
        hint = hint or f"cluster ssh {self.name}; then run the command again"
        answer = self.call({"step": step, **arguments}, dict[str, Any], timeout_s=timeout_s, what=what, hint=hint)
        return answer.get("result")

    def describe(self, sources: Sequence[MountSource]) -> VolumeFacts:
        """Gathers the facts about the node."""
        found = self.do("describe", what="looking at the volumes", mounts=[source.mount for source in sources])
        return self.read(found, VolumeFacts)


def mount_volumes(
    connections: Sequence[NodeConnection],
    sources: Sequence[MountSource],
    *,
    s3: S3Access | None,
    report: Report,
) -> frozenset[str]:
    """Mounts the volumes on all nodes, and unmounts those that are no longer wanted. Changes only what differs.

    connections: to the nodes, the head first. s3: for s3:// volumes.
    Returns the names of the changed nodes. Raises ClusterError, which names every failed node.
    """
    with ExitStack() as stack:
        sessions = [stack.enter_context(closing(_Session(connection))) for connection in connections]
        return _Mounting(sessions, sources, s3=s3, report=report).run()


class _Mounting:
    """Mounts volumes on all nodes at the same time, in steps that all nodes must finish."""

    def __init__(
        self,
        sessions: Sequence[_Session],
        sources: Sequence[MountSource],
        *,
        s3: S3Access | None,
        report: Report,
    ) -> None:
        self._sessions, self._sources, self._s3, self._report = sessions, sources, s3, report
        self._hosts = [session.connection.host for session in sessions]
        self._plans: dict[str, MountPlan] = {}
        self._changed: set[str] = set()
        self._now = time.time()

    def run(self) -> frozenset[str]:
        """Does all steps. Returns the names of the changed nodes. Raises ClusterError."""
        facts = on_all(self._sessions, lambda session: session.describe(self._sources))
        known = dict(zip((host.name for host in self._hosts), facts, strict=True))
        self._plans = plan_volumes(self._sources, self._hosts, known, s3=self._s3, now=self._now)
        for work in (self._prepare, self._serve, self._mount):
            on_all(self._sessions, work)
        return frozenset(self._changed)

    def _note_change(self, session: _Session, what: str) -> None:
        self._changed.add(session.name)
        self._report(Event(kind="done", what=what, where=session.name))

    def _prepare(self, session: _Session) -> None:
        """Unmounts old volumes, installs packages, and mounts the disks."""
        plan = self._plans[session.name]
        for path in plan.unmount:
            session.do("unmount", what=f"unmounting {path}", mount=path, lazily=True)
            self._note_change(session, f"unmounted {path}")
        if plan.install:
            listed = ", ".join(plan.install)
            self._report(Event(kind="start", what=f"installing {listed}", where=session.name))
            session.do("install", what=f"installing {listed}", timeout_s=INSTALL_S, packages=plan.install)
        for source in plan.disks:
            formatted = session.do(
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
                self._note_change(session, f"the disk of {source.mount} was blank, and has a new ext4 file system")

    def _serve(self, session: _Session) -> None:
        """Has the node serve its volumes to the others."""
        folders = self._plans[session.name].exports
        if folders:
            address = session.connection.host.private_ip
            others = [host.private_ip for host in self._hosts if host.private_ip != address]
            exports = render_exports(folders, others)
            session.do("serve", what="exporting volumes", timeout_s=SERVE_S, exports=exports)

    def _mount(self, session: _Session) -> None:
        """Mounts the missing volumes. Remounts those that need new keys, unless they are in use."""
        plan = self._plans[session.name]
        for mount in plan.mounts:
            path = mount.source.mount
            if path in plan.renew and session.do("unmount", what=f"unmounting {path}", mount=path, lazily=False):
                self._report(Event(kind="info", what=f"{path} is in use, and keeps its S3 keys", where=session.name))
                continue
            session.do(
                "mount",
                what=f"mounting {mount.server} at {path}",
                timeout_s=MOUNT_S,
                hint=f"cluster data ls s3://{mount.source.bucket}/" if mount.how == "s3fs" else "",
                mount=path,
                words=mount.words,
                entry=note_of(mount, now=self._now),
                env=dict(mount.env),
            )
            self._note_change(session, f"mounted {mount.server} at {path} ({mount.how})")


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
        with closing(_Session(connection)) as session:
            busy = session.do("unmount_all", what="unmounting volumes", timeout_s=UNMOUNT_S)
    except ClusterError as error:
        report(Event(kind="warn", what=f"volumes were not unmounted: {error.message}", where=name))
        return
    for path in busy:
        report(Event(kind="warn", what=f"{path} is in use, and is unmounted when nobody uses it", where=name))
