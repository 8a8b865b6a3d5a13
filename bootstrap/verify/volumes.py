"""Checks volumes for `cluster verify`: whether all other nodes read what one node writes, and at which rates."""

import secrets
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Annotated, Any

from msgspec import Meta, Struct

from bootstrap.apply import ReadyNode
from bootstrap.ssh.connections import on_all
from bootstrap.ssh.node_program import NodeProgram
from bootstrap.verify.checks import EVERYWHERE, Check
from foundation.errors import ClusterError
from foundation.progress import Event, Report
from provision.volumes.source import MountSource

SIZE_BYTES = 64 << 20
STEP_S = 300.0
LEAST_SHARE = 0.7
"""The check warns if each of several readers gets less than this share of the rate of a single reader."""
_MB = 1e6


class _Written(Struct, frozen=True):
    seconds: Annotated[float, Meta(ge=0)]


class _Read(Struct, frozen=True):
    seconds: Annotated[float, Meta(ge=0)]
    bytes: int
    same: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Rates:
    """Measured rates in bytes per second. write: the rate of one node; read: the rate of one node alone.

    together: the rate of each of several nodes that read at once, by the node's name; empty with a single reader.
    """

    write: float
    read: float
    together: Mapping[str, float]


class _Session(NodeProgram):
    """A session of measure_volume.py on one node. Its methods raise ClusterError and its kinds."""

    def __init__(self, node: ReadyNode) -> None:
        super().__init__(node.connection, "measure_volume")
        self.name = node.host.name

    def write(self, path: str, *, seed: int) -> float:
        """Writes a file. Returns the rate in bytes per second."""
        answer = self.call({"write": path, "size_bytes": SIZE_BYTES, "seed": seed}, _Written, timeout_s=STEP_S)
        return SIZE_BYTES / max(answer.seconds, 1e-6)

    def read_file(self, path: str, *, seed: int) -> float:
        """Reads the file. Returns the rate in bytes per second. Raises ClusterError if it is not as it was written."""
        found = self.call({"read": path, "seed": seed}, _Read, timeout_s=STEP_S)
        if not found.same or found.bytes != SIZE_BYTES:
            raise ClusterError(
                f"{self.name}: {path}: it read {found.bytes} bytes that differ from the {SIZE_BYTES} bytes written"
            )
        return found.bytes / max(found.seconds, 1e-6)

    def remove(self, path: str) -> None:
        """Removes the file."""
        self.call({"remove": path}, dict[str, Any], timeout_s=STEP_S)


def check_volumes(nodes: Sequence[ReadyNode], sources: Sequence[MountSource], *, report: Report) -> tuple[Check, ...]:
    """Writes to each volume on the head and reads it on the others. nodes: head first. Returns a check per volume."""
    checks = []
    with ExitStack() as stack:
        sessions = [stack.enter_context(closing(_Session(node))) for node in nodes]
        for source in sources:
            report(Event(kind="start", what=f"writing and reading {SIZE_BYTES / _MB:.0f} MB on {source.mount}"))
            checks.append(_check(sessions, source))
    return tuple(checks)


def _check(sessions: Sequence[_Session], source: MountSource) -> Check:
    if source.read_only:
        said = "mounted on all nodes; not measured, because it is read_only"
        return Check(node=EVERYWHERE, check="volumes", subject=source.mount, status="unchecked", said=said)
    path, seed = f"{source.mount}/.cluster-verify-{secrets.token_hex(4)}", secrets.randbits(32)
    writer, readers = sessions[0], sessions[1:] or sessions
    try:
        try:
            write = writer.write(path, seed=seed)
            read = readers[-1].read_file(path, seed=seed)
            together: dict[str, float] = {}
            if len(readers) > 1:
                on_all(readers, lambda one: together.__setitem__(one.name, one.read_file(path, seed=seed)))
        finally:
            writer.remove(path)
    except ClusterError as error:
        return Check(
            node=EVERYWHERE, check="volumes", subject=source.mount, status="failed", said=error.message, hint=error.hint
        )
    return to_check(source.mount, Rates(write=write, read=read, together=together))


def to_check(mount: str, rates: Rates) -> Check:
    """The check of a volume that works. Pure."""
    said = f"write {rates.write / _MB:.0f} MB/s, read {rates.read / _MB:.0f} MB/s"
    if not rates.together:
        return Check(node=EVERYWHERE, check="volumes", subject=mount, status="ok", said=said)
    count, total = len(rates.together), sum(rates.together.values())
    said += f"; {count} nodes at once {total / _MB:.0f} MB/s"
    if total / count >= LEAST_SHARE * rates.read:
        return Check(node=EVERYWHERE, check="volumes", subject=mount, status="ok", said=said)
    return Check(
        node=EVERYWHERE,
        check="volumes",
        subject=mount,
        status="warning",
        said=said,
        cause=f"{count} readers exceed the bandwidth of the volume's server: each gets {total / count / _MB:.0f} MB/s, "
        f"one alone {rates.read / _MB:.0f} MB/s",
        hint="copy the data to the nodes' own disks before training, or use a file system with more throughput",
    )
