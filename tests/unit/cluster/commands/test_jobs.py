"""`cluster jobs` and `cluster status`: the job that an argument names, and how jobs are shown."""

import time
from collections.abc import Iterator
from typing import Any

import pytest

from cluster import jobs
from cluster.app import App
from cluster.nodes.ec2 import nodes_of
from cluster.views.jobs import job_documents, render_jobs
from cluster.views.results import render_files
from cluster.views.status import HeadJob, Status, render_job_lines, render_status, status_document
from foundation.errors import ClusterError, NotFoundError, UsageError
from job_records import NOW, make_record, make_running, make_state
from provision.model import ClusterState
from train.follow.records import choose_job, find_running, merge_records


def test_jobs_of_all_sources_are_merged_newest_first() -> None:
    head = [make_record(1), make_record(3, state="running")]
    s3 = [make_record(2, "s3"), make_record(3, "s3", state="starting"), make_record(1, "s3")]
    merged = merge_records(head, s3)
    assert [(found.submitted_at, found.source) for found in merged] == [(1003, "head"), (1002, "s3"), (1001, "head")]
    assert merged[0].state == "running"


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (None, 4),
        ("20261122-000000-abc", 2),
        ("train_mnist", 4),
        ("other", 3),
        ("20261123", 1),  # a name has priority over the start of an id
        ("x", NotFoundError('no job "x"')),
        ("2026112", UsageError("matches 4 jobs: 20261124-000000-abc, 20261123-000000-abc, ")),
    ],
)
def test_words_that_find_a_job(words: str | None, found: int | ClusterError) -> None:
    """Its id, the start of its id, or its name."""
    records = merge_records(
        [make_record(1, name="20261123"), make_record(2), make_record(3, name="other"), make_record(4)]
    )
    if isinstance(found, int):
        assert choose_job(records, words).submitted_at == 1000 + found
    else:
        with pytest.raises(type(found), match=found.message):
            choose_job(records, words)


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        ({"stall": {"since": 1.0, "text": "worker 1 is stopped"}}, "worker 1 is stopped"),
        ({"warnings": ["2 separate models"]}, "warning: 2 separate models"),
    ],
)
def test_a_stall_or_a_warning_of_a_running_job_is_shown(values: dict[str, Any], shown: str) -> None:
    one = make_running(1, **values)
    assert render_jobs([one], now=NOW).splitlines()[2] == f"    {shown}"
    status = Status(state=ClusterState(name="demo"), wanted=2, now=NOW, job=HeadJob(record=one))
    assert render_status(status).splitlines()[3] == f"       {shown}"
    job = status_document(status)["job"]
    assert job is not None
    assert (job["stall"] or {}).get("text") == values.get("stall", {}).get("text")


JOB = "20261121-000000-abc"
OWN_HOST = {"user": "me", "port": 22, "python": "python3", "code_dir": "/", "cwd": "/", "command": ["true"]}
BELOW = f"below /home/me/.cluster/jobs/{JOB}"


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        ({}, f"no new files on node-0, node-1, {BELOW}"),
        (
            {
                "files": [{"host": "gpu", "count": 1}],
                "nodes": [{"name": "gpu", "ip": "10.0.0.1", "own_host": OWN_HOST}],
            },
            f"1 new file on gpu, {BELOW}; cluster results {JOB} copies them",
        ),
        ({"output_url": f"s3://b/{JOB}/"}, f"results, if any, in s3://b/{JOB}/; cluster results {JOB} copies them"),
        ({"state": "running", "ended_at": None}, f"on node-0, node-1, {BELOW}"),
        (
            {"files": [{"host": "node-1", "count": 3, "copied": 1}], "output_url": f"s3://b/{JOB}/"},
            f"3 new files on node-1, {BELOW}; results in s3://b/{JOB}/; cluster results {JOB} copies them",
        ),
        (
            {"files": [{"host": "node-1", "count": 0, "copied": 3}], "output_url": f"s3://b/{JOB}/"},
            f"results in s3://b/{JOB}/; cluster results {JOB} copies them",
        ),
        (  # one could not be copied
            {"files": [{"host": "node-1", "count": 1, "is_left": True}], "output_url": f"s3://b/{JOB}/"},
            f"1 new file on node-1, {BELOW}; not all results are in s3://b/{JOB}/; cluster results {JOB} copies them",
        ),
        (
            {"source": "s3", "command": ["python", "a.py", "--model-prefix", "s3://b/m/mlp"]},
            "results in s3://b/m/; cluster data ls s3://b/m/ lists them",
        ),
    ],
)
def test_where_the_files_of_a_job_are(values: dict[str, Any], shown: str) -> None:
    nodes = [{"name": f"node-{at}", "ip": f"10.0.0.{at}"} for at in range(2)]
    made = {"cwd": f"/home/me/.cluster/jobs/{JOB}/work", "nodes": nodes, **values}
    assert render_files(make_record(1, **made)) == shown


