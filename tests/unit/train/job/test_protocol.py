"""What the head and S3 say of jobs is held against its form: what is damaged is told, and hides nothing else."""

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

import train.follow.head as head_module
from foundation.errors import ClusterError, ConnectError
from job_channels import ALIVE, FakeHead, channel, make_order
from train.follow.head import SHELL_BYTES, AnswerError, Talk, never
from train.follow.records import DamagedRecordError, choose_job, find_running, merge_records, read_jobs, read_record
from train.follow.run import LogStream, submit
from train.job.protocol import MAX_JOBS, MAX_LINE_BYTES, MAX_RECORD_BYTES, shorten

GOOD: dict[str, Any] = {
    "id": "20261121-000000-abcdef",
    "name": "train_mnist",
    "state": "running",
    "workers": 2,
    "servers": 2,
    "submitted_at": 1000.0,
    "started_at": 1001.5,
    "ended_at": None,
    "exit_code": None,
    "error": None,
    "left": {"node-1": [[7, "python"]]},
    "nodes": [{"name": "node-0", "ip": "10.0.0.1", "instance_id": "i-1"}],
    "roles": [{"role": "worker", "host": "node-0", "rank": None, "ended_at": None}],
    "of a later version": {"what": ["ever"]},
}
DEEP = "[" * 5000 + "]" * 5000


def without(key: str) -> bytes:
    return json.dumps({name: value for name, value in GOOD.items() if name != key}).encode()


def but(**values: Any) -> bytes:
    return json.dumps({**GOOD, **values}).encode()


DAMAGED = {
    "nothing": b"",
    "half": but()[:-20],
    "a number": b"5",
    "a list": b"[]",
    "another object": b"{}",
    "no id": without("id"),
    "no state": without("state"),
    "no error": without("error"),
    "an id that is a path": but(id="../../x"),
    "an id with an escape": but(id="a\x1b[2J"),
    "an endless id": but(id="a" * 1000),
    "a name of lines": but(name="a\nb"),
    "an unknown state": but(state="thriving"),
    "workers in words": but(workers="two"),
    "workers below zero": but(workers=-1),
    "a time in words": but(submitted_at="now"),
    "a time out of time": but(started_at=1e300),
    "true as a number": but(exit_code=True),
    "an exit code beyond all": but(exit_code=10**30),
    "thousands of digits": but().replace(b'"workers": 2', b'"workers": ' + b"9" * 5000),
    "no number": but(submitted_at=float("nan")),
    "infinity": but().replace(b"1001.5", b"1e999"),
    "what is left is a list": but(left=[1]),
    "what is left has no words": but(left={"node-0": [[1]]}),
    "nodes are names": but(nodes=["node-0"]),
    "roles without hosts": but(roles=[{"role": "worker"}]),
    "no UTF-8": but().replace(b"train_mnist", b"\xff\xfe"),
    "deep": but().replace(b'["ever"]', DEEP.encode()),
    "a little deep": but().replace(b'["ever"]', b"[" * 40 + b"]" * 40),
    "long": but(error="x" * MAX_RECORD_BYTES),
}


def test_a_good_record_is_read_with_all_that_is_in_it() -> None:
    record = read_record(but(), source="head")
    assert (record.id, record.state, record.started_at, record.left) == (
        GOOD["id"],
        "running",
        1001.5,
        {"node-1": [(7, "python")]},
    )
    assert record.document == GOOD
    assert record.nodes[0].instance_id == "i-1"
    assert record.roles[0].rank is None


@pytest.mark.parametrize("what", DAMAGED)
def test_one_damaged_record_is_told_and_all_others_are_read(what: str) -> None:
    other = but(id="20261121-000001-abcdef", name="other", state="done", submitted_at=900.0)
    good, *rest = (
        merge_records(read_jobs(b'{"jobs": [' + b", ".join([DAMAGED[what], other]) + b"]}"))
        if what != "half"
        else (merge_records([read_record(other, source="head"), read_record(DAMAGED[what], source="head")]))
    )
    assert (good.name, good.state) == ("other", "done")
    [damaged] = rest
    assert damaged.is_damaged
    assert damaged.error
    assert len(damaged.error) < 300
    assert "\n" not in damaged.error
    assert damaged.document == {"id": damaged.id, "state": "damaged", "error": damaged.error}
    assert not damaged.has_ended
    records = (good, damaged)
    assert choose_job(records, None) == good
    assert find_running(records) is None
    with pytest.raises(DamagedRecordError, match="is damaged: "):
        choose_job(records, damaged.id)


