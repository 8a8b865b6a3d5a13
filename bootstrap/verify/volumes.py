"""Checks volumes for `cluster verify`: whether all other nodes read what one node writes."""

import secrets
from collections.abc import Sequence

from bootstrap.apply import ReadyNode
from bootstrap.ssh.connections import on_all
from bootstrap.verify.checks import EVERYWHERE, Check
from foundation.errors import ClusterError
from foundation.remote_command import Quoted, RemoteCommand
from provision.volumes.source import MountSource

STEP_S = 60.0


def check_volumes(nodes: Sequence[ReadyNode], sources: Sequence[MountSource]) -> tuple[Check, ...]:
    """Writes a file to each volume on the head and reads it on the others. nodes: head first. A check per volume."""
    return tuple(_check(nodes, source) for source in sources)


def _check(nodes: Sequence[ReadyNode], source: MountSource) -> Check:
    if source.read_only:
        words = "mounted on all nodes; nothing is written, because it is read_only"
        return Check(node=EVERYWHERE, check="volumes", subject=source.mount, status="unchecked", result=words)
    head, readers = nodes[0], nodes[1:] or nodes
    content = secrets.token_hex(16)
    path = Quoted(f"{source.mount}/.cluster-verify-{content}")

    def read(node: ReadyNode) -> None:
        node.connection.ask(RemoteCommand("cat ", path), {content}, timeout_s=STEP_S, what=f"reading {source.mount}")

    try:
        write = RemoteCommand("printf %s ", Quoted(content), " >", path)
        head.connection.run(write, timeout_s=STEP_S, what=f"writing to {source.mount}")
        try:
            on_all(readers, read)
        finally:
            head.connection.run(RemoteCommand("rm -f ", path), timeout_s=STEP_S, what=f"removing from {source.mount}")
    except ClusterError as error:
        cause = " ".join(error.message.split())
        words = "it cannot be written and read"
        return Check(
            node=EVERYWHERE, check="volumes", subject=source.mount, status="failed", result=words, cause=cause,
            hint=error.hint,
        )  # fmt: skip
    names = ", ".join(node.host.name for node in readers)
    words = f"written by {head.host.name}, read by {names}"
    return Check(node=EVERYWHERE, check="volumes", subject=source.mount, status="ok", result=words)
