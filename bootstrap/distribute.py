"""Files to many nodes, each of which is set up as soon as it has its own: agents that take from one another."""

import hashlib
import secrets
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Self

from msgspec import Meta, Struct

from bootstrap.agents import Agent, failure
from bootstrap.connection import NodeConnection
from bootstrap.shelf import BundleFile
from bootstrap.sources import Sources
from bootstrap.swarm import Member, Swarm
from provision.errors import ClusterError
from provision.progress import Event, Report

LOCK_TIMEOUT_S = 300
IDLE_LOCK_TIMEOUT_S = 5
IDLE_TIMEOUT_S = 60.0  # for an idle node to say where it gives files
SECRET_BYTES = 32


@dataclass(frozen=True, kw_only=True, slots=True)
class SetUp:
    """What one node gets and does. `python` is any Python 3.6 or later there.

    files: what it lacks, in the order in which it is taken. holds: the digests of what it has already.
    tasks: what agent.py does then, as it takes them.
    """

    python: str
    files: Sequence[BundleFile]
    holds: Collection[str] = ()
    tasks: Sequence[Mapping[str, Any]] = ()


class Listening(Struct, frozen=True):
    """An agent listens on a port."""

    listening: Annotated[int, Meta(ge=1, le=65535)]


class _Stuck(Struct, frozen=True):
    """An agent gets a file from nobody beyond the bytes that it has."""

    stuck: str
    have: Annotated[int, Meta(ge=0)]
    why: tuple[str, ...]


class _Task(Struct, frozen=True):
    """An agent has begun a task, by its number."""

    begun: Annotated[int, Meta(ge=0)]


class _Failure(Struct, frozen=True):
    failed: dict[str, Any]


