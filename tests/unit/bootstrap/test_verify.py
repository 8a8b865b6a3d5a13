"""`cluster verify`: what is found, by tables; and the real programs on nodes that are processes of this host.

MXNet is a stand-in where its faults cannot be made for real: a GPU, an abort, a library that is missing.
"""

import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

import bootstrap.verify.checks
import bootstrap.verify.nodes
from bootstrap.apply import ReadyNode
from bootstrap.environment.facts import Checked
from bootstrap.ssh.connection import NodeConnection
from bootstrap.ssh.host import Host
from bootstrap.verify.checks import (
    MAX_APART_S,
    Attempt,
    Check,
    Offset,
    Probe,
    ProbeResult,
    check_clocks,
    check_compute,
    check_disk,
    check_ports,
    estimate_offset,
    find_wrong,
    summarize_error,
)
from bootstrap.verify.nodes import sort_checks, verify
from cluster.commands.verify import render_checks, render_troubles
from foundation.errors import ConnectError
from foundation.progress import silent
from node_facts import FACTS, NODE_PROGRAMS
from s3_server import serve_s3
from train.measure.verify_s3 import check_s3, choose_object, explain_error, plan_s3_check, s3_probe
from train.s3.client import S3Object
from train.s3.environment import S3Access
from train.s3.url import parse_url
from waits import until

sys.path.insert(0, str(NODE_PROGRAMS))  # by path, as on the nodes
import verify as node_ports

SECRET = "0123456789abcdef"
V100 = ("7.0", "Tesla V100")


