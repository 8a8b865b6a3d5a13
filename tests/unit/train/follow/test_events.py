"""A job's log is read as events, which are rendered as lines of output."""

import json

import pytest
from msgspec.structs import replace

from foundation.errors import UsageError
from node.protocol import JobResult, LogWanted, Process, Role
from train.follow.events import Event, EventReader, is_wanted, parse_since, render_line

LOG = [
    '{"t":1.0,"state":"starting"}',
    '{"t":2.0,"p":0,"role":"worker","host":"node-1"}',
    '{"t":2.5,"p":0,"pid":4711}',
    '{"t":3.0,"p":0,"line":"before its rank is known"}',
    '{"t":3.5,"p":0,"rank":2}',
    '{"t":4.0,"p":0,"line":"after"}',
    '{"bar":"1%|\\n2%|","p":0,"t":4.5}',
    '{"t":5.0,"p":0,"exit":137,"signal":9}',
    '{"t":6.0,"message":"worker 2 on node-1 was killed"}',
    '{"t":6.5,"warnings":["2 models"]}',
    '{"t":7.0,"result":{"state":"failed","exit_code":137,"error":"worker 2","left":{"node-0":[[7,"python"]]}}}',
]


def test_events_build_on_the_lines_before_them() -> None:
    reader = EventReader()
    events = [reader.read(line.encode()) for line in LOG]
    known = Process(number=0, role="worker", host="node-1", rank=2, pid=4711)
    unknown = Process(number=0, role="worker", host="node-1", pid=4711)
    assert events[3] == Event(kind="line", at=3.0, process=unknown, text="before its rank is known")
    assert events[5] == Event(kind="line", at=4.0, process=known, text="after")
    assert events[6] == Event(kind="bar", at=4.5, process=known, text="1%|\n2%|")
    assert events[7].process == replace(known, exit_code=137, signal=9)
    assert events[8] == Event(kind="message", at=6.0, text="worker 2 on node-1 was killed")
    assert events[9] == Event(kind="warnings", at=6.5, warnings=("2 models",))
    assert events[10].result == JobResult(
        state="failed", exit_code=137, error="worker 2", left={"node-0": [(7, "python")]}
    )
    assert reader.state == "failed"


def test_a_rank_that_is_known_before_is_that_of_all_lines() -> None:
    reader = EventReader()
    reader.learn([Process(role="worker", host="node-1", number=0, rank=2)])
    events = [reader.read(line.encode()) for line in LOG]
    assert [event.process.tag for event in events if event is not None and event.process is not None] == [
        "worker 2 node-1"
    ] * 7


@pytest.mark.parametrize("line", [{"t": 1.0, "weather": "fine"}, {"alive": True}])
def test_unknown_lines_of_later_versions_are_skipped(line: dict[str, object]) -> None:
    assert EventReader().read(json.dumps(line).encode()) is None


DEEP = b"[" * 1_000_000 + b"]" * 1_000_000


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"half of a li", "malformed"),
        (b'{"t":1,"p":5,"line":"of nobody"}', "process 5 is unknown"),
        (b'{"t":1,"p":999999,"role":"worker","host":"h"}', "32767"),
        (b'{"t":1,"p":0,"exit":' + b"9" * 5000 + b"}", "out of range"),
        (b'{"t":1,"message":"\xff"}', "utf-8"),
        (b'{"t":1,"more":' + DEEP + b"}", "nested too deeply"),
    ],
    ids=lambda value: value[:40] if isinstance(value, bytes) else "",
)
def test_a_damaged_line_is_an_event_and_the_next_is_read(line: bytes, why: str) -> None:
    reader = EventReader()
    assert reader.read(b'{"t":5,"p":0,"role":"worker","host":"node-0"}') is not None
    event = reader.read(line)
    assert (event.kind, event.at) == ("damaged", 5.0)
    assert event.text.startswith("a line of the job's log is damaged: ")
    assert why in event.text
    assert len(event.text) < 300
    assert reader.read(b'{"t":6,"p":0,"line":"next"}') == Event(
        kind="line", at=6.0, process=Process(number=0, role="worker", host="node-0"), text="next"
    )


def process(role: Role = "worker", *, rank: int | None = 0, host: str = "node-1") -> Process:
    return Process(number=0, role=role, host=host, rank=rank)


def line(text: str, of: Process, *, at: float = 100.0) -> Event:
    return Event(kind="line", at=at, process=of, text=text)


@pytest.mark.parametrize(
    ("event", "shown"),
    [
        (line("text", process()), "[worker 0 node-1] text"),
        (line("", process(rank=None)), "[worker ? node-1] "),
        (line("a", process("scheduler", rank=None, host="node-0")), "[scheduler node-0] a"),
        (Event(kind="message", at=1.0, text="ended"), "[supervisor node-0] ended"),
        (Event(kind="state", at=1.0, state="running"), None),
        (Event(kind="process", at=1.0, process=process()), None),
    ],
)
def test_a_line_names_its_process(event: Event, shown: str | None) -> None:
    assert render_line(event) == shown


@pytest.mark.parametrize(
    ("wanted", "taken"),
    [
        (LogWanted(), {"worker 0", "worker 1", "worker ?", "server 0", "setup", "message", "late"}),
        (LogWanted(ranks=(0,)), {"worker 0", "server 0", "message", "late"}),
        (LogWanted(roles=("worker",)), {"worker 0", "worker 1", "worker ?", "message", "late"}),
        (LogWanted(roles=("worker",), ranks=(1,)), {"worker 1", "message"}),
        (LogWanted(roles=("setup",)), {"setup", "message"}),
        (LogWanted(since=150.0), {"late"}),
    ],
)
def test_lines_are_selected_by_rank_role_and_time(wanted: LogWanted, taken: set[str]) -> None:
    events = {
        "worker 0": line("", process()),
        "worker 1": line("", process(rank=1)),
        "worker ?": line("", process(rank=None)),
        "server 0": line("", process("server")),
        "setup": line("", process("setup", rank=None)),
        "message": Event(kind="message", at=100.0, text=""),
        "late": line("", process(), at=200.0),
    }
    assert {name for name, event in events.items() if is_wanted(event, wanted)} == taken


@pytest.mark.parametrize(("text", "moment"), [("90s", 910.0), ("1d", -85400.0), ("1970-01-01T00:10+00:00", 600.0)])
def test_since_is_a_length_of_time_or_a_moment(text: str, moment: float) -> None:
    assert parse_since(text, now=1000.0) == moment


@pytest.mark.parametrize("text", ["", "10", "-5m", "yesterday", "10 m m", "1e400d", "9" * 400 + "m"])
def test_an_invalid_since_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--since"):
        parse_since(text, now=1000.0)
