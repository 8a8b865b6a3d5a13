"""Faults: how they are written, when they strike, and what those of S3's bytes and of hosts do."""

import io
import json
import subprocess
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sandbox.api.faults import find_in_chunks, find_refusal, flip, flip_upload
from sandbox.control import ask
from sandbox.daemon import ControlServer, Desk, MainThreadCalls
from sandbox.faults import KINDS, FaultBook, FaultError, parse_fault
from sandbox.hosts import faults as host_faults
from sandbox.hosts.faults import HostFaults


@pytest.mark.parametrize(
    ("text", "parameters", "left"),
    [
        ("capacity", {}, None),
        ("capacity zone=us-east-1a type=p4d.* free=2", {"zone": "us-east-1a", "type": "p4d.*", "free": "2"}, None),
        ("capacity count=3", {}, 3),
        ("throttle", {}, 1),
        ("throttle count=all", {}, None),
        ("throttle rate=0.25 seed=7", {"rate": "0.25", "seed": "7"}, None),
        ("throttle rate=1 count=5", {"rate": "1"}, 5),
        ("s3-cut key='a b' after_bytes=0", {"key": "a b", "after_bytes": "0"}, 1),
        ("s3-flip operation=UploadPart at_byte=9", {"operation": "UploadPart", "at_byte": "9"}, 1),
        ("partition a=i-1 b=i-2", {"a": "i-1", "b": "i-2"}, 1),
    ],
)
def test_faults_are_read(text: str, parameters: dict[str, str], left: int | None) -> None:
    fault = parse_fault(text)
    assert (fault.kind, dict(fault.parameters), fault.left) == (text.split(maxsplit=1)[0], parameters, left)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "begins with its kind: capacity"),
        ("thottle", 'did you mean "throttle"?'),
        ("throttle now", '"now" is not of the form name=value; throttle takes service=, action='),
        ("throttle colour=red", "there is no colour="),
        ("throttle rate=1.5", "the share of calls, 0 to 1"),
        ("throttle rate=-1", "the share of calls, 0 to 1"),
        ("throttle rate=nan", "the share of calls, 0 to 1"),
        ("throttle seed=1", "there is none"),
        ("throttle action=", "an API action"),
        ("throttle count=0", "from 1 on"),
        ("throttle count=-1", "from 1 on"),
        ("throttle action=A action=B", "given twice"),
        ("capacity market=reserved", "on-demand or spot"),
        ("capacity free=²", "0 or more"),
        ("kill", "instance= is missing"),
        ("kill instance=i-1 count=2", "takes no count="),
        ("throttle action='A", "No closing quotation"),
    ],
)
def test_what_is_written_wrongly_is_refused_with_what_is_allowed(text: str, said: str) -> None:
    with pytest.raises(FaultError) as caught:
        parse_fault(text)
    assert said in str(caught.value)


def test_a_fault_strikes_what_it_is_for_as_often_as_it_says() -> None:
    book = FaultBook()
    book.arm("throttle action=Run* count=2")
    assert book.take("throttle", service="ec2", action="DescribeVpcs") is None
    assert book.take("internal-error", service="ec2", action="RunInstances") is None
    strikes = [book.take("throttle", service="ec2", action="runinstances") for _ in range(3)]
    assert [strike.left if strike else None for strike in strikes] == [1, 0, None]
    assert book.list() == ()


def test_the_oldest_fault_strikes_first_and_the_next_takes_over() -> None:
    book = FaultBook()
    first, second = book.arm("no-boot"), book.arm("no-boot type=c5.*")
    assert [strike.id for _ in range(2) if (strike := book.take("no-boot", type="c5.large", zone="z"))] == [
        first.id,
        second.id,
    ]


def test_a_rate_is_the_same_for_the_same_seed() -> None:
    def draw(seed: int) -> list[bool]:
        book = FaultBook()
        book.arm(f"throttle rate=0.3 seed={seed}")
        return [book.take("throttle", service="ec2", action="X") is not None for _ in range(50)]

    assert draw(1) == draw(1) != draw(2)
    assert 5 < sum(draw(1)) < 25


