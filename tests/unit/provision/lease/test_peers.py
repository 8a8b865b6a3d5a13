"""Which nodes a node ends and which it leaves alone, and its signed calls for that."""

import re
import threading
import urllib.parse
import xml.etree.ElementTree as ET
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from botocore import auth as botocore_auth
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from node.lease import metadata, neighbors, peers, system
from node.lease.ec2 import Ec2, Instance, sign
from node.lease.metadata import Role
from node.lease.neighbors import Neighbors
from node.lease.peers import Closing, Plan, plan_ends
from node.lease.terms import Lease

NOW = 1_800_000_000.0
ROLE = Role(own_id="i-own", region="eu-west-1", key_id="AKID", secret="secret/+", token="to/ken==")
PAST, FUTURE = Lease(set_at=NOW - 900, until=NOW - 1), Lease(set_at=NOW - 900, until=NOW + 3600)
LATER = Lease(set_at=NOW - 10, until=NOW + 14400)
IDLE = Lease(set_at=NOW - 9000, idle_s=3600.0)
BUDGET = Lease(set_at=NOW - 9000, budget_usd=10.0, usd_per_hour=1.0)


def node(lease: Lease | None, number: int = 1, *, is_spot: bool = False) -> Instance:
    return Instance(f"i-{number}", f"10.0.0.{number}", lease, is_spot)


@pytest.mark.parametrize(
    ("theirs", "why", "own", "impaired_s", "ends"),
    [
        (PAST, "lifetime", PAST, None, True),
        (PAST, "lifetime", PAST, 5.0, True),
        (PAST, "idle", IDLE, None, True),  # its own deadline has passed, whatever ended this node
        (LATER, "lifetime", PAST, 9000.0, False),  # this node has missed a change
        (FUTURE, "lifetime", FUTURE, 9000.0, False),  # this node's clock is ahead of EC2's
        (Lease(), "lifetime", PAST, 9000.0, False),  # cluster lease --none
        (None, "lifetime", PAST, 9000.0, False),  # not launched with a lease
        (IDLE, "idle", IDLE, None, False),  # cut off: it may be in use
        (IDLE, "idle", IDLE, 600.0, False),  # it may have been in use until it began to hang
        (IDLE, "idle", IDLE, 3300.0, True),  # EC2's checks take some minutes to notice
        (IDLE, "lifetime", PAST, 9000.0, False),
        (IDLE, "idle", IDLE._replace(set_at=1.0), 9000.0, False),
        (BUDGET, "budget", BUDGET, None, True),
        (BUDGET._replace(budget_usd=20.0), "budget", BUDGET, 9000.0, False),
        (BUDGET, "idle", IDLE, 9000.0, False),
    ],
)
def test_which_silent_nodes_end(
    theirs: Lease | None, why: str, own: Lease, impaired_s: float | None, *, ends: bool
) -> None:
    impaired = {} if impaired_s is None else {"i-1": impaired_s}
    plan = plan_ends([node(theirs)], why, own, NOW, impaired)
    assert plan == Plan(["i-1"] if ends else [], [], [])


def test_how_they_end() -> None:
    """A node that may still write to its disk is not forced to stop. EC2 cannot stop a spot instance."""
    stop = PAST._replace(then="stop")
    silent = [node(stop, 1), node(stop, 2), node(stop, 3, is_spot=True), node(PAST, 4), node(FUTURE, 5)]
    assert plan_ends(silent, "lifetime", stop, NOW, {"i-2": 3.0}) == Plan(["i-3", "i-4"], ["i-1"], ["i-2"])


