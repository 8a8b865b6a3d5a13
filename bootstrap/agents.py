"""The program that sets up a node (node/agent.py), as this machine talks with it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct, ValidationError, convert

from bootstrap.connection import NodeConnection
from bootstrap.explain import render_last_lines
from bootstrap.node_program import NodeProgram
from provision.errors import ClusterError, NodeCommandError

MODULES = ("scripts", "store", "chain", "urls", "unpack_tree", "place_tree", "agent")
UPLOAD_BYTES = 1 << 18


class Agent(NodeProgram):
    """The agent on one node."""

    def __init__(self, connection: NodeConnection, *, python: str, order: Mapping[str, Any]) -> None:
        super().__init__(connection, python=python, modules=MODULES)
        self.tell(order)

    def upload(self, path: Path, *, sha256: str, offset: int) -> None:
        """Send a file from an offset on. Raises ConnectError, and OSError for the file here.

        An agent that fails meanwhile hangs up: then this returns, and `messages` has what it said.
        """
        with path.open("rb") as source:
            size = source.seek(0, 2) - offset
            source.seek(offset)
            self.tell({"upload": sha256, "offset": offset, "size": size})
            while data := source.read(UPLOAD_BYTES):
                if self._channel.closed or self._channel.recv_ready():
                    self._receive()
                if self._channel.exit_status_ready():
                    return
                self._send(data)


class _Failed(Struct, frozen=True):
    what: str
    exit_code: int | None = None
    output: tuple[str, ...] = ()


class BaseChangedError(ClusterError):
    """A tree that another was to be made from is not on the node any more as it was sent."""


def failure(node: str, said: Mapping[str, Any]) -> ClusterError:
    """The error for what an agent says of its failure. Pure."""
    try:
        failed = convert(said, _Failed)
    except ValidationError as error:
        return ClusterError(f"{node}: it failed, and why cannot be understood: {error}", hint="the same command again")
    if "base_changed" in said:
        return BaseChangedError(f"{node}: {failed.what}")
    code = failed.exit_code
    if code is None:
        return ClusterError(f"{node}: {failed.what}", hint=_find_hint(failed.what))
    ending = f"exit code {code} from:" if code >= 0 else f"killed by signal {-code}:"
    return NodeCommandError(f"{node}: {ending} {failed.what}{render_last_lines(failed.output)}")


def _find_hint(what: str) -> str | None:
    if "No space left" in what or "quota" in what:
        return "free some space there, or set a larger [provision] volume_size_gib and make the cluster anew"
    return "the same command again"
