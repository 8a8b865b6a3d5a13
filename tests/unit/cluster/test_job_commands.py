"""Which job is meant, how jobs and their logs are shown, and what Ctrl-C does."""

import io
import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from cluster import attach, jobs
from cluster.app import App
from cluster.attach import Interrupts, ask, attend
from cluster.commands import stop as stop_command
from cluster.commands.logs import JsonLines, event_document, replay
from cluster.commands.stop import render_stopped_job, stop_job, stop_without_head
from cluster.jobs import Stopped, confirm_ending, find_gone, find_left, render_interruption
from cluster.views.status import (
    HeadJob,
    Status,
    find_results,
    job_documents,
    render_jobs,
    render_status,
    status_document,
)
from foundation.errors import ClusterError, ConnectError, JobError, NotFoundError, UsageError
from job_channels import ALIVE, BROKEN, LOG, FakeHead, channel, encode, make_order
from provision.model import ClusterState
from provision_world import make_node
from train.follow.events import Event, Selection
from train.follow.head import HeadGoneError
from train.follow.records import JobRecord, choose_job, find_running, merge_records, read_record
from train.job.protocol import JobResult

NOW = datetime(2026, 11, 21, 10, 0, 0, tzinfo=UTC)
ORDER = make_order()
STARTED = b'{"job":"j1","state":"starting"}\n'


def document(number: int, **values: Any) -> dict[str, Any]:
    made = {
        "version": 1,
        "id": f"2026112{number}-000000-abc",
        "name": "train_mnist",
        "state": "done",
        "workers": 2,
        "servers": 2,
        "submitted_at": 1000.0 + number,
        "started_at": NOW.timestamp() - 300,
        "ended_at": NOW.timestamp() - 100,
        "exit_code": 0,
        "error": None,
        "cwd": "/home/ubuntu/x",
        "project": "x",
    }
    return {**made, **values}


def record(number: int, source: str = "head", **values: Any) -> JobRecord:
    return read_record(json.dumps(document(number, **values)).encode(), source=source)  # type: ignore[arg-type]


# -- which job -----------------------------------------------------------------------------------------------------


def test_jobs_of_several_sources_are_one_list_with_the_newest_first() -> None:
    head = [record(1), record(3, state="running")]
    s3 = [record(2, "s3"), record(3, "s3", state="starting"), record(1, "s3")]
    merged = merge_records(head, s3)
    assert [(found.submitted_at, found.source) for found in merged] == [(1003, "head"), (1002, "s3"), (1001, "head")]
    assert merged[0].state == "running"


@pytest.mark.parametrize(
    ("words", "number"),
    [
        (None, 4),
        ("20261122-000000-abc", 2),
        ("20261122", 2),
        ("train_mnist", 4),
        ("other", 3),
        ("20261123", 1),  # a name goes before how an id begins
    ],
)
def test_a_job_is_named_by_its_id_its_name_or_how_its_id_begins(words: str | None, number: int) -> None:
    records = merge_records([record(1, name="20261123"), record(2), record(3, name="other"), record(4)])
    assert choose_job(records, words).submitted_at == 1000 + number


def test_words_that_name_no_job_or_several() -> None:
    records = [record(1), record(2)]
    with pytest.raises(NotFoundError, match='no job "x"'):
        choose_job(records, "x")
    with pytest.raises(NotFoundError):
        choose_job(records, "")
    with pytest.raises(UsageError, match="2 jobs begin so: 20261121-000000-abc, 20261122-000000-abc"):
        choose_job(records, "202611")
    with pytest.raises(NotFoundError, match="no job has run"):
        choose_job([], None)


def test_the_running_job_is_one_that_the_head_says_runs() -> None:
    assert find_running([record(1), record(2, state="queued"), record(3, "s3", state="running")]) is None
    assert find_running([record(2, state="queued"), record(1, state="ending")]) == record(1, state="ending")


# -- how they are shown --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        ({"stall": {"since": 1.0, "text": "worker 1 is stopped"}}, "worker 1 is stopped"),
        ({"warnings": ["2 separate models"]}, "warning: 2 separate models"),
    ],
)
def test_what_is_wrong_with_a_running_job_is_shown(values: dict[str, Any], shown: str) -> None:
    one = record(1, state="running", ended_at=None, exit_code=None, **values)
    assert render_jobs([one], now=NOW).splitlines()[2] == f"    {shown}"
    status = Status(state=ClusterState(name="demo"), asked=2, now=NOW, prices={}, job=HeadJob(record=one))
    assert render_status(status).splitlines()[3] == f"       {shown}"
    job = status_document(status)["job"]
    assert job is not None
    assert job["stall"] == values.get("stall", {}).get("text")


