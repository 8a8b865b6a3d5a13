"""Submitting a job to the head, following it over broken connections, and the error for its end."""

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import to_builtins

from foundation.decode import decode
from foundation.errors import ClusterError, ConnectError, JobError, NotFoundError
from job_channels import ALIVE, BROKEN, LOG, Channel, FakeHead, channel, encode, make_order
from job_forms import make_record
from node.protocol import JobResult, LogWanted, Order, Process
from node.wire import Submitted
from train.follow import run
from train.follow.events import Event, EventReader
from train.follow.run import LogStream, check_result, pass_on, submit

ORDER = make_order(secrets={"K": "v"})
NO_ANSWER = ConnectError("node-0: no answer on port 22", hint="cluster allow")


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "LONGEST_PAUSE_S", 0.0)


def everything() -> list[Event]:
    reader = EventReader()
    return [event for line in LOG.splitlines() if (event := reader.read(line)) is not None]


@pytest.mark.parametrize("is_lost", [False, True], ids=["at once", "after a lost answer"])
def test_a_second_job_is_refused_with_the_name_of_the_first(*, is_lost: bool) -> None:
    first = make_record(job="j0", name="first", workers=1, servers=0, state="running", submitted_at=1.0)
    answer = encode([to_builtins(Submitted(refused=first))])
    fake = breaks_off(answer) if is_lost else FakeHead(lambda _: channel(answer))
    with pytest.raises(ClusterError, match=r"job j0 \(first\) is running") as caught:
        submit(fake.make(), ORDER, follow=True)
    assert caught.value.hint == "cluster train --queue ..., or cluster stop j0"


@pytest.mark.parametrize(
    ("message", "words"), [(b'{"error":"no space left on device"}\n', "no space"), (b"", "no answer")]
)
def test_a_job_that_the_head_does_not_accept(message: bytes, words: str) -> None:
    with pytest.raises(ClusterError, match=words):
        submit(FakeHead(lambda _: channel(message)).make(), ORDER, follow=True)


def breaks_off(answer: bytes) -> FakeHead:
    """A head whose first connection for submit breaks before the answer. The next connection brings this answer."""
    return FakeHead(lambda words: channel(exit_code=-1) if "--follow" in words else channel(answer))


def test_a_job_whose_answer_was_lost_is_submitted_again() -> None:
    """Both requests create one job on the head."""
    fake = breaks_off(b'{"job":"j1","state":"running"}\n')
    assert submit(fake.make(), ORDER, follow=True) == ("running", None)
    assert fake.asked == [["submit", "--follow"], ["submit"]]
    assert [decode(each.got, Order) for each in fake.channels] == [ORDER, ORDER]
    assert all(each.closed for each in fake.channels)


def serve(words: Sequence[str], cut_at: int | None) -> Channel:
    """Answers `follow ID OFFSET`, with keep-alives between lines. cut_at: where the connection breaks, in bytes."""
    assert words[:2] == ["follow", "j1"]
    message = ALIVE + b"".join(line + b"\n" + ALIVE for line in LOG[int(words[2]) :].splitlines())
    return channel(message) if cut_at is None else channel(message[:cut_at], exit_code=BROKEN)


def follow(stream: LogStream, take: Callable[[Event], None] = lambda _: None) -> JobResult | None:
    return pass_on(stream.lines(), EventReader(), take)


@given(cuts=st.lists(st.integers(min_value=0, max_value=len(LOG)), max_size=12))
def test_no_event_is_lost_or_repeated_when_connections_break(cuts: list[int]) -> None:
    left = iter([*cuts, None])
    fake = FakeHead(lambda words: serve(words, next(left, None)))
    events: list[Event] = []
    stream = LogStream(fake.make(), "j1", message=lambda _: None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "LONGEST_PAUSE_S", 0.0)
        follow(stream, events.append)
    assert events == everything()


def test_each_problem_of_the_connection_is_reported_once() -> None:
    cuts = iter([100, None])
    fake = FakeHead(lambda words: serve(words, next(cuts)))
    messages: list[str] = []

    def take(_: Event) -> None:
        if not messages:
            fake.refuse.extend([NO_ANSWER] * 3)

    follow(LogStream(fake.make(), "j1", message=messages.append), take)
    assert [words.partition(";")[0] for words in messages] == [
        "node-0 (10.0.0.1): the connection is lost, or jobs.py was killed",
        "node-0: no answer on port 22 (try: cluster allow)",
        "reconnected to node-0",
    ]
    assert "job j1 keeps running; retrying for 10 min" in messages[0]


def test_a_head_that_does_not_come_back_in_time_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "CLIENT_PATIENCE_S", -1.0)
    fake = FakeHead(lambda _: channel(exit_code=BROKEN))
    with pytest.raises(ConnectError, match="job j1 may still run") as caught:
        follow(LogStream(fake.make(), "j1", message=lambda _: None))
    assert caught.value.hint == "cluster logs -f j1"


def test_a_wanted_part_of_a_log_is_asked_for_once() -> None:
    start = LOG.index(b'{"t": 3.0, "p": 0')
    known = Process(role="worker", host="node-0", number=0, rank=1)
    message = encode([{"start": start, "processes": [to_builtins(known)]}])
    cuts = iter([len(ALIVE + message) + 60, None])

    def answer(words: Sequence[str]) -> Channel:
        log = message + LOG[start:] if "--start" in words else LOG[int(words[2]) :]
        cut_at = next(cuts)
        return channel((ALIVE + log)[:cut_at], exit_code=0 if cut_at is None else BROKEN)

    fake = FakeHead(answer)
    begun: list[Process] = []
    wanted = LogWanted(tail=2, ranks=(1,))
    stream = LogStream(fake.make(), "j1", message=lambda _: None, wait=False, wanted=wanted, begin=begun.extend)
    assert list(stream.lines()) == LOG[start:].splitlines()
    assert begun == [known]
    first, second = fake.asked
    assert decode(first[-1].encode(), LogWanted) == wanted
    assert second == ["follow", "j1", second[2], "--no-wait"]
    assert int(second[2]) > start


def test_a_job_unknown_to_the_head() -> None:
    fake = FakeHead(lambda _: channel(b'{"error":"there is no job j1"}\n'))
    with pytest.raises(NotFoundError, match="no job j1"):
        follow(LogStream(fake.make(), "j1", message=lambda _: None))


def result(**values: object) -> JobResult:
    return JobResult(**{"state": "done", "exit_code": 0, "error": None, "left": {}, **values})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("ended", "code", "words"),
    [
        (result(state="failed", exit_code=7, error="worker 1 ended with exit code 7"), 7, "failed: worker 1 ended"),
        (result(state="stopped", exit_code=130, error="stopped"), 130, r"was stopped$"),
        (result(state="stopped", exit_code=130, error="by signal 15"), 130, "stopped: by signal 15"),
        (result(left={"node-1": [(12, "python x")]}), 1, r"left processes behind\n.*node-1: process 12 \(python x\)"),
        (result(state="failed", exit_code=1, error="e", left={"node-1": [(0, "could not be")]}), 1, "node-1 c"),
    ],
)
def test_the_error_for_each_end_of_a_job(ended: JobResult, code: int, words: str) -> None:
    check_result("j1", result())
    with pytest.raises(JobError, match=words) as caught:
        check_result("j1", ended)
    assert caught.value.exit_code == code
