"""Faults on demand: how they are written, what they match, and when they are spent."""

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from sandbox.control_socket import ControlServer, Desk, MainThreadCalls, ask
from sandbox.fault_kinds import KINDS
from sandbox.faults import FaultBook, FaultError, parse_fault


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