class FakeEc2:
    """A stand-in for EC2. others: its instances; calls: the calls to it."""

    def __init__(self, *others: Instance, impaired: dict[str, float] | None = None, now: float = NOW) -> None:
        self.others, self.impaired, self.time = list(others), impaired or {}, now
        self.calls: list[tuple[str, list[str]]] = []

    def now(self) -> float:
        return self.time

    def find_others(self, cluster: str) -> list[Instance]:
        assert cluster == "demo"
        return self.others

    def find_impaired(self, instance_ids: list[str]) -> dict[str, float]:
        return {key: since for key, since in self.impaired.items() if key in instance_ids}

    def __getattr__(self, name: str) -> Callable[[list[str]], None]:
        assert name in {"terminate", "stop", "force_to_stop"}
        return lambda ids: self.calls.append((name, ids))


@pytest.fixture
def closing(monkeypatch: pytest.MonkeyPatch) -> Closing:
    """A Closing with three neighbors.

    10.0.0.7 answers as soon as it is asked. 10.0.0.8 has asked this node recently, 10.0.0.9 long ago.
    """
    monkeypatch.setattr(peers, "HEAR_S", 0.2)
    ticks = iter(range(100000))
    monkeypatch.setattr(system, "boot_clock", lambda: 1000.0 + next(ticks) * 0.01)
    others = Neighbors("/")
    others.lives["10.0.0.8"] = 995.0
    others.lives["10.0.0.9"] = 900.0  # long ago
    monkeypatch.setattr(peers, "time", type("", (), {"sleep": staticmethod(lambda _: None)}))
    monkeypatch.setattr(
        others, "ping", lambda address: others.lives.update({address: 1001.0} if address == "10.0.0.7" else {})
    )
    return Closing("demo", "", "lifetime", PAST, others)


def test_only_silent_nodes_end(closing: Closing) -> None:
    calls: Any = FakeEc2(node(PAST, 7), node(PAST, 8), node(PAST, 9), node(LATER, 10))
    assert not closing.end_silent(calls)
    assert calls.calls == [("terminate", ["i-9"])]
    assert not closing.end_silent(FakeEc2(node(PAST, 7)))  # type: ignore[arg-type]


def test_it_waits_for_those_that_end_soon(closing: Closing) -> None:
    """This node's clock is a little ahead."""
    calls: Any = FakeEc2(node(Lease(set_at=1.0, until=NOW + 3.0)))
    assert closing.end_silent(calls)
    calls.time += 3
    assert not closing.end_silent(calls)
    assert calls.calls == [("terminate", ["i-1"])]
    assert not closing.end_silent(FakeEc2(node(FUTURE)))  # type: ignore[arg-type]


def test_a_node_that_does_not_end_after_all_ends_nobody(closing: Closing) -> None:
    calls: Any = FakeEc2(node(PAST))
    closing.cancelled = True
    closing.end_silent(calls)
    assert not calls.calls


def test_without_a_role_or_an_endpoint_it_does_not_wait(closing: Closing, monkeypatch: pytest.MonkeyPatch) -> None:
    assert closing.is_done()
    monkeypatch.setattr(metadata, "read_role", lambda: None)
    one = Closing("demo", "https://ec2.example", "lifetime", PAST, closing.others)
    assert one.thread is not None
    one.thread.join(30)
    assert one.is_done()


def test_what_hangs_does_not_keep_the_node(closing: Closing, monkeypatch: pytest.MonkeyPatch) -> None:
    hangs = threading.Event()
    monkeypatch.setattr(metadata, "read_role", lambda: hangs.wait() and None)
    one = Closing("demo", "https://ec2.example", "lifetime", PAST, closing.others)
    assert not one.is_done()
    one.began -= peers.LIMIT_S
    assert one.is_done()
    hangs.set()