def test_down_names_the_files_that_were_not_copied(
    app: App, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(app.config_path.parent / "state"))
    app.config_path.write_text('name = "demo"\ncloud = "hosts"\n[hosts]\nnames = ["gpu1"]\n')
    records = [make_record(number, files=[{"host": "node-1", "count": number}]) for number in (6, 5, 4, 3, 2)]
    app.files.note_copied(records[1].id)
    jobs.warn_uncopied(app, HeadJob(with_files=tuple(records)), yes=False)
    messages = capsys.readouterr().err.splitlines()
    assert messages[:2] == [
        f"not copied: 6 new files on node-1, of job {records[0].id} (train_mnist); to copy them first:",
        f"    cluster results {records[0].id}",
    ]
    assert [line.split()[-1] for line in messages if line.startswith("    ")] == [records[at].id for at in (0, 2, 3)]
    assert messages[-1] == "not copied: the files of 1 other job, which cluster jobs lists"
    jobs.warn_uncopied(app, HeadJob(why="no answer"), yes=False)
    jobs.warn_uncopied(app, None, yes=False)
    assert capsys.readouterr().err == ""
    jobs.warn_uncopied(app, HeadJob(why="no answer"), yes=True)
    assert "files that only the nodes have, if any: no answer" in capsys.readouterr().err
    jobs.warn_uncopied(app, HeadJob(with_files=tuple(records)), yes=True)  # it is too late to copy them
    messages = capsys.readouterr().err.splitlines()
    assert messages[0] == f"deleted without a copy: 6 new files on node-1, of job {records[0].id} (train_mnist)"
    assert messages[3:] == ["deleted without a copy: the files of 1 other job"]
    app.override("cloud", "sandbox")
    jobs.warn_uncopied(app, HeadJob(with_files=tuple(records[:1])), yes=False)
    assert capsys.readouterr().err.startswith("deleted without a copy: ")
    jobs.warn_uncopied(app, HeadJob(with_files=tuple(records[:1]), queued=1), yes=False)  # there, this is a question
    assert capsys.readouterr().err.startswith("not copied: ")


@pytest.fixture
def in_new_york(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "America/New_York")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("in_new_york")
def test_jobs_as_a_table() -> None:
    records = [
        make_record(4, state="queued", started_at=None, ended_at=None, exit_code=None, output_url="s3://b/4/"),
        make_running(3),
        make_record(2, state="failed", exit_code=7, cost_usd=12.345, error="worker 1 on node-1 " + "x" * 60 + "\nmore"),
        make_running(1, source="s3"),
    ]
    narrow = render_jobs(records[:3], now=NOW, columns=80).splitlines()
    assert narrow[0].split() == ["JOB", "NAME", "STATE", "TOOK", "COST", "CODE"]
    lines = render_jobs(records, now=NOW).splitlines()
    assert lines[0].split() == ["JOB", "NAME", "STATE", "WORKERS", "SERVERS", "STARTED", "TOOK", "COST", "CODE"]
    assert lines[1].split()[2:] == ["queued", "2", "2", "-", "-", "-", "-"]
    assert lines[2].split()[2:] == ["running", "2", "2", "2026-11-21", "04:55", "EST", "5m00s", "-", "-"]
    assert lines[3].split()[2:] == ["failed", "2", "2", "2026-11-21", "04:55", "EST", "3m20s", "$12.35", "7"]
    assert lines[4] == "    worker 1 on node-1 " + "x" * 60
    assert "? running (s3)" in lines[5]
    assert lines[6] == f"files of {records[0].id}: {render_files(records[0])}"
    assert lines[7].startswith("(s3): ")
    assert render_jobs([], now=NOW) == "no job has run on this cluster"
    document = job_documents(records, now=NOW)[3]
    assert (document["source"], document["started_at"]) == ("s3", "2026-11-21T09:55:00.000+00:00")
    assert document.keys() == {*records[3].document, "source", "head_lost", "cost_usd", "straggler"}


