"""Faults: their syntax, when they occur, and the effects of faults on S3's bytes and on hosts."""

import io
import json
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sandbox.api.faults import find_in_chunks, find_refusal, flip, flip_upload
from sandbox.control import ask
from sandbox.daemon import ControlApi, ControlServer, MainThreadCalls
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
def test_valid_faults(text: str, parameters: dict[str, str], left: int | None) -> None:
    fault = parse_fault(text)
    assert (fault.kind, dict(fault.parameters), fault.left) == (text.split(maxsplit=1)[0], parameters, left)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "begins with its kind: capacity"),
        ("thottle", 'did you mean "throttle"?'),
        ("throttle now", '"now" does not have the form name=value; throttle takes service=, action='),
        ("throttle colour=red", "unknown parameter colour="),
        ("throttle rate=1.5", "a share of calls, 0 to 1"),
        ("throttle rate=-1", "a share of calls, 0 to 1"),
        ("throttle rate=nan", "a share of calls, 0 to 1"),
        ("throttle seed=1", "seed= needs rate="),
        ("throttle action=", "an API action"),
        ("throttle count=0", "of at least 1"),
        ("throttle count=-1", "of at least 1"),
        ("throttle action=A action=B", "given twice"),
        ("capacity market=reserved", "on-demand or spot"),
        ("capacity free=²", "0 or more"),
        ("kill", "instance= is missing"),
        ("link instance=i-1 mbit=fast", "a number of Mbit/s"),
        ("kill instance=i-1 count=2", "takes no count="),
        ("throttle action='A", "No closing quotation"),
    ],
)
def test_invalid_faults_are_refused(text: str, said: str) -> None:
    with pytest.raises(FaultError) as caught:
        parse_fault(text)
    assert said in str(caught.value)


def test_a_fault_strikes_matching_calls_count_times() -> None:
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


def test_find_does_not_strike_and_spend_lowers_a_number() -> None:
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
def test_immediate_faults_cannot_be_armed(kind: Any) -> None:
    words = [kind.name, *(f"{parameter.name}=1" for parameter in kind.parameters if parameter.required)]
    with pytest.raises(FaultError, match="acts at once"):
        FaultBook().arm(" ".join(words))


def test_threads_together_take_no_more_than_count() -> None:
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
    """A control socket with a separate main thread. `kill` is its only immediate fault."""
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
    server = ControlServer(tmp_path / "control.sock", ControlApi(FaultBook(), calls, {"kill": kill}))
    server.start()
    yield tmp_path / "control.sock"
    server.shutdown()
    server.server_close()
    stop.set()
    main.join()


def test_faults_over_the_socket(socket_path: Path) -> None:
    assert socket_path.stat().st_mode & 0o777 == 0o600
    armed = ask(socket_path, {"do": "fault", "text": "capacity zone=a"})
    assert armed == {"id": "fault-1", "kind": "capacity", "parameters": {"zone": "a"}, "left": None, "struck": 0}
    assert ask(socket_path, {"do": "faults"}) == [armed]
    assert ask(socket_path, {"do": "disarm", "which": "all"}) == [armed]
    assert ask(socket_path, {"do": "faults"}) == []


def test_immediate_faults_run_in_the_main_thread(socket_path: Path) -> None:
    assert ask(socket_path, {"do": "fault", "text": "kill instance=i-1"})["did"] == "killed in main"
    with pytest.raises(FaultError, match="no host of i-2"):
        ask(socket_path, {"do": "fault", "text": "kill instance=i-2"})
    with pytest.raises(FaultError, match="no hosts"):
        ask(socket_path, {"do": "fault", "text": "freeze instance=i-1"})


@pytest.mark.parametrize("line", [b"nonsense", b"[]", b"{}", b'{"do": "dance"}', b'{"do": "fault"}', b"\xff"])
def test_invalid_requests_are_refused(line: bytes) -> None:
    api = ControlApi(FaultBook(), MainThreadCalls(lambda: None), {})
    assert "invalid request" in api.answer(line)["error"]
    assert json.dumps(api.answer(line))


SIGNED = b"4;chunk-signature=00ff\r\nabcd\r\n3;chunk-signature=00ff\r\nefg\r\n0;chunk-signature=00ff\r\n\r\n"
PLAIN = b"4\r\nabcd\r\n3\r\nefg\r\n0\r\nx-amz-checksum-crc32:AAAAAA==\r\n\r\n"


def test_flip_inverts_one_byte() -> None:
    assert flip(b"abc", 1) == bytes([ord("a"), ord("b") ^ 0xFF, ord("c")])
    assert flip(b"abc", 99)[:2] == b"ab"
    assert flip(b"", 0) == b""


@pytest.mark.parametrize("body", [SIGNED, PLAIN])
@pytest.mark.parametrize(("at_byte", "found"), [(0, b"a"), (3, b"d"), (4, b"e"), (6, b"g"), (7, b"g"), (999, b"g")])
def test_positions_in_a_chunked_body_count_content_only(body: bytes, at_byte: int, found: bytes) -> None:
    at = find_in_chunks(body, at_byte)
    assert at is not None
    assert body[at : at + 1] == found


def test_an_upload_without_content_is_not_changed() -> None:
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
def test_s3_refuses_a_changed_upload_that_has_a_checksum(headers: dict[str, str], code: str | None) -> None:
    refusal = find_refusal(headers)
    assert (refusal.code if refusal else None) == code


class SlowHost:
    """A host whose process 1 ends some time after SIGKILL, as on a busy machine, or never."""

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
    instance = SimpleNamespace(id="i-1", state="running", impaired_at=None)
    slot = SimpleNamespace(host=host, boot=SimpleNamespace(done=lambda: True), lost=False)
    fleet: Any = SimpleNamespace(find_slot=lambda _: slot)
    backend: Any = SimpleNamespace(sandbox_instances=lambda: [instance])
    return HostFaults(fleet, backend).acts["kill"]({"instance": "i-1"})


@pytest.fixture
def slow_host(request: pytest.FixtureRequest) -> Iterator[SlowHost]:
    host = SlowHost(dies_after_s=request.param)
    yield host
    host.close()


@pytest.mark.parametrize("slow_host", [0.4], indirect=True)
def test_kill_waits_until_the_host_is_dead(slow_host: SlowHost) -> None:
    assert kill(slow_host) == "killed the host of i-1; the instance stops"
    assert slow_host.process.returncode is not None


@pytest.mark.parametrize("slow_host", [60], indirect=True)
def test_a_host_that_survives_kill_is_reported(slow_host: SlowHost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_faults, "END_TIMEOUT_S", 0.2)
    with pytest.raises(FaultError, match=r"the host of i-1 is still alive 0\.2 s after it was killed"):
        kill(slow_host)