@pytest.mark.parametrize(
    "body", [b"Action=DescribeInstances&Version=2016-11-15", urllib.parse.urlencode({"a": "x y/é"}).encode()]
)
def test_the_signature_is_that_of_botocore(body: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    made = sign(body, host="ec2.eu-west-1.amazonaws.com:8443", path="/", role=ROLE, now=NOW)
    at = datetime.fromtimestamp(NOW, UTC)
    monkeypatch.setattr(botocore_auth, "get_current_datetime", lambda **_: at.replace(tzinfo=None))
    request = AWSRequest("POST", "https://ec2.eu-west-1.amazonaws.com:8443/", data=body)
    request.headers["content-type"] = made["content-type"]
    SigV4Auth(Credentials(ROLE.key_id, ROLE.secret, ROLE.token), "ec2", ROLE.region).add_auth(request)
    assert made["x-amz-date"] == request.headers["X-Amz-Date"]
    assert made["authorization"] == request.headers["Authorization"]


DATAGRAMS = [
    b"", b"[]", b"7", b"null", b"\xff\xfe", b'{"idle_s": "x"}', b'{"idle_s": null}', b'{"idle_s": NaN, "ask": true}',
    b'{"idle_s": -1, "ask": true}', b'{"idle_s": 1%s, "ask": true}' % (b"0" * 400), b"[" * 2000, b'{"a":' * 400,
    b'{"idle_s": Infinity, "ask": true}',
]  # fmt: skip


@pytest.mark.parametrize("datagram", DATAGRAMS)
def test_datagrams_that_make_no_sense(datagram: bytes) -> None:
    """Every user of a node can send such datagrams. They neither end the program nor count as a sign of life."""
    one = Neighbors("/")
    heard = Heard(datagram)
    one.socket = heard  # type: ignore[assignment]
    one.listen(5.0, 100.0)
    assert not one.heard
    assert not one.lives
    assert not heard.sent


class Heard:
    """A socket with one datagram."""

    def __init__(self, datagram: bytes, port: int = neighbors.PORT) -> None:
        self.datagram, self.port = datagram, port
        self.sent: list[bytes] = []

    def recvfrom(self, size: int) -> tuple[bytes, tuple[str, int]]:
        return self.datagram[:size], ("10.0.0.2", self.port)

    def sendto(self, data: bytes, _: object) -> None:
        self.sent.append(data)


@pytest.mark.parametrize(
    ("datagram", "port", "answers", "lives"),
    [
        (b'{"there": true}', neighbors.PORT, [b'{"here": true}'], True),
        (b'{"here": true}', neighbors.PORT, [], True),
        (b'{"here": true}', 40000, [], False),  # from an ordinary user's port
        (b'{"ask": true, "idle_s": 7}', neighbors.PORT, [b'{"idle_s": 5.0}'], False),
    ],
)
def test_datagrams(datagram: bytes, port: int, answers: list[bytes], *, lives: bool) -> None:
    one = Neighbors("/")
    heard = Heard(datagram, port)
    one.socket = heard  # type: ignore[assignment]
    one.listen(5.0, 100.0)
    assert heard.sent == answers
    assert one.has_heard("10.0.0.2", 100.0) is lives
    assert not one.has_heard("10.0.0.2", 101.0)


def test_the_answers_of_ec2(monkeypatch: pytest.MonkeyPatch) -> None:
    """See https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_DescribeInstanceStatus.html."""
    calls = Ec2("https://ec2.example", ROLE)
    text = """<DescribeInstanceStatusResponse><instanceStatusSet><item><instanceId>i-1</instanceId><instanceStatus>
        <status>impaired</status><details><item><name>reachability</name><status>failed</status>
        <impairedSince>2027-01-15T07:59:00.000Z</impairedSince></item></details></instanceStatus></item>
        <item><instanceId>i-2</instanceId><instanceStatus><status>ok</status></instanceStatus></item>
        </instanceStatusSet></DescribeInstanceStatusResponse>"""
    monkeypatch.setattr(calls, "now", lambda: NOW)
    monkeypatch.setattr(calls, "_call", lambda *_: ET.fromstring(re.sub(r"\s+<", "<", text)))
    assert calls.find_impaired(["i-1", "i-2"]) == {"i-1": 60.0}
