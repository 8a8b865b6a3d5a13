"""A job's log, as it is written, becomes events."""

import json

import pytest

from train.events import Event, EventReader, Process, Result

LOG = [
    '{"t":1.0,"state":"starting"}',
    '{"t":2.0,"p":0,"role":"worker","host":"node-1"}',
    '{"t":2.5,"p":0,"pid":4711}',
    '{"t":3.0,"p":0,"line":"before its rank is known"}',
    '{"t":3.5,"p":0,"rank":2}',
    '{"t":4.0,"p":0,"line":"after"}',
    '{"t":5.0,"p":0,"exit":137,"signal":9}',
    '{"t":6.0,"say":"worker 2 on node-1 was killed"}',
    '{"t":6.5,"warnings":["2 models"]}',
    '{"t":7.0,"result":{"state":"failed","exit_code":137,"error":"worker 2","left":{"node-0":[[7,"python"]]}}}',
]


def test_events_build_on_the_lines_before_them() -> None:
    reader = EventReader()
    events = [reader.read(line.encode()) for line in LOG]
    known = Process(number=0, role="worker", host="node-1", rank=2, pid=4711)
    assert events[3] == Event(
        kind="line",
        at=3.0,
        process=Process(number=0, role="worker", host="node-1", pid=4711),
        text="before its rank is known",
    )
    assert events[5] == Event(kind="line", at=4.0, process=known, text="after")
    assert events[6] is not None
    assert events[6].process == Process(
        number=0, role="worker", host="node-1", rank=2, pid=4711, exit_code=137, signal=9
    )
    assert events[7] == Event(kind="say", at=6.0, text="worker 2 on node-1 was killed")
    assert events[8] == Event(kind="warnings", at=6.5, warnings=("2 models",))
    assert events[9] is not None
    assert events[9].result == Result(state="failed", exit_code=137, error="worker 2", left={"node-0": [[7, "python"]]})
    assert reader.state == "failed"


@pytest.mark.parametrize("line", [{"t": 1.0, "weather": "fine"}, {"alive": True}])
def test_what_later_versions_say_is_passed_over(line: dict[str, object]) -> None:
    assert EventReader().read(json.dumps(line).encode()) is None


def test_a_result_may_say_more_than_is_known_today() -> None:
    line = b'{"t":1,"result":{"state":"done","exit_code":0,"error":null,"left":{},"cost":3}}'
    event = EventReader().read(line)
    assert event is not None
    assert event.result == Result(state="done", exit_code=0, error=None, left={})


@pytest.mark.parametrize(
    "line",
    [b"", b"half of a li", b"[]", b'{"t":1,"p":5,"line":"of nobody"}', b'{"t":1,"result":{}}', b'{"say":"when?"}'],
)
def test_what_is_no_line_of_a_log_is_an_error_that_says_so(line: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        EventReader().read(line)


@pytest.mark.parametrize(
    ("process", "tag"),
    [
        (Process(number=0, role="worker", host="node-1", rank=0), "worker 0 node-1"),
        (Process(number=0, role="worker", host="node-1"), "worker ? node-1"),
        (Process(number=0, role="server", host="node-0", rank=3), "server 3 node-0"),
        (Process(number=0, role="scheduler", host="node-0"), "scheduler node-0"),
        (Process(number=0, role="setup", host="node-1"), "setup node-1"),
        (Process(number=0, role="launcher", host="node-0"), "launcher node-0"),
    ],
)
def test_a_process_is_named_by_role_rank_and_node(process: Process, tag: str) -> None:
    assert process.tag == tag
