"""A node's agent as a real child process, with the test as its supervisor."""

import os
import signal
import socket
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import pytest

from foundation.decode import decode
from node import job_folder, wire
from node.agent.agent import FOLDER
from node.programs import program_words
from node.protocol import JobSpec
from node.setup import process_tree
from node.train_settings import TrainSettings
from node.wire import AgentOrder, Closed, End, FromAgent, Output, Ping, Remains, RoleOrder, Start
from train.job.job_plan import new_job_id

T = TypeVar("T")


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A home folder with a short path, because that of a Unix socket below it may have at most 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="home-") as folder:
        monkeypatch.setenv("HOME", folder)
        yield Path(folder)


class NodeAgent:
    """A running agent. messages: those read so far, without pings."""

    def __init__(self, job: str, process: "subprocess.Popen[bytes]", plug: socket.socket) -> None:
        self.job, self.process, self._plug = job, process, plug
        self._lines = plug.makefile("rb")
        self.messages: list[Any] = []
        self._taken: Counter[int] = Counter()  # the lines returned so far, by process

    @property
    def socket(self) -> str:
        """The path to which shims connect."""
        return f"{FOLDER}{self.job}-0/socket"

    def send(self, message: Any) -> None:
        self._plug.sendall(wire.encode(message))

    def start(self, *words: str, p: int = 0, shim: int | None = None, keep: bool = False, **more: Any) -> None:
        """Has it start a process, by default one with one command."""
        order = make_order(self.job, **{"commands": (words,), **more})
        self.send(Start(p, order, shim, keep))

    def read(self) -> Any:
        """Returns the next message except a ping; None at the end."""
        for line in self._lines:
            message: Any = decode(line, FromAgent)  # type: ignore[arg-type] # a union
            if message != Ping():
                self.messages.append(message)
                return message
        return None

    def has_ping(self) -> bool:
        """Reads up to the next ping of a host that copies no files. Returns whether it is among five messages."""
        found: Any = (decode(line, FromAgent) for line in islice(self._lines, 5))  # type: ignore[arg-type] # a union
        return any(isinstance(message, Ping) and not message.is_copying for message in found)

    def read_until(self, kind: type[T], p: int | None = None) -> T:
        """Reads up to the next message of this kind, of process `p` if given, and returns it."""
        while (message := self.read()) is not None:
            if isinstance(message, kind) and p in (None, getattr(message, "p", None)):
                return message
        raise AssertionError(self.messages)

    def read_line(self, p: int = 0) -> str:
        """Returns the next line of output of process `p`."""
        at = self._taken[p]
        self._taken[p] += 1
        while len(self.lines(p)) <= at:
            self.read_until(Output, p)
        return self.lines(p)[at]

    def lines(self, p: int = 0) -> list[str]:
        """The lines of output of process `p` among the messages read so far."""
        return [line for one in self.messages if isinstance(one, Output) and one.p == p for line in one.lines]

    def end(self) -> Closed:
        """Ends it as the supervisor does; returns its last message."""
        self.send(End())
        closed = self.read_until(Closed)
        assert self.process.wait(timeout=30) == 0
        return closed

    def hang_up(self) -> None:
        """Ends the connection, and waits until it has ended."""
        self._lines.close()
        self._plug.close()
        self.process.wait(timeout=30)


def make_order(job: str, **more: Any) -> RoleOrder:
    folder = job_folder.path(job, "work")
    fields: dict[str, Any] = {"role": "worker", "commands": (("true",),), "env": {"X": "it's"}}
    return RoleOrder(**{**fields, "folder": folder, **more})


def make_agent_order(job: str, *, train: Mapping[str, Any] | None = None, **more: Any) -> AgentOrder:
    settings = TrainSettings(**{"launcher": "env", **(train or {})})
    spec = JobSpec(id=job, name="mine", workers=1, servers=0, train=settings)
    return AgentOrder(**{"spec": spec, "number": 0, "host": "node-0", "cwd": job_folder.path(job, "work"), **more})


@contextmanager
def run_agent(**more: Any) -> Iterator[NodeAgent]:
    """Runs an agent as the supervisor does, with one socket as stdin and stdout. more: see make_agent_order.

    words: of another program that runs it.
    """
    job, words = more.pop("job", None) or new_job_id(), more.pop("words", program_words("agent"))
    order = make_agent_order(job, **more)
    ours, theirs = socket.socketpair()
    ours.settimeout(60)
    env = {**os.environ, process_tree.JOB_VARIABLE: job}
    with subprocess.Popen(words, stdin=theirs.fileno(), stdout=theirs.fileno(), env=env) as process:
        theirs.close()
        running = NodeAgent(job, process, ours)
        running.send(order)
        try:
            yield running
            running.hang_up()
        finally:
            process.kill()
            for pid, _, _ in process_tree.find(job):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
    ours.close()


def end_from_outside(job: str) -> list[Any]:
    """Ends a job's processes as the supervisor does by ssh. Returns those that remain."""
    words = program_words("agent", "end", job)
    return decode(subprocess.run(words, capture_output=True, check=True).stdout, Remains).left
