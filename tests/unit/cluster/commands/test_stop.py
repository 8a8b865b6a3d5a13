"""`cluster stop`: what it ends, what it searches for, and when it asks for confirmation."""

from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from cluster import jobs
from cluster.app import App
from cluster.commands import stop as stop_command
from cluster.commands.stop import render_stopped_job, stop_job, stop_without_head
from cluster.jobs import require_ending
from cluster.nodes.ec2 import nodes_of
from cluster.views.status import HeadJob
from foundation.errors import ClusterError, ConnectError, UsageError
from job_channels import FakeHead, channel, encode
from job_records import make_document, make_record, make_running, make_state
from node import wire
from node.protocol import JobResult
from node.wire import Remains


def test_the_stopped_processes_are_listed() -> None:
    roles = [
        {"role": "scheduler", "host": "node-0", "number": 0, "rank": None, "ended_at": None},
        {"role": "worker", "host": "node-1", "number": 1, "rank": 0, "ended_at": None},
        {"role": "worker", "host": "node-0", "number": 2, "rank": 1, "ended_at": 5.0},
    ]
    one = make_record(1, state="running", roles=roles, nodes=[{"name": "node-0"}, {"name": "node-1"}])
    result = JobResult(state="stopped", exit_code=130, error=None, left={})
    assert render_stopped_job(one, result, already=False) == (
        "job 20261121-000000-abc (train_mnist) is stopped: scheduler on node-0, worker 0 on node-1\n"
        "no process of the job is left on node-0, node-1"
    )
    assert render_stopped_job(one, result, already=True).endswith("had already ended: stopped")


Left = dict[str, list[list[object]]]
LEFT: Left = {"node-0": [[7, "python x.py"]], "node-1": [[0, "could not be searched: no route"]]}
NODES = [{"name": f"node-{number}", "instance_id": f"i-{number}"} for number in range(2)]


@pytest.fixture
def stop_of(app: App, monkeypatch: pytest.MonkeyPatch) -> Callable[..., FakeHead]:
    """Returns a function that runs `cluster stop WORDS` with a head that has these records. node-1 has ended.

    still: the processes of an ended job that a search finds.
    """

    app.config_path.write_text('name = "demo"\n')

    def stop(words: str | None, *records: dict[str, Any], still: Left | None = None) -> FakeHead:
        result = {"state": "failed", "exit_code": 1, "error": "x", "left": still or {}}
        answers = {"list": {"jobs": records}, "stop": {"result": result, "already": True}}
        fake = FakeHead(lambda asked: channel(encode([answers[asked[0]]])))
        monkeypatch.setattr(App, "enter_cloud", lambda _: None)
        monkeypatch.setattr(stop_command, "describe", lambda _: nodes_of(app, make_state()))
        monkeypatch.setattr(stop_command, "open_head", lambda *_: nullcontext(fake.make()))
        stop_job(app, words)
        return fake

    return stop


@pytest.mark.parametrize("words", [None, "20261122"])
def test_processes_that_an_ended_job_left_are_ended(
    stop_of: Callable[..., FakeHead], words: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = make_document(2, state="failed", left=LEFT, nodes=NODES)
    fake = stop_of(words, make_document(1, left=LEFT), ended)
    assert fake.asked == [["list"], ["stop", ended["spec"]["id"], "i-1"]]
    shown = capsys.readouterr()
    assert shown.out.startswith("no job runs\n" if words is None else "job 20261122")
    assert "\nended now: node-0: process 7 (python x.py)\n" in shown.out
    assert "may still run: node-0: process 7 (python x.py); node-1 could not be searched: no route; " in shown.err


def test_processes_that_survive_the_search_are_an_error(stop_of: Callable[..., FakeHead]) -> None:
    with pytest.raises(ClusterError, match="had already ended, but processes of it may still run: node-0") as caught:
        stop_of(None, make_document(2, left=LEFT, nodes=NODES), still={"node-0": LEFT["node-0"]})
    assert "cluster stop 20261122-000000-abc" in (caught.value.hint or "")


RUNS = HeadJob(record=make_running(1))


@pytest.mark.parametrize(
    ("cloud", "job", "asks"),
    [
        ("aws", RUNS, True),
        ("aws", HeadJob(why="node-0 did not answer"), True),
        ("sandbox", None, False),
        ("sandbox", RUNS, True),
        ("sandbox", HeadJob(record=make_running(1), others=2), True),
        ("sandbox", HeadJob(why="node-0 did not answer"), False),
    ],
)
def test_the_user_is_asked_before_nodes_end(
    app: App, capsys: pytest.CaptureFixture[str], *, cloud: str, job: HeadJob | None, asks: bool
) -> None:
    """On the sandbox, where nothing costs money, only if a job would be interrupted."""
    app.config_path.write_text(f'name = "demo"\ncloud = "{cloud}"\n')
    with pytest.raises(UsageError, match="without a terminal, this needs --yes") if asks else nullcontext():
        require_ending(app, "Delete all of this?", job)
    output = capsys.readouterr().err
    interrupts = job is not None and job.record is not None
    assert ("this would interrupt job 20261121-000000-abc (train_mnist)" in output) is interrupts
    assert (", and 2 other jobs" in output) is (job is not None and job.others == 2)


def test_without_its_head_a_job_is_ended_on_all_nodes(
    app: App, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = {"node-0": wire.encode(Remains()).decode(), "node-1": ""}

    def get(name: str) -> SimpleNamespace:
        if name not in found:
            raise ConnectError("no route")
        return SimpleNamespace(run=lambda *_, **__: SimpleNamespace(stdout=found[name]))

    nodes, connections = SimpleNamespace(running=[*found], find_host=str), SimpleNamespace(get=get)
    monkeypatch.setattr(jobs, "describe", lambda _: nodes)
    source = SimpleNamespace(open_connections=lambda: nullcontext(connections))
    monkeypatch.setattr(jobs, "source_of", lambda _: source)
    stop_without_head(app, "20261121-200000-abcdef", ClusterError("node-0 is stopped"))
    shown = capsys.readouterr()
    assert shown.out == "job 20261121-200000-abcdef: no process of the job is left on the running nodes\n"
    assert "from this machine" in shown.err
    found["node-1"] = wire.encode(Remains(left=[(7, "python")])).decode()
    nodes.running.append("node-2")
    left = r"node-1: process 7 \(python\); node-2 could not be searched: no route"
    with pytest.raises(ClusterError, match=left):
        stop_without_head(app, "20261121-200000-abcdef", ClusterError("node-0 is stopped"))