def test_to_look_is_not_to_strike_and_what_is_left_can_be_used_up() -> None:
    book = FaultBook()
    fault = book.arm("capacity free=3")
    book.spend(fault.id, "free", 2)
    found = book.find("capacity", zone="a", type="b", market="spot")
    assert found is not None
    assert (found.parameters["free"], found.struck) == ("1", 0)
    book.spend(fault.id, "free", 2)
    assert book.list()[0].parameters["free"] == "0"


def test_faults_can_be_disarmed() -> None:
    book = FaultBook()
    first, second = book.arm("no-boot"), book.arm("no-sshd")
    assert book.disarm(first.id) == (first,)
    with pytest.raises(FaultError, match=second.id):
        book.disarm(first.id)
    assert book.disarm("all") == (second,)
    assert book.disarm("all") == ()


@pytest.mark.parametrize("kind", [kind for kind in KINDS.values() if kind.when == "immediate"], ids=lambda k: k.name)
def test_what_acts_at_once_cannot_lie_in_wait(kind: Any) -> None:
    words = [kind.name, *(f"{parameter.name}=1" for parameter in kind.parameters if parameter.required)]
    with pytest.raises(FaultError, match="acts at once"):
        FaultBook().arm(" ".join(words))


def test_many_threads_take_no_more_than_there_is() -> None:
    book = FaultBook()
    book.arm("throttle count=100")
    taken: list[bool] = []

    def take() -> None:
        taken.extend(book.take("throttle", service="ec2", action="X") is not None for _ in range(50))

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(taken) == 100


@pytest.fixture
def socket_path(tmp_path: Path) -> Any:
    """A control socket whose main thread is another one; `kill` is done there, the other immediate kinds are not."""
    wake = threading.Event()
    calls = MainThreadCalls(wake.set)
    stop = threading.Event()

    def main_thread() -> None:
        while not stop.is_set():
            wake.wait(0.05)
            wake.clear()
            calls.run_pending()

    def kill(parameters: Any) -> str:
        if parameters["instance"] != "i-1":
            raise FaultError(f"there is no host of {parameters['instance']}")
        return f"killed in {threading.current_thread().name}"

    main = threading.Thread(target=main_thread, name="main")
    main.start()
    server = ControlServer(tmp_path / "control.sock", Desk(FaultBook(), calls, {"kill": kill}))
    server.start()
    yield tmp_path / "control.sock"
    server.shutdown()
    server.server_close()
    stop.set()
    main.join()


def test_the_socket_is_its_owners(socket_path: Path) -> None:
    assert socket_path.stat().st_mode & 0o777 == 0o600


def test_faults_over_the_socket(socket_path: Path) -> None:
    armed = ask(socket_path, {"do": "fault", "text": "capacity zone=a"})
    assert armed == {"id": "fault-1", "kind": "capacity", "parameters": {"zone": "a"}, "left": None, "struck": 0}
    assert ask(socket_path, {"do": "faults"}) == [armed]
    assert ask(socket_path, {"do": "disarm", "which": "all"}) == [armed]
    assert ask(socket_path, {"do": "faults"}) == []


def test_immediate_faults_are_done_in_the_main_thread(socket_path: Path) -> None:
    assert ask(socket_path, {"do": "fault", "text": "kill instance=i-1"})["did"] == "killed in main"
    with pytest.raises(FaultError, match="no host of i-2"):
        ask(socket_path, {"do": "fault", "text": "kill instance=i-2"})
    with pytest.raises(FaultError, match="no hosts"):
        ask(socket_path, {"do": "fault", "text": "freeze instance=i-1"})


@pytest.mark.parametrize("line", [b"nonsense", b"[]", b"{}", b'{"do": "dance"}', b'{"do": "fault"}', b"\xff"])
def test_what_is_not_understood_is_said(socket_path: Path, line: bytes) -> None:
    desk = Desk(FaultBook(), MainThreadCalls(lambda: None), {})
    assert "not understood" in desk.answer(line)["error"]
    assert json.dumps(desk.answer(line))


