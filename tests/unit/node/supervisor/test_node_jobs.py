"""jobs.py on this machine: submitting, following, listing and stopping jobs."""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from job_forms import nest_record
from job_host import LocalHead, job_host, job_id, lines_of
from node import job_folder, jobs
from node.programs import CODE_DIR
from node.supervisor import recovery
from waits import until

__all__ = ["job_host"]


def alone(host: LocalHead, program: str, job: str = job_id(1), **more: Any) -> dict[str, Any]:
    """An order for a job of one worker, which is the fastest kind."""
    return host.order("/bin/sh", "-c", program, job=job, workers=1, servers=0, **more)


def test_no_job_has_ever_run(job_host: LocalHead) -> None:
    assert job_host.ask("list") == [{"jobs": []}]
    assert job_host.ask("stop", "x") == job_host.ask("follow", "x", "0") == [{"error": "there is no job x"}]
    assert job_host.ask("follow", "../../etc", "0") == [{"error": "there is no job ../../etc"}]
    (answer,) = job_host.ask("submit", order=alone(job_host, "true", job="../x"))
    assert answer["error"].startswith("invalid input: ")
    assert "$.spec.id" in answer["error"]


def test_a_job_of_one_worker_and_its_record(job_host: LocalHead) -> None:
    order = alone(job_host, "echo $CLUSTER_OUTPUT_DIR; exit 3", env={"A_TOKEN": "hush"}, owner="me", code="abc")
    result, log = job_host.run(order)
    assert (result["state"], result["exit_code"]) == ("failed", 3)
    assert result["error"].startswith("worker 0 on node-0 (process ")
    assert lines_of(log) == [str(job_host.folder() / "output")]
    [listed] = job_host.ask("list")[0]["jobs"]
    assert {**listed["spec"], **listed} == job_host.record()
    spec = listed["spec"]
    assert (spec["env"], spec["owner"], spec["code"], spec["name"]) == ({"A_TOKEN": "***"}, "me", "abc", "name")
    assert [(role["role"], role["rank"], role["exit_code"]) for role in listed["roles"]] == [("worker", 0, 3)]
    names = sorted(path.name for path in job_host.folder().iterdir() if path.suffix != ".err")
    assert names == ["events", "files", "lock", "notice", "output", "placed", "placing-1", "record.json"]


def test_one_job_runs_at_a_time_and_others_in_their_order(job_host: LocalHead) -> None:
    assert job_host.ask("submit", order=alone(job_host, "sleep 100")) == [{"job": job_id(1), "state": "starting"}]
    (refused,) = job_host.ask("submit", order=alone(job_host, "true", job=job_id(2)))
    assert refused["refused"]["spec"]["id"] == job_id(1)
    queued = [alone(job_host, "true", job=job_id(number), queue=True) for number in range(3, 8)]
    answers = [job_host.ask("submit", order=order)[0]["state"] for order in queued]
    assert answers == ["queued"] * 5
    (again,) = job_host.ask("submit", order=queued[0])  # the first answer was lost on the way
    assert again == {"job": job_id(3), "state": "queued"}
    assert job_host.ask("stop", job_id(4))[0]["result"]["state"] == "stopped"
    job_host.kill_supervisor(job_id(3))
    (stopped,) = job_host.ask("stop", job_id(1))
    assert stopped == {
        "result": {"state": "stopped", "exit_code": 130, "error": "stopped", "cause": None, "culprit": None, "left": {}}
    }
    *_, last = job_host.ask("follow", job_id(7), "0")
    assert last["result"]["state"] == "done"
    jobs = job_host.ask("list")[0]["jobs"]
    assert [(job["spec"]["id"], job["state"]) for job in jobs] == [
        *((job_id(number), "done") for number in (7, 6, 5)),
        (job_id(4), "stopped"),
        (job_id(3), "failed"),
        (job_id(1), "stopped"),
    ]
    newest, middle, oldest = (job["started_at"] for job in jobs[:3])
    assert oldest < middle < newest
    assert jobs[3]["started_at"] is None
    (stopped,) = job_host.ask("stop", job_id(1))
    assert stopped["already"]