class Distribution:
    """One transfer to any number of nodes. A context manager: its agents serve one another until it is left.

    damaged: gets the files that nodes refuse because they are damaged on this machine already; they are removed.
    """

    def __init__(
        self, *, report: Report, sources: Sources | None = None, damaged: list[BundleFile] | None = None
    ) -> None:
        self._report = report
        self._sources = sources or Sources(report=report)
        self._secret = secrets.token_hex(SECRET_BYTES)
        self._swarm = Swarm()
        self._damaged = [] if damaged is None else damaged
        self._lock = threading.Lock()
        self._agents: list[Agent] = []
        self._idle: list[tuple[NodeConnection, SetUp]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        for agent in self._agents:
            agent.close()

    def set_up(self, connection: NodeConnection, wanted: SetUp) -> None:
        """Bring a node its files and have it do its tasks. Call it for all nodes side by side.

        Raises ConnectError when the node is lost, ClusterError (NodeCommandError) for what fails there.
        """
        agent = Agent(connection, python=wanted.python, order=self._order(connection, wanted))
        with self._lock:
            self._agents.append(agent)
        _Conversation(
            agent,
            wanted,
            swarm=self._swarm,
            sources=self._sources,
            wake=self._wake,
            damaged=self._damaged,
            report=self._report,
        ).follow()

    def offer(self, connection: NodeConnection, has: SetUp) -> None:
        """Name a node that lacks nothing: it gives others what it holds, if nobody else but this machine could."""
        with self._lock:
            self._idle.append((connection, has))

    def _wake(self, sha256: str) -> Member | None:
        """Have an idle node give a file; None when there is none that holds it."""
        while True:
            with self._lock:
                found = next((entry for entry in self._idle if sha256 in entry[1].holds), None)
                if found is None:
                    return None
                self._idle.remove(found)
            connection, has = found
            # Another node waits for it: not for long, should somebody else be setting that one up.
            order = {**self._order(connection, has), "lock_timeout_s": IDLE_LOCK_TIMEOUT_S}
            try:
                agent = Agent(connection, python=has.python, order=order)
                with self._lock:
                    self._agents.append(agent)
                messages = agent.messages(time.monotonic() + IDLE_TIMEOUT_S)
                said = next(message for message in messages if {"listening", "failed"} & message.keys())
                if "failed" in said:
                    raise failure(connection.host.name, said["failed"])
            except ClusterError as error:  # it was to help others; whether it is well is not what is asked here
                self._report(
                    Event(kind="warn", what=f"cannot give files to others: {error}", where=connection.host.name)
                )
                continue
            member = _member(connection, port=agent.read(said, Listening).listening, files=has.holds)
            self._swarm.join(member, ())
            return member

    def _order(self, connection: NodeConnection, wanted: SetUp) -> dict[str, Any]:
        urls = self._sources.find_urls(wanted.files)
        return {
            "address": connection.host.private_ip,
            "secret": self._secret,
            "lock_timeout_s": LOCK_TIMEOUT_S,
            "files": [
                {"sha256": f.sha256, "name": f.name, "size": f.size_bytes, "urls": urls.get(f.sha256)}
                for f in wanted.files
            ],
            "tasks": list(wanted.tasks),
        }


class _Conversation:
    """What is said with one agent."""

    def __init__(
        self,
        agent: Agent,
        wanted: SetUp,
        *,
        swarm: Swarm,
        sources: Sources,
        wake: Callable[[str], Member | None],
        damaged: list[BundleFile],
        report: Report,
    ) -> None:
        self._agent = agent
        self._host = agent.connection.host
        self._wanted = wanted
        self._files = {file.sha256: file for file in wanted.files}
        self._swarm = swarm
        self._sources = sources
        self._by_url: set[str] = set(sources.find_urls(wanted.files)) if sources.is_shared else set()
        self._wake = wake
        self._damaged = damaged
        self._report = report
        self._member: Member | None = None
        self._asked: dict[str, set[Member]] = {file.sha256: set() for file in wanted.files}

    def follow(self) -> None:
        """Until the node is done. Raises ConnectError, ClusterError."""
        try:
            for message in self._agent.messages():
                if "done" in message:
                    return
                self._answer(message)
        except BaseException:
            if self._member is not None:
                self._swarm.lose(self._member)
            self._agent.close()  # else others would wait for what it will never have
            raise

    def _answer(self, message: Mapping[str, Any]) -> None:
        if "listening" in message:
            self._join(self._agent.read(message, Listening).listening)
        elif "stuck" in message:
            stuck = self._agent.read(message, _Stuck)
            if stuck.stuck not in self._files:
                raise ClusterError(f"{self._host.name}: it asks for a file that it was not to get")
            self._help(stuck.stuck, offset=stuck.have, why=stuck.why)
        elif "begun" in message:
            begun = self._agent.read(message, _Task).begun
            if begun >= len(self._wanted.tasks):
                raise ClusterError(f"{self._host.name}: it does what it was not asked to do")
            what = self._wanted.tasks[begun]["what"]
            self._report(Event(kind="start", what=what, where=self._host.name))
        elif "failed" in message:
            said = self._agent.read(message, _Failure).failed
            if said.get("damaged") in self._files:
                _check_here(self._files[said["damaged"]], self._damaged)
            raise failure(self._host.name, said)

    def _join(self, port: int) -> None:
        self._member = _member(self._agent.connection, port=port, files={*self._wanted.holds, *self._files})
        candidates = self._swarm.join(self._member, self._files)
        if self._by_url:
            self._agent.tell(self._sources.direction())
        elif self._files:
            self._direct_to(candidates, self._files)

    def _direct_to(self, members: Sequence[Member], files: Collection[str]) -> None:
        for sha256 in files:
            self._asked[sha256].update(members)
        self._agent.tell({"peers": [[member.address, member.port] for member in members]})

    def _help(self, sha256: str, *, offset: int, why: Sequence[str]) -> None:
        """Help a node on to which nobody that it knows of gives a file."""
        file = self._files[sha256]
        if sha256 in self._by_url:
            self._sources.note_failure(file, why, node=self._host.name)
            self._upload(file, offset)
        else:
            self._feed(file, offset)

    def _feed(self, file: BundleFile, offset: int) -> None:
        sha256 = file.sha256
        asked = self._asked[sha256]
        other = self._swarm.feed(self._member, sha256, asked=asked) if self._member is not None else None
        other = other or self._wake(sha256)
        if other is not None:
            self._direct_to([other], [sha256])
            return
        if self._sources.is_for_node(file):
            self._by_url.add(sha256)
            self._agent.tell(self._sources.direction())
        else:
            self._upload(file, offset)

    def _upload(self, file: BundleFile, offset: int) -> None:
        try:
            self._agent.upload(self._sources.find_path(file), sha256=file.sha256, offset=offset)
        except OSError as error:
            raise ClusterError(
                f"{self._host.name}: {file.path} cannot be sent: {error.strerror}", hint="the same command again"
            ) from error


def _member(connection: NodeConnection, *, port: int, files: Collection[str]) -> Member:
    host = connection.host
    return Member(name=host.name, address=host.private_ip, port=port, files=frozenset(files))


def _check_here(file: BundleFile, damaged: list[BundleFile]) -> None:
    """Raise ClusterError, remove the file, and add it to `damaged`, when it is damaged on this machine already."""
    try:
        with file.path.open("rb") as stream:
            whole = hashlib.file_digest(stream, "sha256").hexdigest() == file.sha256
    except FileNotFoundError:  # another node was sent it as well
        whole = False
    if not whole:
        file.path.unlink(missing_ok=True)
        damaged.append(file)
        raise ClusterError(
            f"{file.path} was damaged; it has been removed", hint="the same command again, which fetches it anew"
        )
