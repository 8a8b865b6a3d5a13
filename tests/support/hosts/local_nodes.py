"""Nodes whose commands run on this host, and a fake MXNet for the programs that run there."""

import atexit
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, cast

import pytest
from msgspec.structs import replace

from bootstrap.apply import ReadyNode
from bootstrap.ssh.host import Host
from bootstrap.verify.checks import Check
from foundation.errors import ConnectError
from foundation.remote_command import RemoteCommand
from job_world import node
from node_facts import FACTS
from project import REPOSITORY


class LocalChannel:
    """A command on this host, with the methods of paramiko's Channel that the product calls."""

    def __init__(self, command: str, env: Mapping[str, str] | None = None) -> None:
        self._ours, theirs = socket.socketpair()
        self.process = subprocess.Popen(
            ["/bin/sh", "-c", command],
            stdin=theirs.fileno(),
            stdout=theirs.fileno(),
            stderr=subprocess.PIPE,
            env=env,
            start_new_session=True,
        )
        theirs.close()
        assert self.process.stderr is not None
        self._stderr = self.process.stderr
        self.closed = False
        self.settimeout = self._ours.settimeout

    def sendall(self, data: bytes) -> None:
        self._ours.sendall(data)

    def shutdown_write(self) -> None:
        self._ours.shutdown(socket.SHUT_WR)

    def recv_ready(self) -> bool:
        return bool(select.select([self._ours], [], [], 0)[0])

    def recv(self, size: int) -> bytes:
        with suppress(ConnectionResetError):  # it ended without reading all of its input
            return self._ours.recv(size)
        return b""

    def recv_stderr_ready(self) -> bool:
        ready = select.select([self._stderr], [], [], 0)[0]
        return bool(ready) and bool(self._stderr.peek(1))  # type: ignore[attr-defined]

    def recv_stderr(self, size: int) -> bytes:
        return cast("bytes", self._stderr.read1(size))  # type: ignore[attr-defined]

    @property
    def status_event(self) -> threading.Event:
        self.process.wait(30)
        ended = threading.Event()
        ended.set()
        return ended

    def exit_status_ready(self) -> bool:
        return self.process.poll() is not None

    def recv_exit_status(self) -> int:
        return max(-1, self.process.wait(30))

    def close(self) -> None:
        self.closed = True
        with suppress(OSError):
            self._ours.shutdown(socket.SHUT_RDWR)

    def end(self) -> None:
        """Kills the command and everything in its process group."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self._ours.close()
        self._stderr.close()


@cache
def runtime_folder() -> str:
    """A folder in place of a node's ~/.cluster/runtime, with this checkout as its only runtime."""
    folder = Path(tempfile.mkdtemp(prefix="runtimes-"))
    atexit.register(shutil.rmtree, folder)
    make_runtime(folder / "here")
    return str(folder)


def make_runtime(folder: Path) -> None:
    """Makes a runtime whose code is this checkout, and whose Python is that of the tests."""
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (folder / "bin" / "python").chmod(0o755)
    (folder / "node").symlink_to(REPOSITORY / "node")
    (folder / ".complete").touch()


class LocalConnection:
    """Opens channels on this host, and records them for the test."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.channels: list[LocalChannel] = []

    def open_channel(self, command: RemoteCommand) -> LocalChannel:
        self.channels.append(LocalChannel(command.text.replace("$HOME/.cluster/runtime", runtime_folder())))
        return self.channels[-1]


class LostConnection:
    def open_channel(self, _command: RemoteCommand) -> LocalChannel:
        raise ConnectError("node-2 (198.18.0.9): the connection is lost", hint="cluster status")


def local_node(index: int, connection: object = None, **facts: Any) -> ReadyNode:
    """A node with a loopback address of its own."""
    made = node(index)
    host = replace(made.host, private_ip=f"127.0.0.{index + 2}")
    return replace(
        made,
        host=host,
        connection=cast("Any", connection or LocalConnection(host)),
        facts=replace(FACTS, python=sys.executable, **facts),
        python=sys.executable,
        code_dir=str(REPOSITORY),
    )


def channels(nodes: list[ReadyNode]) -> list[LocalChannel]:
    return [channel for one in nodes for channel in getattr(one.connection, "channels", [])]


@pytest.fixture
def nodes() -> Iterator[list[ReadyNode]]:
    made = [local_node(index) for index in range(3)]
    yield made
    for channel in channels(made):
        channel.end()


FakeMXNet = Callable[[str], None]
MXNET = """
import os, time
__version__ = "1.7.0"
class MXNetError(Exception): pass
class Anything(object):
    def __init__(self, **given): self.__dict__.update(given)
class Array(object):
    def __init__(self, value): self.value = value
    def __mul__(self, other): return Array(self.value * other)
    def __add__(self, other): return Array(self.value + other)
    def asnumpy(self): return self
    def tolist(self): return [[self.value] * 3] * 2
base = Anything(MXNetError=MXNetError)
gpus = 0
context = Anything(num_gpus=lambda: gpus)
def cpu(): return "cpu(0)"
def gpu(index): return "gpu(%d)" % index
def ones(shape, ctx): return Array(1.0)
def MXRecordIO(uri, mode): raise MXNetError("src/io/filesys.cc: Please compile with DMLC_USE_S3=1 to use " + uri)
recordio = Anything(MXRecordIO=MXRecordIO)
"""


@pytest.fixture
def fake_mxnet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeMXNet:
    """Installs a fake MXNet that works. The returned function writes it again with more lines."""

    def put(more: str) -> None:
        (tmp_path / "mxnet.py").write_text(f"{MXNET}\n{more}\nnd = Anything(ones=ones)\n")

    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    put("")
    return put


def of_kind(checks: tuple[Check, ...], kind: str) -> list[Check]:
    return [check for check in checks if check.check == kind]