@pytest.mark.parametrize(
    ("values", "command"),
    [
        ({}, "cluster cp node-0:/home/ubuntu/x/FILE ."),
        ({"cwd": "/a b"}, "cluster cp 'node-0:/a b/FILE' ."),
        ({"cwd": f"/.cluster/tree/{'0123abcd' * 8}"}, "cluster cp 'node-0:/.cluster/tree/0123abcd*/FILE' ."),
        ({"project": None}, None),
        ({"project": None, "output_url": "s3://b/results/1/"}, "cluster data ls s3://b/results/1/"),
        ({"command": ["python", "a.py", "--model-prefix", "s3://b/m/mlp"]}, "cluster data ls s3://b/m/"),
        ({"command": ["python", "a.py", "--model-prefix=s3://b/m/mlp", "x"]}, "cluster data ls s3://b/m/"),
        ({"command": ["python", "a.py", "--model-prefix"]}, "cluster cp node-0:/home/ubuntu/x/FILE ."),
        ({"command": ["python", "a.py", "--model-prefix", "mlp"]}, "cluster cp node-0:/home/ubuntu/x/FILE ."),
    ],
)
def test_where_the_results_of_a_job_are(values: dict[str, Any], command: str | None) -> None:
    assert find_results(record(1, **values)) == command


def test_jobs_as_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    records = [
        record(4, state="queued", started_at=None, ended_at=None, exit_code=None),
        record(3, state="running", ended_at=None, exit_code=None),
        record(2, state="failed", exit_code=7, error="worker 1 on node-1 " + "x" * 60 + "\nmore"),
        record(1, "s3", state="running", ended_at=None, exit_code=None),
    ]
    lines = render_jobs(records, now=NOW).splitlines()
    assert lines[0].split() == ["JOB", "NAME", "STATE", "WORKERS", "SERVERS", "STARTED", "TOOK", "CODE"]
    assert lines[1].split()[2:] == ["queued", "2", "2", "-", "-", "-"]
    assert lines[2].split()[2:] == ["running", "2", "2", "2026-11-21", "09:55:00", "5m00s", "-"]
    assert lines[3].split()[2:9] == ["failed", "2", "2", "2026-11-21", "09:55:00", "3m20s", "7"]
    assert lines[4] == "    worker 1 on node-1 " + "x" * 60
    assert "? running (s3)" in lines[5]
    assert lines[6] == f"files of {records[0].id}: cluster cp node-0:/home/ubuntu/x/FILE ."
    assert lines[7].startswith("(s3): ")
    assert render_jobs([], now=NOW) == "no job has run on this cluster"
    document = job_documents(records)[3]
    assert (document["source"], document["started_at"]) == ("s3", "2026-11-21T09:55:00.000+00:00")
    assert document.keys() == {*records[3].document, "source"}


@pytest.mark.parametrize(
    ("job", "line", "shown"),
    [
        (HeadJob(), "job    none", {"state": "none", "why": None, "queued": 0}),
        (HeadJob(why="no answer"), "job    unknown: no answer", {"state": "unknown", "why": "no answer", "queued": 0}),
        (
            HeadJob(record=record(1, state="running", ended_at=None), queued=1),
            (
                "job    20261121-000000-abc (train_mnist) running for 5m00s, 1 queued; "
                "cluster logs -f 20261121-000000-abc follows it"
            ),
            {
                "state": "running",
                "why": None,
                "queued": 1,
                "id": "20261121-000000-abc",
                "name": "train_mnist",
                "workers": 2,
                "servers": 2,
                "started_at": "2026-11-21T09:55:00.000+00:00",
                "stall": None,
            },
        ),
    ],
)
def test_the_running_job_in_the_status(job: HeadJob, line: str, shown: dict[str, Any]) -> None:
    status = Status(state=ClusterState(name="demo"), asked=2, now=NOW, prices={}, job=job)
    assert render_status(status).splitlines()[2] == line
    assert status_document(status)["job"] == shown


