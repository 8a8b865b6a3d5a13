"""Real agents (node/setup/agent.py) on loopback addresses, each with its own home, without ssh."""

import hashlib
import json
import os
import shlex
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Self

import pytest

from bootstrap.environment.file_cache import BundleFile, describe_file
from bootstrap.ssh.connection import NodeConnection
from bootstrap.ssh.host import Host
from bootstrap.ssh.node_program import LOADER
from bootstrap.transfer.distribute import MODULES, Distribution, SetUp
from foundation.progress import silent
from foundation.remote_command import RemoteCommand
from local_nodes import LocalChannel
from waits import until

PROGRAMS = Path(__file__).parents[3] / "node" / "setup"
SOURCES = json.dumps([(name, (PROGRAMS / f"{name}.py").read_text()) for name in MODULES]).encode() + b"\n"
SECRET = "5e" * 32
PATIENCE_S = 30.0


def digest_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def entry(data: bytes, name: str = "some.whl") -> dict[str, Any]:
    """A file in an agent's order."""
    return {"sha256": digest_of(data), "name": name, "size": len(data)}


def script(text: str, what: str = "a script", **more: Any) -> dict[str, Any]:
    return {"kind": "script", "what": what, "text": text, "silence_s": 60, **more}


def hold(home: Path, data: bytes, name: str = "some.whl") -> None:
    """Puts a file into a node's store."""
    folder = home / ".cluster" / "files" / digest_of(data)
    folder.mkdir(parents=True)
    (folder / name).write_bytes(data)


class RawAgent(LocalChannel):
    """An agent to which the test sends each message."""

    def __init__(
        self,
        home: Path,
        *files: Mapping[str, Any],
        address: str = "127.0.0.1",
        tasks: Iterable[Mapping[str, Any]] = (),
        secret: str = SECRET,
        lock_timeout_s: float = 10,
    ) -> None:
        home.mkdir(exist_ok=True)
        self.home = home
        self.address = address
        self.port = 0
        words = shlex.join([sys.executable, "-c", LOADER])
        super().__init__(f"exec {words}", {"HOME": str(home), "PATH": os.environ["PATH"]})
        self.settimeout(PATIENCE_S)
        self._lines = self._ours.makefile("rb")
        self.sendall(SOURCES)
        order = {"address": address, "secret": secret, "lock_timeout_s": lock_timeout_s, "files": files}
        self.send_message({**order, "tasks": list(tasks)})

    def send_message(self, message: Mapping[str, Any]) -> None:
        self.sendall(json.dumps(message).encode() + b"\n")

    def read_message(self) -> dict[str, Any]:
        """The next message, which may be a sign of life."""
        line = self._lines.readline()
        assert line, f"it ended: {self.errors()}"
        message: dict[str, Any] = json.loads(line)
        return message

    def expect(self, *kinds: str) -> Any:
        """Waits for messages of these kinds, ignoring signs of life; returns the value of the last one."""
        for kind in kinds:
            message = self._next()
            assert kind in message, message
        return message[kinds[-1]]

    def _next(self) -> dict[str, Any]:
        while "alive" in (message := self.read_message()):
            pass
        return message

    def listen(self) -> "RawAgent":
        self.port = self.expect("listening")
        return self

    def take_from(self, *peers: tuple[str, int]) -> None:
        self.send_message({"peers": list(peers)})

    @property
    def peer(self) -> tuple[str, int]:
        return self.address, self.port

    def upload(self, data: bytes, *, offset: int = 0, until: int | None = None) -> None:
        """Sends the bytes from an offset on; those after `until` are announced but not sent."""
        self.send_message({"upload": digest_of(data), "offset": offset, "size": len(data) - offset})
        self.sendall(data[offset:until])

    def path(self, data: bytes, name: str = "some.whl") -> Path:
        return self.home / ".cluster" / "files" / digest_of(data) / name

    def arrived_bytes(self, data: bytes) -> int:
        """The number of the file's bytes on the agent's disk."""
        for path in (self.path(data), self.home / ".cluster" / "incoming" / digest_of(data)):
            try:
                return path.stat().st_size
            except FileNotFoundError:
                continue
        return 0

    def send(self, number: signal.Signals = signal.SIGKILL) -> None:
        self.process.send_signal(number)

    def errors(self) -> str:
        return str(self._stderr.read().decode())

    def hang_up(self) -> int:
        """Closes the agent's stdin; returns its exit code."""
        with suppress(OSError):  # it has ended
            self.shutdown_write()
        return int(self.process.wait(PATIENCE_S))

    def end(self) -> None:
        super().end()
        self._lines.close()


StartAgent = Callable[..., RawAgent]