def test_a_job_of_another_host_with_this_home_folder(job_host: LocalHead, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its locks may not count here: only what it writes shows that it runs."""
    job_host.ask("submit", order=alone(job_host, "sleep 100"))
    job_host.wait_for('"state": "running"')
    until(lambda: job_host.record()["state"] == "running", "it does not run")  # the record comes after the event
    job_host.kill_supervisor(job_id(1))
    path, record = job_host.folder() / "record.json", job_host.record()
    record["supervisor"]["host"], record["stall"] = "elsewhere", {"text": "no worker made progress"}
    path.write_text(json.dumps(record))
    for file in job_host.folder().iterdir():
        os.utime(file, (0, 0))
    monkeypatch.setenv("HOME", str(job_host.home))
    with pytest.raises(TimeoutError):
        asyncio.run(asyncio.wait_for(recovery.show_life(job_id(1)), 0.01))
    assert path.stat().st_mtime == 0  # for the lease, it would be a use of the cluster
    assert job_host.ask("list")[0]["jobs"][0]["state"] == "running"
    (refused,) = job_host.ask("submit", order=alone(job_host, "true", job=job_id(2)))
    assert refused["refused"]["spec"]["id"] == job_id(1)
    (stopped,) = job_host.ask("stop", job_id(1))
    assert "runs on elsewhere, which has the same home folder" in stopped["error"]
    for file in job_host.folder().iterdir():
        os.utime(file, (0, 0))
    [ended] = job_host.ask("list")[0]["jobs"]
    assert (ended["state"], ended["stall"]) == ("failed", None)


def test_a_running_job_is_read_and_ends_with_its_head(job_host: LocalHead) -> None:
    """Its log as it is, or with keep-alives until the reader ends. SIGTERM, as at a shutdown of the head, stops it."""
    job_host.ask("submit", order=alone(job_host, "echo here; sleep 100"))
    job_host.wait_for('"line": "here"')
    log = job_host.ask("follow", job_id(1), "0", "--no-wait")
    assert lines_of(log) == ["here"]
    assert "result" not in log[-1]
    with job_host.asking("follow", job_id(1), "0") as follower:
        assert any(json.loads(line) == {"alive": True} for line in follower.stdout)
        follower.stdout.close()
        assert follower.wait(timeout=20) == 128 + signal.SIGPIPE  # not as after the whole log
    os.kill(job_host.record()["supervisor"]["pid"], signal.SIGTERM)
    result = job_host.result()
    assert (result["state"], result["left"]) == ("stopped", {})
    assert result["error"].startswith("SIGTERM on node-0: it shuts down")
    assert not job_host.processes()


def test_a_notebook_and_a_job_run_beside_each_other(job_host: LocalHead) -> None:
    notebook = alone(job_host, "sleep 100", beside=True)
    assert job_host.ask("submit", order=notebook) == [{"job": job_id(1), "state": "starting"}]
    result, _ = job_host.run(alone(job_host, "true", job=job_id(2)))
    assert result["state"] == "done"
    job_host.ask("submit", order=alone(job_host, "sleep 100", job=job_id(3)))
    (refused,) = job_host.ask("submit", order=alone(job_host, "true", job=job_id(4), beside=True))
    assert refused["refused"]["spec"]["id"] == job_id(1)  # a node has one notebook
    for number in (1, 3):
        job_host.ask("stop", job_id(number))


def test_a_supervisor_that_does_not_answer_is_killed(job_host: LocalHead) -> None:
    job_host.ask("submit", order=alone(job_host, "echo here; sleep 100"))
    job_host.wait_for('"line": "here"')
    os.kill(job_host.record()["supervisor"]["pid"], signal.SIGSTOP)
    program = f"import sys; sys.path.insert(0, {CODE_DIR!r}); "
    program += "from node import jobs; jobs.STOP_TIMEOUT_S = 1.0; jobs.main()"
    stop = [job_host.python, "-c", program, "stop", job_id(1)]
    done = subprocess.run(stop, env=job_host.env(), capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["result"]["error"] == "the supervisor on node-0 was killed"
    assert not job_host.processes()


def test_a_job_ends_when_its_supervisor_was_killed_not_when_that_is_noticed(job_host: LocalHead) -> None:
    """Its nodes cost nothing in between."""
    job_host.ask("submit", order=alone(job_host, "echo here; sleep 100"))
    job_host.wait_for('"line": "here"')
    job_host.kill_supervisor()
    samples, at = job_host.folder() / "samples", time.time() + 1000  # what the supervisor has written last
    samples.touch()
    os.utime(samples, (at, at))
    job_host.ask("list")
    record = job_host.record()
    assert record["ended_at"] == record["attempts"][0]["ended_at"] == pytest.approx(at, abs=0.01)


def test_nothing_is_left_on_instances_that_have_ended(job_host: LocalHead) -> None:
    job_host.refuse("127.0.0.2")
    result, _ = job_host.run(job_host.order(env={}))
    assert list(job_host.ask("stop", job_id(1), "i-7")[0]["result"]["left"]) == ["node-1"]
    (answer,) = job_host.ask("stop", job_id(1), "i-7", "i-1")
    assert answer == {"result": {**result, "left": {}}, "already": True}
    assert job_host.record()["left"] == {}


def test_a_supervisor_that_cannot_start_is_an_error_and_leaves_no_job(
    job_host: LocalHead, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path(job_host.python).write_text("#!/bin/sh\necho it cannot be >&2; exit 1\n")
    monkeypatch.setattr(sys, "executable", job_host.python)  # it runs the node programs
    (answer,) = job_host.ask("submit", order=alone(job_host, "true"))
    assert answer == {"error": "the supervisor did not start: it cannot be"}
    assert job_host.ask("list") == [{"jobs": []}]


def test_the_folder_of_a_submission_that_was_killed_does_not_prevent_the_next_one(job_host: LocalHead) -> None:
    job_host.folder().mkdir(parents=True)
    assert job_host.run(alone(job_host, "true"))[0]["state"] == "done"


def test_a_job_that_a_full_disk_keeps_from_its_start_names_the_file(
    job_host: LocalHead, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A limit on the size of files replaces the full disk."""
    first, *rest = Path(job_host.python).read_text().splitlines(keepends=True)
    Path(job_host.python).write_text("".join([first, '[ "$3" = supervise ] && ulimit -f 8\n', *rest]))
    monkeypatch.setattr(sys, "executable", job_host.python)  # it runs the node programs
    (answer,) = job_host.ask("submit", order=alone(job_host, "true"))
    file = job_host.folder() / "reserve"
    assert answer == {"error": f"the supervisor did not start: File too large ({file})"}
    assert job_host.ask("list") == [{"jobs": []}]


def test_a_list_of_large_jobs_is_no_longer_than_a_line(job_host: LocalHead, monkeypatch: pytest.MonkeyPatch) -> None:
    """50 jobs of 80 nodes with 8 GPUs: the older ones come without their processes."""
    for number in (1, 2):
        job_host.run(alone(job_host, "true", job=job_id(number)))
    monkeypatch.setattr(jobs, "LIST_BYTES", 1)
    newest, older = job_host.ask("list")[0]["jobs"]
    assert [len(record["roles"]) for record in (newest, older)] == [1, 0]
    assert len(job_host.record()["roles"]) == 1


def test_old_jobs_are_removed(job_host: LocalHead) -> None:
    """Jobs without files, such as those whose start failed, do not count for those with files."""
    jobs = job_host.folder("x").parent
    for number in range(job_folder.KEPT + 2):
        (jobs / f"old-{number}").mkdir(parents=True)
        keys = {"job": f"old-{number}", "name": "mine", "python": "python", "nodes": [{"name": "node-0"}]}
        record = {**keys, "workers": 1, "servers": 0, "state": "done", "submitted_at": number, "ended_at": 1}
        files = [] if number else [{"host": "node-0", "count": 1}]
        (jobs / f"old-{number}" / "record.json").write_text(json.dumps(nest_record(record | {"files": files})))
    job_host.run(alone(job_host, "true"))
    left = {path.name for path in jobs.iterdir() if path.is_dir()}
    assert "old-1" not in left
    assert {"old-0", "old-2", job_id(1)} <= left


def test_a_damaged_record_does_not_affect_other_jobs(job_host: LocalHead) -> None:
    folder = job_host.folder("damaged")
    folder.mkdir(parents=True)
    (folder / "record.json").write_text('{"id": "damaged", "state": ["running"], "submitted_at": 1.0}')
    assert job_host.run(alone(job_host, "true"))[0]["state"] == "done"
    good, told = job_host.ask("list")[0]["jobs"]
    assert (good["spec"]["id"], good["state"]) == (job_id(1), "done")
    assert told == {"id": "damaged"}
    assert job_host.ask("stop", "damaged") == [{"error": "there is no job damaged"}]
    [again] = job_host.ask("submit", order=alone(job_host, "true", job="damaged"))  # the first answer was lost
    assert again == {"error": f"File exists ({folder})"}
    assert (folder / "record.json").exists()
    shutil.rmtree(folder)