def test_what_was_stopped() -> None:
    roles = [
        {"role": "scheduler", "host": "node-0", "rank": None, "ended_at": None},
        {"role": "worker", "host": "node-1", "rank": 0, "ended_at": None},
        {"role": "worker", "host": "node-0", "rank": 1, "ended_at": 5.0},
    ]
    one = record(1, state="running", roles=roles, nodes=[{"name": "node-0"}, {"name": "node-1"}])
    result = JobResult(state="stopped", exit_code=130, error=None, left={})
    assert render_stopped_job(one, Stopped(result=result)) == (
        "job 20261121-000000-abc (train_mnist) is stopped: scheduler on node-0, worker 0 on node-1\n"
        "no process of it is left on node-0, node-1"
    )
    assert render_stopped_job(one, Stopped(result=result, already=True)).endswith("had already ended: stopped")


LEFT: dict[str, list[list[object]]] = {
    "node-0": [[7, "python x.py"]],
    "node-1": [[0, "could not be searched: no route"]],
}
NODES = [{"name": f"node-{number}", "instance_id": f"i-{number}"} for number in range(2)]


def test_what_a_job_left_is_looked_for_by_the_newest_that_has_ended() -> None:
    left = record(1, left=LEFT)
    assert find_left([record(3, state="queued"), left]) == left
    assert find_left([record(2), left]) is None
    assert find_left([]) is None


@pytest.mark.parametrize(
    ("states", "ending", "gone"),
    [
        (("running", "running"), (), []),
        (("running", "stopping"), (), []),
        (("running", "stopped"), (), ["i-1"]),
        (("running",), (), ["i-1"]),
        (("running",), ("i-1",), []),
    ],
)
def test_where_nothing_can_be_left(states: tuple[str, ...], ending: tuple[str, ...], gone: list[str]) -> None:
    nodes = tuple(replace(make_node(n), state=state) for n, state in enumerate(states))  # type: ignore[arg-type]
    one = record(1, nodes=[*NODES, {"name": "lab", "instance_id": ""}])
    assert find_gone(one, ClusterState(name="demo", nodes=nodes, ending=ending)) == gone


class StoppedJobs:
    """What a head answers that has these records, where `still` is left of an ended one after another search."""

    def __init__(self, *records: dict[str, Any], still: dict[str, list[list[object]]] | None = None) -> None:
        self.records = records
        self.still = still or {}

    def __call__(self, words: Any) -> Any:
        if words[0] == "list":
            return channel(encode([{"jobs": list(self.records)}]))
        result = {"state": "failed", "exit_code": 1, "error": "x", "left": self.still}
        return channel(encode([{"result": result, "already": True}]))


@pytest.fixture
def stop_of(app: App, monkeypatch: pytest.MonkeyPatch) -> Callable[..., FakeHead]:
    """Runs `cluster stop WORDS` with a head that answers so; node-1 has ended."""

    def stop(answers: StoppedJobs, words: str | None) -> FakeHead:
        fake = FakeHead(answers)
        monkeypatch.setattr(App, "enter_cloud", lambda _: None)
        monkeypatch.setattr(stop_command, "describe", lambda _: running())
        monkeypatch.setattr(stop_command, "open_head", lambda *_: nullcontext(fake.make()))
        stop_job(app, words)
        return fake

    return stop