@pytest.fixture
def start_agent() -> Iterator[StartAgent]:
    """Starts agents, with RawAgent's arguments, and ends them after the test."""
    agents: list[RawAgent] = []

    def start(*arguments: Any, **options: Any) -> RawAgent:
        agents.append(RawAgent(*arguments, **options))
        return agents[-1]

    yield start
    for agent in agents:
        agent.end()


class GatedChannel(LocalChannel):
    """Counts the bytes of files that are sent to the command, and lets a Gate hold them back."""

    def __init__(self, command: str, env: Mapping[str, str], gate: "Gate") -> None:
        super().__init__(command, env)
        self.sent_bytes = 0
        self._gate = gate

    def sendall(self, data: bytes) -> None:
        if not data.endswith((b"}\n", b"]\n")):  # not a message
            self._gate.pass_(len(data))
        super().sendall(data)
        self.sent_bytes += len(data)


class Gate:
    """Blocks uploads after `limit_bytes` until it is opened, so that a test can act in between."""

    def __init__(self, limit_bytes: int | None = None) -> None:
        self._opened = threading.Event()
        self._left = limit_bytes
        self._lock = threading.Lock()
        self.reached = threading.Event()
        if limit_bytes is None:
            self.open()

    def open(self) -> None:
        self._opened.set()

    def pass_(self, count: int) -> None:
        if self._left is not None:
            with self._lock:
                self._left -= count
                shut = self._left < 0
            if shut:
                self.reached.set()
                assert self._opened.wait(PATIENCE_S)


class LocalNode(NodeConnection):
    """A node without ssh."""

    def __init__(self, root: Path, number: int, gate: Gate) -> None:
        self.home = root / f"node-{number}"
        self.home.mkdir(parents=True, exist_ok=True)
        address = f"127.0.0.{number + 1}"
        self.host = Host(
            name=f"node-{number}", instance_id=f"i-{number}", address=address, private_ip=address, user="x",
            is_head=not number,
        )  # fmt: skip
        self.channels: list[GatedChannel] = []
        self.limit = ":"
        self.profile = ":"
        self._gate = gate

    def open_channel(self, command: RemoteCommand) -> Any:
        text = f"{self.limit}; {self.profile}; {command.text}"
        env = {"HOME": str(self.home), "PATH": os.environ["PATH"]}
        self.channels.append(GatedChannel(text, env, self._gate))
        return self.channels[-1]

    @property
    def agent(self) -> GatedChannel:
        return self.channels[-1]

    def path(self, file: BundleFile) -> Path:
        return self.home / ".cluster" / "files" / file.sha256 / file.name

    def has(self, file: BundleFile) -> bool:
        return self.path(file).exists() and describe_file(self.path(file)).sha256 == file.sha256

    def arriving_bytes(self, file: BundleFile) -> int:
        try:
            return (self.home / ".cluster" / "incoming" / file.sha256).stat().st_size
        except FileNotFoundError:
            return 0


class Nodes:
    """Nodes that get files from the real Distribution."""

    def __init__(self, root: Path, count: int, *, gate_bytes: int | None = None) -> None:
        self.gate = Gate(gate_bytes)
        self.all = [LocalNode(root, number, self.gate) for number in range(count)]
        self.errors: dict[str, BaseException] = {}
        self.distribution = Distribution(report=silent)
        self._threads: dict[str, threading.Thread] = {}

    def start(self, *nodes: LocalNode, **wanted: Any) -> None:
        """Starts some nodes one after the other, so that they join the chain in this order."""
        for node in nodes:
            thread = threading.Thread(target=self._set_up, args=(node, SetUp(python=sys.executable, **wanted)))
            thread.start()
            self._threads[node.host.name] = thread
            until(partial(self.joined, node), "it does not join")

    def joined(self, node: LocalNode) -> bool:
        members = self.distribution._peers
        return node.host.name in self.errors or any(member.address == node.host.private_ip for member in members)

    def _set_up(self, node: LocalNode, wanted: SetUp) -> None:
        try:
            self.distribution.set_up(node, wanted)
        except BaseException as error:  # noqa: BLE001 - the test checks it
            self.errors[node.host.name] = error

    def join(self) -> dict[str, BaseException]:
        """Waits for all nodes; returns the errors by node."""
        for thread in self._threads.values():
            thread.join(PATIENCE_S)
            assert not thread.is_alive()
        return self.errors

    def uploaded_bytes(self) -> int:
        return sum(channel.sent_bytes for node in self.all for channel in node.channels)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.gate.open()
        self.distribution.__exit__(None, None, None)
        for node in self.all:
            for channel in node.channels:
                channel.end()
