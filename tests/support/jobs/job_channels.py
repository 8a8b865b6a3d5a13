"""A head whose jobs.py is a Python function, behind channels like paramiko's."""

import json
import shlex
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

from msgspec import convert, to_builtins

from foundation.remote_command import RemoteCommand
from job_host import place_processes
from node.protocol import JobHost, Order
from train.follow.head import Head

BROKEN = -1  # paramiko's exit code for a command whose connection was lost

ROLES = [
    {"t": 1.0, "state": "starting"},
    {"t": 1.5, "p": 0, "role": "worker", "host": "node-0"},
    {"t": 1.6, "p": 1, "role": "worker", "host": "node-1"},
    {"t": 2.0, "p": 0, "pid": 10},
    {"t": 2.1, "p": 1, "line": "early"},
    {"t": 2.2, "p": 1, "rank": 0},
    {"t": 2.2, "p": 0, "rank": 1},
    {"t": 2.3, "state": "running"},
    {"t": 3.0, "p": 1, "line": 'says "alive" and "error": {"alive": true}'},
    {"t": 3.0, "p": 0, "line": "ünïcode"},
    {"t": 3.1, "message": "words"},
    {"t": 3.2, "p": 0, "exit": 0, "signal": None},
    {"t": 3.2, "p": 1, "exit": 0, "signal": None},
    {"t": 3.3, "result": {"state": "done", "exit_code": 0, "error": None, "left": {}}},
]
ALIVE = b'{"alive":true}\n'


def encode(messages: Iterable[Any]) -> bytes:
    return b"".join(json.dumps(message).encode() + b"\n" for message in messages)


LOG = encode(ROLES)


@dataclass
class Channel:
    """The output of one run of jobs.py: pieces (None: a pause), then its exit code."""

    pieces: deque[bytes | None]
    exit_code: int = 0
    stderr: bytes = b""
    got: bytes = b""
    closed: bool = False
    status_event: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.status_event.set()

    def settimeout(self, _timeout_s: float) -> None:
        pass

    def sendall(self, data: bytes) -> None:
        self.got += data

    def shutdown_write(self) -> None:
        pass

    def recv(self, _size: int) -> bytes:
        if not self.pieces:
            return b""
        piece = self.pieces.popleft()
        if piece is None:
            raise TimeoutError
        return piece

    def recv_exit_status(self) -> int:
        return self.exit_code

    def recv_stderr_ready(self) -> bool:
        return bool(self.stderr)

    def recv_stderr(self, _size: int) -> bytes:
        message, self.stderr = self.stderr, b""
        return message

    def close(self) -> None:
        self.closed = True


def channel(*pieces: bytes | None, exit_code: int = 0, stderr: bytes = b"") -> Channel:
    return Channel(deque(pieces), exit_code=exit_code, stderr=stderr)


@dataclass
class FakeHead:
    """Calls `answer` with the arguments of each run of jobs.py; the next connections raise the errors in `refuse`."""

    answer: Callable[[Sequence[str]], Channel]
    refuse: list[Exception] = field(default_factory=list)
    asked: list[list[str]] = field(default_factory=list)
    channels: list[Channel] = field(default_factory=list)
    connected: int = 0
    host: SimpleNamespace = field(default_factory=lambda: SimpleNamespace(name="node-0", address="10.0.0.1", spec=None))

    def make(self) -> Head:
        return Head(name="node-0", connect=cast("Any", self._connect))

    def _connect(self) -> "FakeHead":
        if self.refuse:
            raise self.refuse.pop(0)
        self.connected += 1
        return self

    def open_channel(self, command: RemoteCommand) -> Channel:
        words = shlex.split(command.text.partition("set -- ")[2].splitlines()[0])
        self.asked.append(words[2:])  # after the runtime's digest and the program's name
        made = self.answer(self.asked[-1])
        self.channels.append(made)
        return made

    def close(self) -> None:
        pass


def make_agents(order: Order) -> dict[str, Any]:
    """Connections to agents on a job's hosts, for code that sends them nothing."""
    return {host.name: SimpleNamespace(host=host, is_open=True) for host in order.hosts}


def make_order(**changes: Any) -> Order:
    """The order of a job with one worker, with its processes placed on its hosts."""
    given: dict[str, Any] = {"job": "j1", "name": "mine", "python": "python", "workers": 1, "servers": 0, "env": {}}
    flat = {**given, "hosts": (JobHost(name="node-0"),), "command": ("true",), "cwd": "/", **changes}
    return convert(place_processes(to_builtins(flat)), Order)