@pytest.mark.parametrize("words", [None, "20261122", "train_mnist"])
def test_what_a_job_left_is_ended(
    stop_of: Callable[..., FakeHead], words: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = document(2, state="failed", left=LEFT, nodes=NODES)
    fake = stop_of(StoppedJobs(document(1, left=LEFT), ended), words)
    assert fake.asked == [["list"], ["stop", ended["id"], "i-1"]]
    shown = capsys.readouterr()
    none = "no job runs\n" if words is None else ""
    assert shown.out == (
        f"{none}job 20261122-000000-abc (train_mnist) had already ended: failed\n"
        "ended now: node-0: process 7 (python x.py)\n"
        "no process of it is left on node-0, node-1\n"
    )
    assert (
        "processes of job 20261122-000000-abc (train_mnist) may still run: node-0: process 7 (python x.py); node-1 "
        "could not be searched: no route; searching its nodes again"
    ) in shown.err


def test_what_is_left_after_another_search_is_an_error(
    stop_of: Callable[..., FakeHead], capsys: pytest.CaptureFixture[str]
) -> None:
    still: dict[str, list[list[object]]] = {"node-0": [[7, "python x.py"]]}
    with pytest.raises(
        ClusterError, match=r"had already ended, but processes of it may still run: node-0: process 7 \(python"
    ) as caught:
        stop_of(StoppedJobs(document(2, left=LEFT, nodes=NODES), still=still), None)
    assert "cluster stop 20261122-000000-abc" in (caught.value.hint or "")
    assert caught.value.exit_code == 1
    assert capsys.readouterr().out == "no job runs\n"


@pytest.mark.parametrize("left", [{}])
def test_without_anything_left_nothing_is_searched(
    stop_of: Callable[..., FakeHead], left: object, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = StoppedJobs(document(2, state="failed", left=left), document(1, left=LEFT))
    assert stop_of(ended, None).asked == [["list"]]
    assert capsys.readouterr().out == "no job runs\n"
    stop_of(ended, "20261122")
    assert capsys.readouterr().out == "job 20261122-000000-abc (train_mnist) had already ended: failed\n"


# -- logs ----------------------------------------------------------------------------------------------------------


def test_a_log_that_is_read_afterwards_has_every_line_under_its_rank() -> None:
    events: list[Event] = []
    reader, result = replay(io.BytesIO(LOG), events.append)
    tags = [event.process.tag for event in events if event.kind == "line" and event.process is not None]
    assert tags == ["worker 0 node-1", "worker 0 node-1", "worker 1 node-0"]
    assert result is not None
    assert reader.state == "done"
    assert len(events) == len(LOG.splitlines())


def test_a_log_without_an_end() -> None:
    assert replay(io.BytesIO(encode([{"t": 1.0, "state": "running"}])), lambda _: None)[1] is None


EPOCH = "1970-01-01T00:00:"


def test_a_log_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    sink = JsonLines(App(config_path=Path("cluster.toml")), Selection(ranks=frozenset({1})))
    replay(io.BytesIO(LOG), sink.take)
    shown = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [item["kind"] for item in shown] == ["state", "state", "line", "say", "result"]
    assert shown[2] == {
        "time": f"{EPOCH}03.000+00:00",
        "kind": "line",
        "role": "worker",
        "rank": 1,
        "host": "node-0",
        "text": "ünïcode",
    }
    assert shown[4] == {
        "time": f"{EPOCH}03.300+00:00",
        "kind": "result",
        "state": "done",
        "exit_code": 0,
        "error": None,
    }
    assert event_document(Event(kind="say", at=1.0, text="x")) == {
        "time": f"{EPOCH}01.000+00:00",
        "kind": "say",
        "text": "x",
    }
    warned = Event(kind="warnings", at=1.0, warnings=("x", "y"))
    assert event_document(warned) == {"time": f"{EPOCH}01.000+00:00", "kind": "warnings", "warnings": ["x", "y"]}
    hangs = {"time": f"{EPOCH}09.000+00:00", "kind": "say", "text": "x", "stalled_since": f"{EPOCH}05.000+00:00"}
    assert event_document(Event(kind="say", at=9.0, text="x", stalled_since=5.0)) == hangs
    assert event_document(Event(kind="say", at=9.0, text="x", stalled_since=0.0)) == {**hangs, "stalled_since": None}


# -- Ctrl-C --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("typed", "choice"),
    [
        ("stop\n", "stop"),
        ("what\nLeave\n", "leave"),
        ("c\n", "continue"),
        ("\n", "continue"),
        ("", "leave"),
        (" s \n", "stop"),
    ],
)
def test_the_question_is_asked_until_it_is_answered(
    typed: str, choice: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
    assert ask() == choice
    assert "[s: stop; l: leave it running; c or Enter: continue to watch]" in capsys.readouterr().err


def test_a_signal_is_remembered_and_a_second_one_comes_at_once() -> None:
    with Interrupts() as interrupts:
        interrupts.look()
        os.kill(os.getpid(), signal.SIGTERM)
        assert interrupts.number == signal.SIGTERM
        with pytest.raises(KeyboardInterrupt):
            interrupts.look()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
        interrupts.forget()
        interrupts.look()
        with interrupts.at_once(), pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def interrupting(said: bytes, number: int = signal.SIGINT) -> Callable[[list[str]], Any]:
    """A head that is asked, and whose answer comes with a signal to this process."""

    def answer(words: list[str]) -> Any:
        if words[0] == "stop":
            return channel(encode([{"result": {"state": "stopped", "exit_code": 130, "error": None, "left": {}}}]))
        if words[0] == "follow":
            rest = LOG.rpartition(b'{"t": 3.3')[0][int(words[1 + 1]) :]
            end = {"t": 9.0, "result": {"state": "stopped", "exit_code": 130, "error": None, "left": {}}}
            return channel(rest + encode([end]))
        os.kill(os.getpid(), number)
        return channel(said, None)

    return answer


@pytest.fixture
def app(tmp_path: Path) -> App:
    return App(config_path=tmp_path / "cluster.toml")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_job_that_is_interrupted_before_it_is_known_to_run_is_taken_back(
    app: App, number: int, capsys: pytest.CaptureFixture[str]
) -> None:
    fake = FakeHead(interrupting(STARTED, number))
    assert attend(app, fake.make(), ORDER, plain=False) == 130
    assert [words[0] for words in fake.asked] == ["submit", "stop"]
    assert "did not start" in capsys.readouterr().err


class Slow:
    """A channel that sends a signal to this process when it is read for the second time."""

    def __init__(self, first: bytes, number: int = signal.SIGINT) -> None:
        self.made = channel(first, b"", None, None)
        self._number = number
        self._reads = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.made, name)

    def recv(self, size: int) -> bytes:
        self._reads += 1
        if self._reads == 2:
            os.kill(os.getpid(), self._number)
            raise TimeoutError
        return self.made.recv(size)


def slow_head(first: bytes, number: int = signal.SIGINT) -> FakeHead:
    after = interrupting(b"", number)
    return FakeHead(lambda words: Slow(first, number) if words[0] == "submit" else after(list(words)))  # type: ignore[return-value, arg-type]


def test_without_a_terminal_a_job_is_left_running(app: App, capsys: pytest.CaptureFixture[str]) -> None:
    fake = slow_head(STARTED + LOG[:300])
    assert attend(app, fake.make(), ORDER, plain=False) == 130
    assert [words[0] for words in fake.asked] == ["submit"]
    said = capsys.readouterr().err
    assert "job j1 is still running: cluster logs -f j1 follows it, cluster stop j1 stops it" in said


def test_a_job_that_waits_for_its_turn_is_taken_out_of_the_queue(app: App) -> None:
    fake = slow_head(b'{"job":"j1","state":"queued"}\n' + encode([{"t": 1.0, "state": "queued"}]) + ALIVE)
    with pytest.raises(JobError, match="job j1 was stopped") as caught:
        attend(app, fake.make(), ORDER, plain=False)
    assert caught.value.exit_code == 130
    assert [words[0] for words in fake.asked] == ["submit", "stop"]


def answering(choice: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"{choice}\n"))
    monkeypatch.setattr(attach, "can_ask", lambda: True)


