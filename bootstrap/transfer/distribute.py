"""Distributes files to many nodes, which pass them on to each other, and sets up each node once it has its files.

The nodes form a chain, in the order in which they become ready. Each takes files from the node before it, and also
knows the earlier nodes in case that node dies. What none of them has comes from sources.py.
"""

import hashlib
import math
import secrets
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Annotated, Any, Self

from msgspec import Meta, Struct

from bootstrap.environment.file_cache import BundleFile
from bootstrap.ssh.connection import NodeConnection
from bootstrap.ssh.explain import FULL, SPACE_HINT, find_sudo_hint
from bootstrap.ssh.node_program import LOADER, NodeProgram, read_modules
from bootstrap.transfer import sources
from bootstrap.transfer.sources import Sources
from foundation.errors import ClusterError, NodeCommandError, render_last_lines
from foundation.progress import Event, Report
from foundation.remote_command import run_program

MODULES = ("store", "chain", "urls", "place_tree", "agent")
UPLOAD_BYTES = 1 << 18
LOCK_TIMEOUT_S = 300
IDLE_LOCK_TIMEOUT_S = 5
IDLE_TIMEOUT_S = 60.0  # for an idle node to start serving files
SECRET_BYTES = 32
CANDIDATES_AT_MOST = 32


class Failure(Struct, frozen=True):
    """An agent's report of its failure."""

    what: str
    exit_code: int | None = None
    output: tuple[str, ...] = ()


class _Message(Struct, frozen=True):
    """A message of an agent; one of these is set.

    listening: its port. stuck: the digest of a file of which none of its sources provides more than the `have` bytes
    that it has. begun: the index of a task. notice: a line for the user.
    """

    listening: Annotated[int, Meta(ge=1, le=65535)] | None = None
    stuck: str | None = None
    have: Annotated[int, Meta(ge=0)] = 0
    why: tuple[str, ...] = ()
    begun: Annotated[int, Meta(ge=0)] | None = None
    notice: str | None = None
    failed: Failure | None = None
    done: bool = False


def failure(node: str, failed: Failure) -> ClusterError:
    """The error for an agent's report of its failure. Pure."""
    code, text = failed.exit_code, "\n".join([failed.what, *failed.output])
    hint = SPACE_HINT if FULL.search(text) else find_sudo_hint(node, text)
    if code is None:
        return ClusterError(f"{node}: {failed.what}", hint=hint or "run the command again")
    ending = f"exit code {code} from:" if code >= 0 else f"killed by signal {-code}:"
    return NodeCommandError(f"{node}: {ending} {failed.what}{render_last_lines(failed.output)}", hint=hint)


class SetUp(Struct, frozen=True, kw_only=True):
    """The files and tasks of one node. `python` is any Python 3.6 or later on the node.

    files: the missing files, in the order in which the node takes them. holds: digests of the files that it has.
    tasks: the tasks that agent.py runs afterwards, in its own format.
    """

    python: str
    files: Sequence[BundleFile]
    holds: Collection[str] = ()
    tasks: Sequence[Mapping[str, Any]] = ()


class Peer(Struct, frozen=True, kw_only=True):
    """A node whose agent listens. `files`: digests of the files that it has or is receiving."""

    address: str
    port: int
    files: frozenset[str]