class LocalChannel:
    """A command of this host behind the part of paramiko's Channel that is used."""

    def __init__(self, command: str) -> None:
        self.process = subprocess.Popen(
            ["sh", "-c", f"exec {command}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self._stdin, self._stdout, self._stderr = self.process.stdin, self.process.stdout, self.process.stderr
        self._timeout_s = 0.0

    def settimeout(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s

    def sendall(self, data: bytes) -> None:
        self._stdin.write(data)
        self._stdin.flush()

    def recv(self, size: int) -> bytes:
        if not select.select([self._stdout], [], [], self._timeout_s)[0]:
            raise TimeoutError
        return os.read(self._stdout.fileno(), size)

    def recv_stderr_ready(self) -> bool:
        ready = select.select([self._stderr], [], [], 0)[0]
        return bool(ready) and bool(self._stderr.peek(1))  # type: ignore[attr-defined]

    def recv_stderr(self, size: int) -> bytes:
        return cast("bytes", self._stderr.read1(size))  # type: ignore[attr-defined]

    @property
    def status_event(self) -> threading.Event:
        self.process.wait(10)
        ended = threading.Event()
        ended.set()
        return ended

    def recv_exit_status(self) -> int:
        return self.process.wait(10)

    def close(self) -> None:
        self._stdin.close()

    def end(self) -> None:
        self.process.wait()
        self._stdout.close()
        self._stderr.close()


class LocalConnection:
    """Opens channels on this host, and keeps them for the test to look at."""

    host: Host

    def __init__(self) -> None:
        self.channels: list[LocalChannel] = []

    def open_channel(self, command: str) -> LocalChannel:
        self.channels.append(LocalChannel(command))
        return self.channels[-1]


class LostConnection:
    def open_channel(self, _command: str) -> LocalChannel:
        raise ConnectError("node-2 (198.18.0.9): the connection is lost", hint="cluster status")


Stand = Callable[[str], None]
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
def stand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stand:
    """Put a stand-in for MXNet where the nodes' Python finds it, with more of its text; without: one that works."""

    def put(more: str) -> None:
        (tmp_path / "mxnet.py").write_text(f"{MXNET}\n{more}\nnd = Anything(ones=ones)\n")

    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    put("")
    return put


def make_node(index: int, connection: object, *, setup: str | None = None, **facts: Any) -> ReadyNode:
    host = Host(
        name=f"node-{index}",
        instance_id=f"i-{index}",
        address="198.18.0.2",
        private_ip=f"127.0.0.{index + 2}",
        user="ubuntu",
        is_head=index == 0,
    )
    if isinstance(connection, LocalConnection):
        connection.host = host
    return ReadyNode(
        host=host,
        connection=cast("NodeConnection", connection),
        facts=replace(FACTS, python=sys.executable, **facts),
        python=sys.executable,
        code_dir="/nowhere",
        project_dir=None,
        setup=setup,
        changed=False,
    )


@pytest.fixture
def nodes() -> Iterator[list[ReadyNode]]:
    made = [make_node(index, LocalConnection()) for index in range(3)]
    yield made
    for channel in channels(made):
        if channel.process.poll() is None:
            os.killpg(channel.process.pid, signal.SIGKILL)
        channel.end()


def channels(nodes: list[ReadyNode]) -> list[LocalChannel]:
    found = [cast("LocalConnection", node.connection) for node in nodes]
    return [channel for connection in found for channel in getattr(connection, "channels", [])]


def of(checks: tuple[Check, ...], kind: str) -> list[Check]:
    return [check for check in checks if check.check == kind]


@pytest.mark.usefixtures("stand")
def test_nodes_that_are_well(nodes: list[ReadyNode]) -> None:
    checks = verify(nodes, report=silent)
    assert {check.status for check in checks} == {"ok"}
    assert [(check.node, check.check) for check in checks[:4]] == [
        ("node-0", kind) for kind in ("compute", "ports", "clock", "disk")
    ]
    assert {check.said for check in of(checks, "ports")} == {"open for 2 other nodes"}
    assert {check.said for check in of(checks, "compute")} == {"MXNet 1.7.0: ones((2,3))*2+1 == 3"}
    for channel in channels(nodes):
        assert channel.process.wait(10) == 0


@pytest.mark.parametrize(
    ("more", "subject", "said"),
    [
        ("def ones(shape, ctx): return Array(1.5)", "cpu(0)", "came out as [[4.0"),
        ("def ones(shape, ctx): raise MXNetError('CUDA: no kernel image is available')", "cpu(0)", "no kernel image"),
        ("def ones(shape, ctx): os.abort()", "cpu(0)", "MXNet was killed by signal 6 at cpu(0)"),
        ("os.abort()", "import mxnet", "MXNet was killed by signal 6 while it was imported"),
        (
            "raise OSError('libcudart.so.9.0: cannot open shared object file: No such file')",
            "import mxnet",
            "libcudart",
        ),
        ("raise RuntimeError('half unpacked')", "import mxnet", "RuntimeError: half unpacked"),
        ("raise SystemExit", "MXNet", "before it computed anything"),
    ],
)
def test_mxnet_that_does_not_compute(nodes: list[ReadyNode], stand: Stand, more: str, subject: str, said: str) -> None:
    stand(more)
    (failed,) = of(verify(nodes[:1], report=silent), "compute")
    assert (failed.status, failed.subject) == ("failed", subject)
    assert said in failed.said


def test_mxnet_that_does_not_come_to_an_end(
    nodes: list[ReadyNode], stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand("def ones(shape, ctx): time.sleep(600)")
    monkeypatch.setattr(bootstrap.verify.checks, "COMPUTE_TIMEOUT_S", 5.0)  # Python and the rest come first
    (failed,) = of(verify(nodes[:1], report=silent), "compute")
    assert (failed.status, failed.subject) == ("failed", "cpu(0)")
    assert "did not come to an end and was killed at cpu(0)" in failed.said


def test_every_gpu_is_tried_and_each_tells_for_itself(nodes: list[ReadyNode], stand: Stand) -> None:
    stand(
        "gpus = 3\n"
        "def ones(shape, ctx):\n"
        "    if ctx == 'gpu(1)': raise MXNetError('CUDA: uncorrectable ECC error')\n"
        "    return Array(1.0)"
    )
    found = of(verify(nodes[:1], report=silent), "compute")
    assert [(check.subject, check.status) for check in found] == [
        ("gpu(0)", "ok"),
        ("gpu(1)", "failed"),
        ("gpu(2)", "ok"),
    ]


@pytest.mark.parametrize(
    ("key", "status", "said"),
    [
        ("a.rec", "ok", "read by staging, for this MXNet wheel, 5 bytes"),
        ("gone.rec", "failed", "NoSuchKey"),
    ],
)
def test_for_a_wheel_that_cannot_read_s3_it_is_read_as_it_is_staged(
    nodes: list[ReadyNode], stand: Stand, monkeypatch: pytest.MonkeyPatch, *, key: str, status: str, said: str
) -> None:
    stand("")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    with serve_s3() as server:
        server.reset()
        server.put("bucket", {"a.rec": b"hello", "a.rec.idx": b"index"})
        access = S3Access(
            env={"S3_REGION": "us-east-1", "AWS_ENDPOINT_URL": server.url},
            secrets={"AWS_ACCESS_KEY_ID": "AKIA", "AWS_SECRET_ACCESS_KEY": "canary"},
        )
        probe = s3_probe(parse_url(f"s3://bucket/{key}"), access)
        assert "canary" not in repr(probe)
        (found,) = of(verify(nodes[:1], probes=[probe], report=silent), "s3")
        server.reset()
    assert (found.status, found.said) == (status, said)


def test_the_jobs_secrets_reach_mxnet_and_nothing_that_others_can_read(nodes: list[ReadyNode], stand: Stand) -> None:
    stand(
        "def MXRecordIO(uri, mode):\n"
        "    for name in ('environ', 'cmdline'):\n"
        "        assert b'canary' not in open('/proc/self/' + name, 'rb').read()\n"
        "    assert os.environ['AWS_SECRET_ACCESS_KEY'] == 'canary'\n"
        "    return Anything(read=lambda: b'hello')\n"
        "recordio = Anything(MXRecordIO=MXRecordIO)"
    )
    access = S3Access(env={"S3_REGION": "us-east-1"}, secrets={"AWS_SECRET_ACCESS_KEY": "canary"})
    (found,) = of(verify(nodes[:1], probes=[s3_probe(parse_url("s3://bucket/a.rec"), access)], report=silent), "s3")
    assert (found.status, found.said) == ("ok", "read by MXNet, a record of 5 bytes")


def test_what_set_up_commands_export_is_there_for_mxnet(
    nodes: list[ReadyNode], stand: Stand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand("assert os.environ['LD_LIBRARY_PATH'] == '/opt/cuda'")
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".cluster" / "setup").mkdir(parents=True)
    changes = {"set": {"LD_LIBRARY_PATH": "/opt/cuda"}, "unset": [], "prepend": {}, "append": {}}
    (tmp_path / ".cluster" / "setup" / "abc.env").write_text(json.dumps(changes))
    (found,) = of(verify([replace(nodes[0], setup="abc")], report=silent), "compute")
    assert found.status == "ok"


def test_a_node_that_freezes_or_is_lost_is_named_and_the_others_are_not_held_up(
    nodes: list[ReadyNode], stand: Stand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """node-1 stands still once it has begun; node-2 cannot be reached at all."""
    stand("")
    begin = bootstrap.verify.nodes._Talk.begin

    def freeze_after_begin(talk: Any, found: Any, order: Mapping[str, Any]) -> None:
        begin(talk, found, order)
        if order["name"] == "node-1":
            os.killpg(talk._channel.process.pid, signal.SIGSTOP)
            talk._channel.settimeout(0.5)  # nothing comes any more: why wait for it

    monkeypatch.setattr(bootstrap.verify.nodes._Talk, "begin", freeze_after_begin)
    nodes[2] = make_node(2, LostConnection())
    checks = verify(nodes, report=silent)
    assert [(check.node, check.status) for check in of(checks, "connection")] == [
        ("node-1", "failed"),
        ("node-2", "failed"),
    ]
    assert "nothing was heard" in (of(checks, "connection")[0].cause or "")
    assert ("node-0", "ok") in {(check.node, check.status) for check in of(checks, "compute")}
    (pair,) = [check for check in of(checks, "ports") if check.status == "failed"]
    assert (pair.node, pair.subject) == ("node-0", "to node-1")
    assert "no answer" in pair.said


def test_an_error_of_the_program_itself_is_told_with_its_last_lines(nodes: list[ReadyNode], stand: Stand) -> None:
    stand("")
    (connection,) = of(verify([replace(nodes[0], setup="no-such")], report=silent), "connection")
    assert "FileNotFoundError" in (connection.cause or "")


def test_when_the_user_hangs_up_nothing_goes_on(nodes: list[ReadyNode], stand: Stand, tmp_path: Path) -> None:
    place = tmp_path / "pid"
    stand(f"open({str(place)!r}, 'w').write(str(os.getpid()) + '.'); time.sleep(600)")
    looking = threading.Thread(target=verify, args=(nodes[:1],), kwargs={"report": silent})
    looking.start()
    until(lambda: place.exists() and place.read_text().endswith("."), "it does not begin")
    (channel,) = channels(nodes)
    channel.close()
    looking.join()
    assert channel.process.wait(10) == 0
    until(lambda: is_gone(place.read_text()[:-1]), "it goes on")


def is_gone(pid: str) -> bool:
    """Whether a process has ended; whoever takes leave of it may do so meanwhile."""
    try:
        return ") Z " in Path("/proc", pid, "stat").read_text()
    except OSError:
        return True


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with node_ports.listen("127.0.0.1", 20000, 40000) as made:
        yield made


def test_a_port_answers_with_a_proof_that_only_this_verification_has(listener: socket.socket) -> None:
    port = listener.getsockname()[1]
    assert 20000 <= port <= 40000
    node_ports.serve(listener, "node-1", SECRET.encode())
    tried = [("node-1", "127.0.0.1", port), ("node-2", "127.0.0.1", port)]
    found = {name: error for name, _, error in node_ports.connect_all(tried, SECRET.encode())}
    assert found == {"node-1": None, "node-2": "wrong answer"}
    assert node_ports.try_to_connect("node-1", "127.0.0.1", port, b"other") == "wrong answer"


def test_what_keeps_from_connecting(monkeypatch: pytest.MonkeyPatch, listener: socket.socket) -> None:
    monkeypatch.setattr(node_ports, "TIMEOUT_S", 0.2)
    port = listener.getsockname()[1]
    assert node_ports.try_to_connect("a", "127.0.0.1", port, b"s") == "no answer"
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        assert node_ports.try_to_connect("a", "127.0.0.1", closed.getsockname()[1], b"s") == "refused"
    with socket.socket() as full:  # a backlog that is full drops what comes, as a firewall does
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        waiting = [socket.socket() for _ in range(3)]
        for one in waiting:
            one.settimeout(0)
            one.connect_ex(full.getsockname())
        assert node_ports.try_to_connect("a", *full.getsockname(), b"s") == "timed out"
        for one in waiting:
            one.close()


def test_a_taken_port_is_passed_over_and_the_last_error_told(listener: socket.socket) -> None:
    port = listener.getsockname()[1]
    with pytest.raises(OSError, match="in use"):
        node_ports.listen("127.0.0.1", port, port)
    for _ in range(5):
        node_ports.listen("127.0.0.1", port, port + 9).close()


def test_whoever_connects_and_says_nothing_holds_nobody_up(listener: socket.socket) -> None:
    node_ports.serve(listener, "a", b"s")
    port = listener.getsockname()[1]
    silent_ones = [socket.create_connection(("127.0.0.1", port)) for _ in range(20)]
    assert node_ports.try_to_connect("a", "127.0.0.1", port, b"s") is None
    assert threading.active_count() > 20
    for one in silent_ones:
        one.close()


# Ports.


def attempts(*blocked: tuple[int, int], nodes: int = 4, error: str = "timed out") -> list[Attempt]:
    """Every node's connections to both ports of every other; those from a to b fail for every (a, b) in `blocked`."""
    return [
        Attempt(source=f"node-{a}", target=f"node-{b}", port=port, error=error if (a, b) in blocked else None)
        for a in range(nodes)
        for b in range(nodes)
        if a != b
        for port in (9100 + b, 20000 + b)
    ]


def ports(tried: list[Attempt], nodes: int = 4) -> list[tuple[str, str, str]]:
    listening = {f"node-{n}": (9100 + n, 20000 + n) for n in range(nodes)}
    return [
        (check.node, check.subject, check.said) for check in check_ports(listening, {}, tried) if check.status != "ok"
    ]


ALL = [(a, b) for a in range(4) for b in range(4) if a != b]


@pytest.mark.parametrize(
    ("blocked", "expected"),
    [
        ([], []),
        ([(1, 3)], [("node-1", "to node-3", "ports 9103, 20003: timed out")]),
        ([(a, 3) for a in range(3)], [("node-3", "from every other node", "ports 9103, 20003: timed out")]),
        ([(2, b) for b in (0, 1, 3)], [("node-2", "to every other node", "6 ports between 9100 and 20003: timed out")]),
        (ALL, [("all nodes", "each other", "8 ports between 9100 and 20003: timed out")]),
        (
            [(0, 1), (1, 0)],
            [
                ("node-0", "to node-1", "ports 9101, 20001: timed out"),
                ("node-1", "to node-0", "ports 9100, 20000: timed out"),
            ],
        ),
        (
            [(0, 3), (1, 3), (2, 3), (3, 0), (3, 1), (3, 2)],
            [
                ("node-3", "from every other node", "ports 9103, 20003: timed out"),
                ("node-3", "to every other node", "6 ports between 9100 and 20002: timed out"),
            ],
        ),
    ],
)
def test_what_is_blocked_by_one_cause_is_told_once(
    blocked: list[tuple[int, int]], expected: list[tuple[str, str, str]]
) -> None:
    assert ports(attempts(*blocked)) == expected


def test_one_port_of_two_and_the_commands_that_follow() -> None:
    tried = [Attempt(source="node-0", target="node-1", port=9093, error="timed out")]
    tried += [Attempt(source="node-0", target="node-1", port=20000, error=None)]
    tried += [Attempt(source="node-1", target="node-0", port=9093, error="refused")]
    tried += [Attempt(source="node-1", target="node-2", port=9093, error=None)]
    listening = dict.fromkeys(("node-0", "node-1", "node-2"), (9093, 20000))
    first, second, third = check_ports(listening, {}, tried)
    assert (third.node, third.status) == ("node-2", "ok")
    assert (first.said, second.said) == ("port 9093: timed out", "port 9093: refused")
    assert "security group" in (first.cause or "")
    assert (first.hint or "").startswith("cluster up")
    assert "firewall on node-0" in (second.cause or "")
    assert second.hint == "cluster exec --node node-0 -- sudo nft list ruleset"


def test_many_nodes_are_checked_in_one_pass() -> None:
    checks = check_ports(
        {f"node-{n}": (9100, 20000) for n in range(64)}, {}, attempts(*((n, 7) for n in range(64)), nodes=64)
    )
    assert [check.subject for check in checks if check.status == "failed"] == ["from every other node"]
    assert len(checks) == 64


def test_a_node_alone_and_one_that_cannot_listen() -> None:
    (alone,) = check_ports({"node-0": (9100, 20000)}, {}, [])
    assert (alone.status, alone.said) == ("ok", "can be listened on; there is no other node")
    refused, other = check_ports(
        {"node-0": (9100, 20000), "node-1": ()}, {"node-1": "10.0.0.5 port 9091 to 9999: in use"}, []
    )
    assert (refused.node, refused.status) == ("node-1", "failed")
    assert (other.node, other.status) == ("node-0", "ok")


# Clocks.


def test_the_shortest_round_trip_tells_the_time() -> None:
    offset = estimate_offset([(100.0, 112.0, 104.0), (200.0, 210.1, 200.2), (300.0, 313.0, 309.0)])
    assert offset.ahead_s == pytest.approx(10.0)
    assert offset.error_s == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("ahead", "statuses"),
    [
        ([0.0, 0.1], ["ok", "ok"]),
        ([0.0, 6.0], ["ok", "failed"]),
        ([-7.0, 0.0], ["failed", "ok"]),
        ([30.0, 30.1, 30.2], ["warning"] * 3),
        ([30.0, 30.1, 0.0], ["warning", "warning", "failed"]),
        ([0.0, 0.0, 0.0, -3600.0], ["ok", "ok", "ok", "failed"]),
        ([-4.0, 0.0, 4.5], ["ok", "ok", "failed"]),
        ([4.9, 0.0], ["ok", "ok"]),
        ([1000.0], ["warning"]),
        ([], []),
    ],
)
def test_the_clock_that_is_wrong_is_named(ahead: list[float], statuses: list[str]) -> None:
    offsets = {f"node-{n}": Offset(ahead_s=at, error_s=0.01) for n, at in enumerate(ahead)}
    checks = check_clocks(offsets)
    assert [check.status for check in checks] == statuses
    for check in checks:
        assert (check.cause is None) == (check.hint is None) == (check.status == "ok")


def test_what_is_not_known_exactly_is_no_fault() -> None:
    apart = {"a": Offset(ahead_s=0.0, error_s=2.0), "b": Offset(ahead_s=8.0, error_s=2.0)}
    assert not find_wrong(apart)


OFFSETS = st.builds(Offset, ahead_s=st.floats(-1e5, 1e5, allow_nan=False), error_s=st.floats(0, 10, allow_nan=False))


@given(st.dictionaries(st.sampled_from([f"node-{n}" for n in range(8)]), OFFSETS))
def test_without_the_wrong_ones_all_agree_and_nobody_is_blamed_for_nothing(offsets: dict[str, Offset]) -> None:
    wrong = find_wrong(offsets)

    def agree(names: set[str]) -> bool:
        found = [offsets[name] for name in names]
        return all(
            abs(a.ahead_s - b.ahead_s) - a.error_s - b.error_s <= MAX_APART_S + 1e-6 for a in found for b in found
        )

    assert agree(offsets.keys() - wrong)
    assert not wrong or not agree(set(offsets))
    assert len(wrong) < max(1, len(offsets))


# Disk, compute, and S3.


def test_disk() -> None:
    gib = 1 << 30
    (both,) = check_disk("node-0", [("/home/u", 1, 50 * gib), ("/tmp", 1, 50 * gib)])
    assert (both.subject, both.status, both.said) == ("/home/u and /tmp", "ok", "50.0 GiB free")
    home, tmp = check_disk("node-0", [("/home/u", 1, 50 * gib), ("/tmp", 2, 3 << 20)])
    assert (home.status, tmp.status, tmp.said) == ("ok", "failed", "3.0 MiB free")
    assert "df -h" in (tmp.hint or "")


def compute(*lines: Mapping[str, Any], code: int | None = 0, stderr: str = "", **facts: Any) -> tuple[Check, ...]:
    stdout = "".join(f"{json.dumps(line)}\n" for line in lines)
    result = ProbeResult(exit_code=code, stdout=f"a banner\n[1]\n{stdout}", stderr=stderr)
    return check_compute(make_node(0, None, **facts), result)


RIGHT = {"device": "cpu(0)", "values": [[3.0] * 3] * 2}


def test_gpus_that_mxnet_does_not_see() -> None:
    well, unseen = compute({"wheel": "mxnet==1.7.0.post2"}, {"version": "1.7.0"}, RIGHT, gpus=(V100, V100))
    assert well.status == "ok"
    assert unseen.said == "the driver reports 2 GPU(s), and mxnet==1.7.0.post2 sees none"


@pytest.mark.parametrize(
    ("library", "wheel", "words"),
    [
        ("libcudart.so.9.0", "mxnet-cu90==1.6.0.post0", ["CUDA 9.0", "/usr/local/cuda-9.0", "[bootstrap] setup"]),
        ("libcuda.so.1", "mxnet-cu112==1.9.1", ["no NVIDIA driver"]),
    ],
)
def test_a_missing_library_is_named_with_the_ways_to_get_it(library: str, wheel: str, words: list[str]) -> None:
    stderr = f"Traceback:\nOSError: {library}: cannot open shared object file: No such file or directory\n"
    (failed,) = compute({"wheel": wheel}, code=1, stderr=stderr)
    assert failed.said == f"{library} is missing"
    assert all(word in (failed.cause or "") for word in words), failed.cause


def test_all_missing_libraries_are_named_where_they_are_known() -> None:
    checked = {"env": Checked(key="k", unresolved=("libcublas.so.9.0", "libcudart.so.9.0"))}
    stderr = "OSError: libcudart.so.9.0: cannot open shared object file: No such file or directory\n"
    (failed,) = compute({"wheel": "mxnet-cu90==1.6.0.post0"}, code=1, stderr=stderr, checked=checked)
    assert "libcublas.so.9.0" in (failed.cause or "")


def test_the_line_of_an_error_that_says_what_it_is() -> None:
    text = 'Traceback (most recent call last):\n  File "src/a.cc", line 65\nMXNetError: Check failed: a == b: told'
    assert summarize_error(text) == "MXNetError: Check failed: a == b: told"
    assert summarize_error("\n") == ""


# As MXNet 1.7.0.post2 said them to a server that refused, cut to what tells.
FRAME = 'Traceback (most recent call last):\n  File "src/io/s3_filesys.cc", line 1096\n'
CURL = "Error: Check failed: curl_easy_perform(curl) == CURLE_OK: "


def refusal(code: str, message: str = "told") -> str:
    return f'{FRAME}MXNetError: <?xml version="1.0"?><Error><Code>{code}</Code><Message>{message}</Message></Error>\n'


@pytest.mark.parametrize(
    ("error", "status", "said", "cause"),
    [
        ("MXNetError: Check failed: header[0] == kMagic: Invalid RecordIO File", "ok", "not a RecordIO", None),
        (refusal("AccessDenied", "not authorized to perform: s3:GetObject"), "failed", "AccessDenied", "s3:GetObject"),
        (refusal("NoSuchBucket"), "failed", "NoSuchBucket", "no bucket bucket"),
        (refusal("RequestTimeTooSkewed"), "failed", "TooSkewed", "clock"),
        (refusal("ExpiredToken"), "failed", "ExpiredToken", "have expired"),
        (refusal("AuthorizationHeaderMalformed"), "failed", "Malformed", "another region"),
        (refusal("SlowDown"), "failed", "SlowDown", "request rate"),
        (refusal("SomethingElse", "in S3's words"), "failed", "SomethingElse", "in S3's words"),
        (f"{FRAME}{CURL}Could not resolve host: h", "failed", "h:1 cannot be reached", "Could not resolve host: h"),
        (f"{FRAME}MXNetError: Check failed: allow_null: fail to open s3://b/a", "failed", "not found", "deleted"),
        (f"{FRAME}MXNetError: Check failed: xml.GetNext: missing IsTruncated", "failed", "not from S3", "proxy"),
        (f"{FRAME}MXNetError: something new", "failed", "MXNetError: something new", None),
    ],
)
def test_what_mxnets_reader_says(error: str, status: str, said: str, cause: str | None) -> None:
    meaning = explain_error(error, node="node-1", uri="s3://bucket/a.rec", endpoint="h:1")
    assert meaning.status == status
    assert said in meaning.said
    assert (cause or "") in (meaning.cause or "")
    assert meaning.status == "ok" or meaning.hint


@pytest.mark.parametrize(
    ("stdout", "code", "status", "said"),
    [
        ('{"read": 5}', 0, "ok", "a record of 5 bytes"),
        ('{"read": 5}', -6, "ok", "a record of 5 bytes"),  # it aborted at its end
        ('{"credentials": "no role"}', 0, "failed", "no credentials"),
        ('{"staged": 5}', 0, "ok", "for this MXNet wheel, 5 bytes"),
        ('{"refused": "S3: not allowed", "code": "AccessDenied"}', 0, "failed", "AccessDenied"),
        ('{"refused": "timed out", "code": "Broken"}', 0, "failed", "h cannot be reached"),
        ("", 1, "unchecked", "OSError: libcuda.so.1"),
        ("", -11, "failed", "killed by signal 11"),
        ("", None, "failed", "did not come to an end"),
    ],
)
def test_how_the_s3_probe_ended(stdout: str, code: int | None, status: str, said: str) -> None:
    result = ProbeResult(exit_code=code, stdout=stdout, stderr="OSError: libcuda.so.1" if code == 1 else "")
    (check,) = check_s3(make_node(0, None), result, uri="s3://bkt/a.rec", endpoint="h")
    assert (check.status, check.subject) == (status, "s3://bkt/a.rec")
    assert said in check.said


@pytest.mark.parametrize(
    ("keys", "url", "chosen"),
    [
        (["m/a.txt", "m/b.rec", "m/c.rec"], "s3://bkt/m/", "m/b.rec"),
        (["m/a b.rec", "m/c.rec"], "s3://bkt/m", "m/c.rec"),
        (["m/a.txt", "m/empty.rec"], "s3://bkt/m/", "m/a.txt"),
        (["m-other/a.rec"], "s3://bkt/m", None),
        (["a.rec"], "s3://bkt", "a.rec"),
        (["m.rec", "m.rec.idx"], "s3://bkt/m.rec", "m.rec"),
        (["m/", "m/empty"], "s3://bkt/m/", None),
    ],
)
def test_the_object_that_is_read(keys: list[str], url: str, chosen: str | None) -> None:
    listed = [
        S3Object(
            url=parse_url(f"s3://bkt/{key}"),
            size_bytes=0 if "empty" in key or key.endswith("/") else 1,
            modified=datetime.now(UTC),
            etag="e",
        )
        for key in keys
    ]
    found = choose_object(listed, parse_url(url))
    assert (found.key if found else None) == chosen


def test_without_data_there_is_nothing_to_read() -> None:
    check = plan_s3_check(None, region="us-east-1", instance_profile="none", cluster="demo")
    assert isinstance(check, Check)
    assert (check.status, check.node) == ("unchecked", "all nodes")


# What is shown.


def check(node: str, **more: Any) -> Check:
    return Check(**{"node": node, "check": "disk", "subject": "/", "status": "ok", "said": "much", **more})


def test_the_table_is_aligned_and_the_same_trouble_told_once() -> None:
    failed = partial(check, status="failed", said="none", cause="full")
    checks = [check("node-0"), failed("node-1", hint="on node-1"), failed("node-10", hint="on node-10")]
    lines = render_checks(checks).splitlines()
    assert len({line.index(word) for line, word in zip(lines[1:], ["much", "none", "none"], strict=True)}) == 1
    assert render_troubles(checks, "failed").splitlines() == [
        "  node-1, node-10: disk, /: none",
        "    cause: full",
        "    try: on NODE",
    ]
    assert "try: on node-1" in render_troubles(checks[:2], "failed")
    assert render_troubles(checks[:1], "failed") == ""


def test_checks_come_node_by_node_and_what_is_about_all_first() -> None:
    checks = [check("node-1"), check("node-0", check="clock"), check("all nodes"), check("node-0", check="compute")]
    found = sort_checks(checks, names=["node-0", "node-1"])
    assert [one.node for one in found] == ["all nodes", "node-0", "node-0", "node-1"]
    assert found[1].check == "compute"


def test_probes_are_told_in_what_order() -> None:
    probe = Probe(check="s3", modules=(), order={"secret": "canary"}, timeout_s=1.0, to_checks=check_compute)
    assert "canary" not in repr(probe)