def test_at_a_terminal_a_job_is_stopped_and_its_end_is_shown(
    app: App, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answering("stop", monkeypatch)
    fake = slow_head(STARTED + LOG[:300])
    with pytest.raises(JobError, match="was stopped"):
        attend(app, fake.make(), ORDER, plain=False)
    assert [words[0] for words in fake.asked] == ["submit", "stop", "follow"]
    assert "[worker 1 node-0] ünïcode" in capsys.readouterr().out


@pytest.mark.parametrize(("choice", "asked"), [("leave", ["submit"]), ("continue", ["submit", "follow"])])
def test_at_a_terminal_a_job_is_left_or_goes_on(
    app: App, monkeypatch: pytest.MonkeyPatch, choice: str, asked: list[str]
) -> None:
    answering(choice, monkeypatch)
    fake = slow_head(STARTED + LOG[:300])
    if choice == "leave":
        assert attend(app, fake.make(), ORDER, plain=False) == 130
    else:
        with pytest.raises(JobError, match="was stopped"):
            attend(app, fake.make(), ORDER, plain=False)
    assert [words[0] for words in fake.asked] == asked


# -- a head that does not answer -----------------------------------------------------------------------------------


def running(state: str = "running") -> ClusterState:
    return ClusterState(name="demo", nodes=(replace(make_node(0), state=state, role="head"),))  # type: ignore[arg-type]


def test_the_status_does_not_wait_for_a_head_that_does_not_answer(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "PATIENCE_S", 0.05)
    hung = threading.Event()
    monkeypatch.setattr(jobs, "_ask", lambda *_: hung.wait(30))
    try:
        assert jobs.ask_for_job(app, running())() == HeadJob(why="node-0 did not answer within 0 s")
    finally:
        hung.set()


def test_what_is_wrong_with_the_head_stands_in_the_status(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> HeadJob:
        raise ConnectError("node-0: no answer on port 22\n  its console says")

    monkeypatch.setattr(jobs, "_ask", fails)
    assert jobs.ask_for_job(app, running())() == HeadJob(why="node-0: no answer on port 22")
    assert jobs.ask_for_job(app, running("stopped"))() is None
    assert jobs.ask_for_job(app, ClusterState(name="demo"))() is None


@pytest.mark.parametrize(
    ("job", "said"),
    [
        (HeadJob(), None),
        (HeadJob(queued=2), "2 queued jobs would not run"),
        (
            HeadJob(record=record(1, state="running", ended_at=None)),
            "this would interrupt job 20261121-000000-abc (train_mnist), which has run for 5m00s",
        ),
        (
            HeadJob(record=record(1, state="starting", started_at=None, ended_at=None), queued=1),
            "this would interrupt job 20261121-000000-abc (train_mnist); 1 queued job would not run",
        ),
        (HeadJob(why="node-0 did not answer"), "cannot tell whether a job is running: node-0 did not answer"),
    ],
)
def test_what_the_end_of_the_nodes_would_interrupt(job: HeadJob, said: str | None) -> None:
    assert render_interruption(job, now=NOW) == said


RUNS = HeadJob(record=record(1, state="running", ended_at=None))


@pytest.mark.parametrize(
    ("cloud", "job", "asks"),
    [
        ("aws", None, True),
        ("aws", HeadJob(), True),
        ("aws", RUNS, True),
        ("aws", HeadJob(why="node-0 did not answer"), True),
        ("sandbox", None, False),
        ("sandbox", HeadJob(), False),
        ("sandbox", RUNS, True),
        ("sandbox", HeadJob(queued=1), True),
        ("sandbox", HeadJob(why="node-0 did not answer"), False),
    ],
)
def test_when_nodes_end_a_job_is_named_and_the_user_is_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], *, cloud: str, job: HeadJob | None, asks: bool
) -> None:
    """On the sandbox, where nothing costs money, only if a job would be interrupted."""
    (tmp_path / "cluster.toml").write_text(f'name = "demo"\ncloud = "{cloud}"\n')
    app = App(config_path=tmp_path / "cluster.toml")
    if asks:
        with pytest.raises(UsageError, match="Without a terminal this needs --yes"):
            confirm_ending(app, "Delete all of this?", lambda: job)
    else:
        assert confirm_ending(app, "Delete all of this?", lambda: job)
    said = capsys.readouterr().err
    assert ("this would interrupt job 20261121-000000-abc (train_mnist)" in said) is (job is RUNS)