def test_a_job_whose_head_has_ended_is_named() -> None:
    hosts = [{"name": "node-0", "instance_id": "i-0"}, {"name": "node-1", "instance_id": "i-1"}]
    records = [
        make_running(5, "s3", nodes=hosts),
        make_running(4, nodes=hosts),  # the head has it
        make_record(3, "s3", nodes=hosts),
        make_running(2, "s3", nodes=hosts[1:]),  # of another cluster
        make_running(1, "s3"),
    ]
    lost = [document["head_lost"] for document in job_documents(records, now=NOW, gone={"i-0"})]
    assert lost == [True, False, False, False, False]
    lines = render_jobs(records, now=NOW, gone={"i-0"}).splitlines()
    assert lines[2] == "    its head, node-0, has ended"
    assert sum("has ended" in line for line in lines) == 1


def test_the_cost_of_a_running_job_is_that_of_now() -> None:
    hosts = [{"name": "node-0", "usd_per_hour": 6.0}, {"name": "node-1", "usd_per_hour": 6.0}]
    running = make_running(1, nodes=hosts, held_at=NOW.timestamp() - 600, cost_usd=0.1)
    assert job_documents([running], now=NOW)[0]["cost_usd"] == pytest.approx(2.0)
    assert "$2.00" in render_jobs([running], now=NOW)
    copied = make_running(1, "s3", nodes=hosts, held_at=NOW.timestamp() - 600, cost_usd=0.1)
    assert job_documents([copied], now=NOW)[0]["cost_usd"] == 0.1  # how long it kept running is unknown


@pytest.mark.parametrize(
    ("job", "line", "shown"),
    [
        (HeadJob(), "job    none", {"state": "none", "why": None, "queued": 0}),
        (HeadJob(why="no answer"), "job    unknown: no answer", {"state": "unknown", "why": "no answer", "queued": 0}),
        (
            HeadJob(record=make_running(1), queued=1),
            f"job    {JOB} (train_mnist) running for 5m00s, 1 queued; cluster logs -f {JOB} follows it",
            {"state": "running", "queued": 1, "started_at": "2026-11-21T09:55:00.000+00:00"},
        ),
    ],
)
def test_the_status_shows_the_running_job(job: HeadJob, line: str, shown: dict[str, Any]) -> None:
    status = Status(state=ClusterState(name="demo"), wanted=2, now=NOW, job=job)
    assert render_status(status).splitlines()[2] == line
    document = status_document(status)["job"]
    assert document is not None
    assert shown.items() <= document.items()


def test_jobs_from_s3_are_shown_beside_why_the_head_is_not_asked(
    app: App, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    app.config_path.write_text('name = "demo"\n[data]\nresults = "s3://bucket/r/"\n')
    monkeypatch.setattr(jobs, "read_s3_records", lambda *_, **__: (make_record(1, "s3"),))
    nodes = nodes_of(app, make_state("stopped"))
    with pytest.raises(ClusterError) as caught:
        nodes.find_host("node-0")
    assert jobs.JobSources(app, why_not=caught.value, nodes=nodes).find_records()[0].source == "s3"
    assert "is stopped (cluster start); showing the jobs in s3://bucket/r/" in " ".join(capsys.readouterr().err.split())


def attempt(number: int, **values: Any) -> dict[str, Any]:
    times = {"started_at": NOW.timestamp() - 1000, "ended_at": NOW.timestamp() - 690}
    return {"number": number, "nodes": ["node-0", "node-1"], **times, **values}


NOTICE = attempt(1, reason="notice", lost=["node-1"], exit_code=1, lost_batches=1)
LOST = attempt(2, reason="lost", lost=["node-0", "node-1"], exit_code=1)
FAILED = attempt(3, reason="error", exit_code=7, error="worker 0 failed\nand more")


def test_attempts_are_shown_below_their_job() -> None:
    attempts = [NOTICE, LOST, FAILED, attempt(4, ended_at=None)]
    record = make_running(1, attempts=attempts, stacks=["worker 1 on node-1: load (data.py:88)"])
    assert render_jobs([record], now=NOW).splitlines()[2:6] == [
        "    attempt 1 ended after 5m10s: node-1 interrupted (spot notice), 1 batch lost",
        "    attempt 2 ended after 5m10s: node-0, node-1 lost",
        "    attempt 3 ended after 5m10s: worker 0 failed",
        "    stack of worker 1 on node-1: load (data.py:88)",
    ]


def test_a_job_that_waits_for_nodes_names_them() -> None:
    record = make_running(1, state="waiting", attempts=[NOTICE], waiting_for=["node-1"])
    lines = render_jobs([record], now=NOW).splitlines()
    assert ("waiting" in lines[1], lines[3]) == (True, "    waiting for node-1")
    assert find_running([record]) is record
    shown = render_job_lines(HeadJob(record=record), now=NOW)[0]
    assert " waiting for node-1, which cluster up replaces; cluster logs -f " in shown