class Distribution:
    """One transfer to any number of nodes. A context manager: its agents serve one another until its end."""

    def __init__(self, *, report: Report) -> None:
        self.report = report
        self.sources = Sources(report=report)
        self._secret = secrets.token_hex(SECRET_BYTES)
        self._lock = threading.Lock()
        self._peers: list[Peer] = []
        self._lost: set[str] = set()
        self._agents: list[SetUpAgent] = []
        self._idle: list[tuple[NodeConnection, SetUp]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        for agent in self._agents:
            agent.close()

    def set_up(self, connection: NodeConnection, wanted: SetUp) -> None:
        """Sends a node its files and runs its tasks. Call it for all nodes at the same time.

        Raises ConnectError if the node is lost, and ClusterError (NodeCommandError) for failures on the node.
        """
        self.sources.expect(wanted.files)
        self._start(connection, wanted).follow()

    def offer(self, connection: NodeConnection, has: SetUp) -> None:
        """Registers an idle node, which has all its files. It serves them to other nodes, so this machine need not."""
        with self._lock:
            self._idle.append((connection, has))

    def wake(self, sha256: str) -> Peer | None:
        """Starts an agent on an idle node that has a file; None if there is no such node."""
        while True:
            with self._lock:
                found = next((entry for entry in self._idle if sha256 in entry[1].holds), None)
                if found is None:
                    return None
                self._idle.remove(found)
            connection, has = found
            try:
                # Another node waits for it, so it waits only briefly for another command that is setting it up.
                agent = self._start(connection, has, lock_timeout_s=IDLE_LOCK_TIMEOUT_S)
                return agent.wait_for_peer(time.monotonic() + IDLE_TIMEOUT_S)
            except ClusterError as error:  # the transfer works without this node
                self.report(
                    Event(kind="warn", what=f"cannot give files to others: {error}", where=connection.host.name)
                )

    def join(self, peer: Peer, missing: Collection[str]) -> tuple[Peer, ...]:
        """Adds a node. Returns the nodes that have or are receiving any of its missing files, the last to join first.

        Nodes take only from those that joined before them, so there is no cycle.
        """
        with self._lock:
            known = [one for one in reversed(self._peers) if one.files & {*missing} and one.address not in self._lost]
            self._peers.append(peer)
            self._lost.discard(peer.address)  # it has come back
        return tuple(known[:CANDIDATES_AT_MOST])

    def lose(self, peer: Peer) -> None:
        """Notes that a node is gone."""
        with self._lock:
            self._lost.add(peer.address)

    def _start(
        self, connection: NodeConnection, wanted: SetUp, *, lock_timeout_s: float = LOCK_TIMEOUT_S
    ) -> "SetUpAgent":
        agent = SetUpAgent(connection, wanted, self)
        agent.begin(secret=self._secret, lock_timeout_s=lock_timeout_s)
        with self._lock:
            self._agents.append(agent)
        return agent


class SetUpAgent(NodeProgram):
    """The agent on one node: the only program that runs there without the runtime, which it places."""

    def __init__(self, connection: NodeConnection, wanted: SetUp, distribution: Distribution) -> None:
        super().__init__(connection, "agent", command=run_program(wanted.python, "-c", LOADER))
        self._host = connection.host
        self._wanted = wanted
        self._distribution = distribution
        self._files = {file.sha256: file for file in wanted.files}
        self._by_url: set[str] = set()
        self._peer: Peer | None = None

    def begin(self, *, secret: str, lock_timeout_s: float) -> None:
        """Sends the program and its order. Raises ConnectError."""
        self.send(read_modules(MODULES))
        files = [
            {"sha256": file.sha256, "name": file.name, "size": file.size_bytes, "urls": file.urls}
            for file in self._wanted.files
        ]
        order = {"address": self._host.private_ip, "secret": secret, "lock_timeout_s": lock_timeout_s}
        self.send_message({**order, "files": files, "tasks": list(self._wanted.tasks)})

    def follow(self) -> None:
        """Answers the agent's messages until the node is done. Raises ConnectError, ClusterError."""
        try:
            for message in self._talk():
                if message.done:
                    return
                self._answer(message)
        except BaseException:
            if self._peer is not None:
                self._distribution.lose(self._peer)
            self.close()  # otherwise other nodes would wait for files that it will never have
            raise

    def wait_for_peer(self, deadline: float) -> Peer:
        """Waits until an idle node serves its files. Raises as `messages`, and its failure."""
        for message in self._talk(deadline):
            self._answer(message)
            if self._peer is not None:
                return self._peer
        raise AssertionError  # messages never ends by itself

    def _talk(self, deadline: float = math.inf) -> "Iterator[_Message]":
        return (self.read(message, _Message) for message in self.messages(deadline))

    def _answer(self, message: _Message) -> None:
        host, report = self._host.name, self._distribution.report
        if message.listening is not None:
            self._join(message.listening)
        elif message.stuck is not None:
            if message.stuck not in self._files:
                raise ClusterError(f"{host}: it asked for a file that is not meant for it")
            self._help(message.stuck, offset=message.have, why=message.why)
        elif message.begun is not None:
            if message.begun >= len(self._wanted.tasks):
                raise ClusterError(f"{host}: it started a task that it was not given")
            report(Event(kind="start", what=self._wanted.tasks[message.begun]["what"], where=host))
        elif message.notice is not None:
            report(Event(kind="warn", what=message.notice, where=host))
        elif message.failed is not None:
            raise failure(host, message.failed)

    def _join(self, port: int) -> None:
        files = frozenset({*self._wanted.holds, *self._files})
        self._peer = Peer(address=self._host.private_ip, port=port, files=files)
        candidates = self._distribution.join(self._peer, self._files)
        if self._files:
            self._direct_to(candidates)

    def _direct_to(self, peers: Sequence[Peer]) -> None:
        self.send_message({"peers": [[peer.address, peer.port] for peer in peers]})

    def _help(self, sha256: str, *, offset: int, why: Sequence[str]) -> None:
        """Names another source for a file that none of the node's sources provides, or uploads the file."""
        file = self._files[sha256]
        if sha256 in self._by_url:
            self._distribution.sources.note_failure(why, node=self._host.name)
            self._upload(file, offset)
        elif (other := self._distribution.wake(sha256)) is not None:
            self._direct_to([other])
        elif self._distribution.sources.is_for_node(file):
            self._by_url.add(sha256)
            self.send_message({"index": True, "first_s": sources.FIRST_S})
        else:
            self._upload(file, offset)

    def _upload(self, file: BundleFile, offset: int) -> None:
        """Sends a file, starting at an offset. Raises ConnectError, ClusterError; OSError for the file on this machine.

        If the agent fails meanwhile, this method returns, and `messages` yields the failure. A damaged file is removed:
        the node takes none, and asks again, from the first byte on.
        """
        digest = hashlib.sha256()
        with self._distribution.sources.find_path(file).open("rb") as source:
            size = source.seek(0, 2) - offset
            source.seek(offset)
            self.send_message({"upload": file.sha256, "offset": offset, "size": size})
            while data := source.read(UPLOAD_BYTES):
                if self._channel.closed or self._channel.recv_ready():
                    self._receive_lines()
                if self._channel.exit_status_ready():
                    return
                digest.update(data)
                self.send(data)
        if offset == 0 and digest.hexdigest() != file.sha256:
            file.path.unlink(missing_ok=True)
            hint = "run the command again: it fetches the file again"
            raise ClusterError(f"{file.path} was damaged and has been removed", hint=hint)