@pytest.mark.parametrize("words", [None, "mine", "20261121-20"])
def test_without_its_head_a_job_can_be_stopped_by_its_id_alone(app: App, words: str | None) -> None:
    with pytest.raises(ClusterError, match="node-0 is stopped") as caught:
        stop_without_head(app, words, ClusterError("node-0 is stopped"))
    assert "full id" in (caught.value.hint or "")


def test_without_its_head_a_job_is_ended_on_all_nodes(
    app: App, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    left: dict[str, list[list[object]]] = {}
    monkeypatch.setattr(jobs, "end_from_here", lambda *_: left)
    stop_without_head(app, "20261121-200000-abcdef", ClusterError("node-0 is stopped"))
    shown = capsys.readouterr()
    assert shown.out == "job 20261121-200000-abcdef: no process of it is left on the running nodes\n"
    assert "from this machine" in shown.err
    left["node-1"] = [[7, "python"]]
    with pytest.raises(ClusterError, match=r"node-1: process 7 \(python\)"):
        stop_without_head(app, "20261121-200000-abcdef", ClusterError("node-0 is stopped"))


def test_a_job_whose_head_is_lost_ends_with_it(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attach, "end_from_here", lambda *_: {})
    fake = FakeHead(lambda _: channel(STARTED + LOG[:300], exit_code=BROKEN))
    head = fake.make()
    head.open("warm")
    fake.refuse = [HeadGoneError("node-0 (i-0) is terminated")]
    with pytest.raises(JobError, match=r"ended with its head: node-0 \(i-0\) is terminated; no process") as caught:
        attend(app, head, ORDER, plain=False)
    assert caught.value.exit_code == 1