def test_a_record_that_is_whole_in_s3_stands_for_a_damaged_one_of_the_head() -> None:
    damaged = read_record(but(state=1), source="head")
    whole = read_record(but(), source="s3")
    assert merge_records([damaged], [whole]) == (whole,)
    assert merge_records([whole], [damaged]) == (whole,)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b'{"jobs": 5}', "no list"),
        (b'{"jobs": [', "no end"),
        (b'{"jobs": ["' + b"a" * 1000, "no end"),
        (b'{"jobs": ' + DEEP.encode()[:5000], "no end"),
        (b'{"jobs": [' + b"1," * (MAX_JOBS + 2) + b"1]}", "more than 1000 jobs"),
        (b'{"jobs": [' + b"1," * 10**6 + b"1]}", "more than 600000 values"),
        (b'{"refused": {}}', "no list"),
    ],
)
def test_what_is_no_list_of_jobs_is_an_error(line: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        read_jobs(line)


def test_an_empty_list_has_no_jobs() -> None:
    assert read_jobs(b'{"jobs": [ ]}') == ()


def test_brackets_and_quotes_in_text_do_not_cut_a_record() -> None:
    names = ['a"]},{[', "b\\", 'c\\"', "d,]"]
    line = json.dumps({"jobs": [{**GOOD, "name": name} for name in names]}).encode()
    assert [record.name for record in read_jobs(line)] == names


def test_texts_of_others_are_one_line_of_limited_length() -> None:
    assert shorten("a\r\nb\n\n c") == "a; b; c"
    assert len(shorten("x" * 10**6)) == 500


# -- answers that never come, or never end ---------------------------------------------------------------------------


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a second goes by at each look at the clock."""
    began = time.monotonic()
    looks = iter(range(10**9))
    monkeypatch.setattr(head_module.time, "monotonic", lambda: began + 0.5 * next(looks))


def ask(*pieces: bytes | None, **how: Any) -> bytes:
    return FakeHead(lambda _: channel(*pieces, **how)).make().ask("list")


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize(
    ("pieces", "why"),
    [
        ([ALIVE] * 1000, "alive, and no answer has come"),
        ([ALIVE, None] * 1000, "alive, and no answer has come"),
        ([b"{", *[b"x"] * 1000], "has not ended a line for 15 s"),
        ([b"x\n"] * 1000, "goes on talking"),
        ([b"x" * (MAX_LINE_BYTES // 4)] * 5, "a line of more than 8 MiB"),
        ([b"banner\n" * (SHELL_BYTES // 7 + 2)], "has printed more than 64 KiB"),
    ],
)
def test_a_head_that_talks_and_does_not_answer_is_given_up(pieces: list[bytes | None], why: str) -> None:
    with pytest.raises(AnswerError, match=why):
        ask(*pieces)


@pytest.mark.usefixtures("clock")
def test_a_head_that_falls_silent_is_lost() -> None:
    with pytest.raises(ConnectError, match="nothing was heard for"):
        ask(b"banner\n", *[None] * 1000)


def test_a_job_that_was_not_answered_for_is_not_handed_over_again(clock: None) -> None:
    del clock
    fake = FakeHead(lambda _: channel(*[ALIVE] * 1000))
    with pytest.raises(AnswerError, match="not known whether job j1 was begun"):
        submit(fake.make(), make_order(), follow=True)
    assert fake.asked == [["submit", "--follow"]]


@pytest.mark.parametrize(
    "answer",
    [
        b'{"job": 5}',
        b'{"refused": 1}',
        b'{"refused": {"id": "j0"}}',
        b'{"job": "j1", "state": "thriving"}',
        b'{"job": "j1", "x": ' + DEEP.encode() + b"}",
    ],
)
def test_an_answer_to_an_order_that_is_none(answer: bytes) -> None:
    with pytest.raises(AnswerError, match="cannot be understood"):
        submit(FakeHead(lambda _: channel(answer + b"\n")).make(), make_order(), follow=False)


def test_a_program_that_closes_its_output_and_goes_on_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head_module, "END_TIMEOUT_S", 0.01)
    goes_on = channel(b"")
    goes_on.status_event.clear()
    with pytest.raises(ConnectError, match=r"the connection broke, or jobs\.py was killed"):
        list(Talk(goes_on, where="node-0").lines(never))


def test_a_traceback_of_the_head_is_told_by_its_last_line() -> None:
    said = b"Traceback (most recent call last):\n  File \"jobs.py\", line 1, in <module>\nKeyError: 'state'\n"
    with pytest.raises(ClusterError, match=r"exit code 1:\n  KeyError: 'state'$"):
        ask(exit_code=1, stderr=said)


def log_of(answer: Callable[[], Any]) -> list[bytes]:
    fake = FakeHead(lambda _: answer())
    return list(LogStream(fake.make(), "j1", say=lambda _: None, wait=False).lines())


@pytest.mark.usefixtures("clock")
def test_a_log_of_nothing_but_signs_of_life_is_given_up() -> None:
    with pytest.raises(AnswerError, match="has sent nothing of it for 10 s"):
        log_of(lambda: channel(*[ALIVE] * 1000))


def test_a_head_that_ends_again_and_again_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LogStream, "_rest", lambda _: None)
    fake = FakeHead(lambda _: channel(ALIVE))
    with pytest.raises(AnswerError, match="5 times without a line"):
        list(LogStream(fake.make(), "j1", say=lambda _: None).lines())
    assert len(fake.asked) == 5