SIGNED = b"4;chunk-signature=00ff\r\nabcd\r\n3;chunk-signature=00ff\r\nefg\r\n0;chunk-signature=00ff\r\n\r\n"
PLAIN = b"4\r\nabcd\r\n3\r\nefg\r\n0\r\nx-amz-checksum-crc32:AAAAAA==\r\n\r\n"


def test_one_byte_is_another() -> None:
    assert flip(b"abc", 1) == bytes([ord("a"), ord("b") ^ 0xFF, ord("c")])
    assert flip(b"abc", 99)[:2] == b"ab"
    assert flip(b"", 0) == b""


@pytest.mark.parametrize("body", [SIGNED, PLAIN])
@pytest.mark.parametrize(("at_byte", "found"), [(0, b"a"), (3, b"d"), (4, b"e"), (6, b"g"), (7, b"g"), (999, b"g")])
def test_a_byte_is_of_the_content_and_not_of_what_is_between(body: bytes, at_byte: int, found: bytes) -> None:
    at = find_in_chunks(body, at_byte)
    assert at is not None
    assert body[at : at + 1] == found


def test_nothing_is_changed_where_nothing_is_sent() -> None:
    for body, headers in ((b"", {}), (b"0\r\n\r\n", {"HTTP_CONTENT_ENCODING": "aws-chunked"})):
        environ: dict[str, Any] = {"wsgi.input": io.BytesIO(body), **headers}
        assert not flip_upload(environ, 0)
        assert environ["wsgi.input"].read() == body


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({}, None),
        ({"HTTP_X_AMZ_CONTENT_SHA256": "UNSIGNED-PAYLOAD", "HTTP_X_AMZ_CHECKSUM_MODE": "ENABLED"}, None),
        ({"HTTP_CONTENT_MD5": "x"}, "BadDigest"),
        ({"HTTP_X_AMZ_CHECKSUM_CRC64NVME": "x"}, "BadDigest"),
        ({"HTTP_X_AMZ_TRAILER": "x-amz-checksum-crc32"}, "BadDigest"),
        ({"HTTP_X_AMZ_CONTENT_SHA256": "0" * 64}, "XAmzContentSHA256Mismatch"),
        ({"HTTP_X_AMZ_CONTENT_SHA256": "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"}, "SignatureDoesNotMatch"),
    ],
)
def test_s3_refuses_what_is_not_as_the_client_said(headers: dict[str, str], code: str | None) -> None:
    refusal = find_refusal(headers)
    assert (refusal.code if refusal else None) == code


class SlowHost:
    """Its process 1 takes note of SIGKILL a while after that was sent, as on a busy machine; or never."""

    def __init__(self, *, dies_after_s: float) -> None:
        self.process = subprocess.Popen(["sleep", "60"])
        self._killer = threading.Timer(dies_after_s, self.process.kill)

    @property
    def exit_code(self) -> int | None:
        return self.process.poll()

    def kill(self) -> None:
        self._killer.start()

    def close(self) -> None:
        self._killer.cancel()
        self.process.kill()
        self.process.wait()


def kill(host: SlowHost) -> str:
    instance = SimpleNamespace(id="i-1", state="running", impaired=False)
    berth = SimpleNamespace(host=host, boot=SimpleNamespace(done=lambda: True), lost=False)
    fleet: Any = SimpleNamespace(find_berth=lambda _: berth)
    backend: Any = SimpleNamespace(sandbox_instances=lambda: [instance])
    return HostFaults(fleet, backend).acts["kill"]({"instance": "i-1"})


def test_a_host_that_is_said_to_be_dead_is_dead() -> None:
    host = SlowHost(dies_after_s=0.4)
    try:
        assert kill(host) == "the host of i-1 is dead, and its instance stops"
        assert host.process.returncode is not None
    finally:
        host.close()


def test_one_that_does_not_die_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_faults, "END_TIMEOUT_S", 0.2)
    host = SlowHost(dies_after_s=60)
    try:
        with pytest.raises(FaultError, match=r"the host of i-1 was killed, and still lives after 0\.2 s"):
            kill(host)
    finally:
        host.close()
