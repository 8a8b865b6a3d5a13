"""Answers of a hostile node are limited and validated: facts, `exec`, and the programs that set it up."""

import io
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self, cast

import pytest

from bootstrap.apply import ReadyNode, find_cluster_key
from bootstrap.environment.facts import parse_facts
from bootstrap.ssh import connection as connection_module
from bootstrap.ssh.connection import NodeConnection, drain, wait_for_exit
from bootstrap.ssh.execute import execute
from bootstrap.ssh.explain import NO_EXIT_CODE
from bootstrap.ssh.host import Host
from bootstrap.ssh.node_program import AnswerError, NodeProgram
from bootstrap.transfer.distribute import _Message
from bootstrap.verify.nodes import _Begun, _Tried
from cluster.commands.shell import Collector
from foundation.errors import ClusterError
from foundation.remote_command import RemoteCommand
from job_channels import Channel
from node_facts import HOST

FACTS = "machine=x86_64\ncores=1\npython=3.11 /usr/bin/python3\nhome=/h\n"


@dataclass
class EndlessChannel(Channel):
    """Sends its pieces, then `endless` again and again."""

    endless: bytes = b""

    def recv(self, size: int) -> bytes:
        return super().recv(size) or self.endless


@dataclass
class Connection:
    channel: EndlessChannel
    host: Host = HOST

    def open_channel(self, _command: RemoteCommand) -> EndlessChannel:
        return self.channel


def connection(*pieces: bytes, endless: bytes = b"") -> NodeConnection:
    return cast("NodeConnection", Connection(EndlessChannel(deque(pieces), endless=endless)))


# -- one command, and facts ------------------------------------------------------------------------------------------


def test_output_has_a_size_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "MAX_OUTPUT_BYTES", 1 << 20)
    with pytest.raises(TimeoutError, match="printed more than 1 MiB"):
        drain(EndlessChannel(deque(), endless=b"x" * 65536), timeout_s=60)


def test_output_has_a_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = iter(range(10**6))
    monkeypatch.setattr(time, "monotonic", lambda: float(next(moments)))
    with pytest.raises(TimeoutError, match="did not end within 60 s"):
        drain(EndlessChannel(deque(), endless=b"x"), timeout_s=60)


def test_a_command_that_only_closes_its_output_has_no_exit_code() -> None:
    running = EndlessChannel(deque())
    running.status_event.clear()
    assert wait_for_exit(running, timeout_s=0.01) == NO_EXIT_CODE


class EndlessFile(io.BytesIO):
    """A file of any size that the node claims, with endless content. asked: of the size that paramiko asks for."""

    def __init__(self, size: int | None) -> None:
        super().__init__()
        self.st_size, self.asked = size, 0

    def read(self, size: int | None = -1) -> bytes:
        return b"x" * (size or 0)

    def stat(self) -> Self:
        return self

    def prefetch(self, size: int) -> None:
        self.asked = size


@pytest.mark.parametrize(("claimed", "copied"), [(None, 0), (0, 0), (70_000, 70_000), (1 << 62, None)])
def test_a_file_has_a_size_limit(tmp_path: Path, claimed: int | None, copied: int | None) -> None:
    file, channel = EndlessFile(claimed), Channel(deque())
    session = SimpleNamespace(open=lambda *_: file, close=lambda: None, get_channel=lambda: channel)
    opened = SimpleNamespace(
        client=SimpleNamespace(open_sftp=lambda: session), transport=SimpleNamespace(is_active=lambda: True)
    )
    node, target = NodeConnection(HOST, cast("Any", opened)), tmp_path / "file"
    if copied is None:
        with pytest.raises(ClusterError, match="larger than 16 GiB"):
            node.get("file", target)
    else:
        node.get("file", target)
    assert (file.asked, target.stat().st_size) == (copied or 0, copied or 0)


@pytest.mark.parametrize(
    "line",
    ["cores=" + "9" * 5000, "cores=-1", "cores=\u0663", "glibc=2", "python=three.eleven /p", "gpu=8.6"],
)
def test_invalid_facts_are_an_error_of_one_line(line: str) -> None:
    key = line.partition("=")[0]
    kept = "".join(f"{fact}\n" for fact in FACTS.splitlines() if not fact.startswith(f"{key}="))
    with pytest.raises(ClusterError, match=r"^node-1: cannot parse the output of facts\.sh: ") as caught:
        parse_facts(f"{kept}{line}\n", node="node-1")
    assert "\n" not in caught.value.message
    assert len(caught.value.message) < 300


@pytest.mark.parametrize("key", ["", "ssh-ed25519", 'x" AAAA', "ssh-ed25519 AAAA", "ssh-rsa \u00e9"])
def test_an_invalid_key_of_the_head_is_an_error_of_one_line(key: str) -> None:
    node = SimpleNamespace(host=HOST, facts=SimpleNamespace(cluster_key=None), connection=SimpleNamespace())
    node.connection.run = lambda _: SimpleNamespace(last_line=key)
    with pytest.raises(ClusterError, match=f"^{HOST.name}: .* is no public key$"):
        find_cluster_key(cast("ReadyNode", node))


# -- programs that print lines of JSON ---------------------------------------------------------------------------------


def program(*pieces: bytes, endless: bytes = b"") -> NodeProgram:
    return NodeProgram(connection(*pieces, endless=endless), "store")


def test_a_line_has_a_size_limit() -> None:
    with pytest.raises(AnswerError, match=r"store\.py has sent a line of more than 8 MiB"):
        next(program(endless=b"x" * (1 << 21)).messages())


def test_signs_of_life_do_not_extend_a_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = iter(range(10**6))
    monkeypatch.setattr(time, "monotonic", lambda: float(next(moments)))
    with pytest.raises(AnswerError, match="did not end in time"):
        next(program(endless=b'{"alive": true}\n').messages(30.0))


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ({"listening": [99999], "refused": None, "disk": []}, _Begun),
        ({"listening": [], "refused": None, "disk": [["/", 1]]}, _Begun),
        ({"ports": [["node-0", 80]]}, _Tried),
        ({"failed": {"what": "x", "output": 7}}, _Message),
    ],
)
def test_an_invalid_message_is_an_error_of_one_line(message: dict[str, Any], kind: type) -> None:
    with pytest.raises(AnswerError, match=r"store\.py sent an invalid message: ") as caught:
        program().read(message, kind)
    assert "\n" not in caught.value.message


# -- exec --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "message", [b'{"exit": 1000}', b'{"exit": 0, "left": [null]}', b'{"out": 5}', b'{"exit": 0, "signal": -1}']
)
def test_an_invalid_answer_to_exec_is_a_failure(message: bytes) -> None:
    opened = connection(message + b"\n", endless=b"x" * 65536)
    [ending] = execute([HOST], ["true"], open_connection=lambda _: opened, sink=Collector())
    assert "exec.py sent an invalid message" in ending.error.message
