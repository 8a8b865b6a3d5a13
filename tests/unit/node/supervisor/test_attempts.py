"""A job that loses nodes, on this machine: its attempts, and the nodes for which it waits.

node-0 has no instance id, so only the programs on node-1 ask for spot notices.
"""

import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pynvml

from http_server import serve_metadata
from job_host import LocalHead, job_host, job_id
from waits import until

__all__ = ["job_host"]

JOB = job_id(1)
NEW = {"name": "node-1", "ip": "127.0.0.3", "instance_id": "i-9"}
# In the first attempt, the worker on node-0 runs $FIRST. The second attempt runs $SECOND, and succeeds.
WORKER = """
echo $PPID >~/role-$CLUSTER_HOST
echo "here $CLUSTER_ATTEMPT $CLUSTER_RESUME $*"
wait_until_running() {
    until [ $(grep -c '"state": "running"' ~/.cluster/jobs/$CLUSTER_JOB_ID/events) -ge $1 ]; do sleep 0.05; done
}
if [ "$CLUSTER_ATTEMPT" != 1 ]; then
    echo "Resumed from epoch 1 batch 4"
    wait_until_running 2
    eval "$SECOND"
    exit 0
fi
progress() {
    echo '{"epoch": 1, "batch": '$1'}' >$CLUSTER_NOTICE_FILE.new
    mv $CLUSTER_NOTICE_FILE.new $CLUSTER_NOTICE_FILE.progress
}
wait_for_notice() { until [ -e $CLUSTER_NOTICE_FILE ]; do sleep 0.05; done; }
save() { echo '{"url": "s3://b/m", "epoch": 1, "batch": 4}' >$CLUSTER_NOTICE_FILE.saved; }
wait_until_running 1
if [ $CLUSTER_HOST = node-0 ]; then eval "$FIRST"; fi
sleep 100
"""


def make_order(host: LocalHead, **more: Any) -> dict[str, Any]:
    """An order for a job of two workers without servers, which the supervisor starts itself."""
    changes = {"launcher": "env", "servers": 0, "on_node_loss": "requeue", "library": "pytorch", **more}
    order = host.order("/bin/bash", "-c", WORKER, "worker", **changes)
    del order["hosts"][0]["instance_id"]
    return order


@contextmanager
def noticed_once_here(host: LocalHead) -> Iterator[dict[str, str]]:
    """Serves metadata that announces the end of node-1 once both workers run; yields the environment variables."""

    def answer(method: str, path: str, token: str | None) -> tuple[int, str]:
        if method == "PUT":
            return 200, "token"
        if token != "token":
            return 401, ""
        if path == "/latest/meta-data/spot/instance-action" and host.events(JOB).count('"line": "here 1') >= 2:
            at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 120))
            return 200, json.dumps({"action": "terminate", "time": at})
        return 404, "<html>Not Found</html>"

    with serve_metadata(answer) as url:
        yield {"AWS_EC2_METADATA_SERVICE_ENDPOINT": url}


def submit(host: LocalHead, order: dict[str, Any]) -> None:
    assert host.ask("submit", order=order) == [{"job": JOB, "state": "starting"}]


def wait_for_state(host: LocalHead, state: str) -> dict[str, Any]:
    def find() -> dict[str, Any] | None:
        record = host.record()
        assert record["state"] == state or record["ended_at"] is None, record["error"]
        return record if record["state"] == state else None

    found: dict[str, Any] = until(find, state)
    return found


def replace(host: LocalHead, *new: dict[str, Any]) -> dict[str, Any]:
    """Gives new hosts to the job; returns the answer of jobs.py."""
    [answer] = host.ask("replace", JOB, line=new)
    return answer


def messages_in(log: Any) -> list[str]:
    return [event["message"] for event in log if "message" in event]


def test_a_waiting_job_keeps_its_place_and_gets_messages(job_host: LocalHead) -> None:
    with noticed_once_here(job_host) as env:
        submit(job_host, make_order(job_host, env=env | {"FIRST": "wait_for_notice; save"}))
        wait_for_state(job_host, "waiting")
        [refused] = job_host.ask("submit", order=make_order(job_host, job=job_id(2)))
        assert (refused["refused"]["spec"]["id"], refused["refused"]["waiting_for"]) == (JOB, ["node-1"])
        assert job_host.ask("message", JOB, "the lease ends in 10 minutes") == [{"waiting_for": []}]
        job_host.ask("stop", JOB)
    lines = messages_in([json.loads(line) for line in job_host.events().splitlines()])
    assert "the lease ends in 10 minutes" in lines
    assert any(line.endswith(" has saved a checkpoint of epoch 1, batch 4") for line in lines)


def test_a_job_that_does_not_save_in_time_is_interrupted_anyway(job_host: LocalHead) -> None:
    with noticed_once_here(job_host) as env:
        submit(job_host, make_order(job_host, env=env | {"FIRST": "wait_for_notice"}, checkpoint_grace=1))
        wait_for_state(job_host, "waiting")
        assert [answer["result"] for answer in job_host.ask("stop", JOB)] == [
            {"state": "stopped", "exit_code": 130, "error": "stopped", "cause": None, "culprit": None, "left": {}}
        ]
    record = job_host.record()
    assert [attempt["reason"] for attempt in record["attempts"]] == ["notice"]
    assert (record["waiting_for"], record["state"]) == ([], "stopped")
    assert not job_host.processes()


def test_a_process_that_fails_after_a_notice_is_no_failure(job_host: LocalHead) -> None:
    """Such as because others have saved and ended."""
    with noticed_once_here(job_host) as env:
        submit(job_host, make_order(job_host, env=env | {"FIRST": "wait_for_notice; exit 3"}))
        wait_for_state(job_host, "waiting")
        replace(job_host, NEW)
        assert job_host.result()["state"] == "done"
    assert [attempt["reason"] for attempt in job_host.record()["attempts"]] == ["notice", "done"]


def lose_node_1(host: LocalHead) -> None:
    """Makes node-1 unreachable, and ends its processes."""
    host.wait_for('"line": "here 1', count=2)
    host.refuse("127.0.0.2")
    os.kill(int(until((host.home / "role-node-1").read_text)), signal.SIGKILL)


def test_a_node_that_is_lost_without_notice_is_waited_for(job_host: LocalHead) -> None:
    """The record has the number of lost batches while the next attempt runs."""
    told = "until grep -Eq '\"lost_batches\": ?5' ~/.cluster/jobs/$CLUSTER_JOB_ID/record.json; do sleep 0.05; done"
    submit(job_host, make_order(job_host, env={"FIRST": "progress 9", "SECOND": told}))
    job_host.wait_for('"state": "running"')
    until((job_host.folder() / "notice" / "attempt-1.progress").exists)
    lose_node_1(job_host)
    assert wait_for_state(job_host, "waiting")["waiting_for"] == ["node-1"]
    assert replace(job_host, NEW) == {"waiting_for": []}
    assert job_host.result()["state"] == "done"
    first, _ = job_host.record()["attempts"]
    assert (first["reason"], first["lost"], first["lost_batches"]) == ("lost", ["node-1"], 5)


def test_while_the_heads_own_command_runs_nobody_else_replaces_the_node(job_host: LocalHead) -> None:
    go = job_host.home / "go"
    script = f"while [ ! -e {go} ]; do sleep 0.05; done; printf '%070000d'; printf '\\n90%%\\rno capacity\\n'; exit 3"
    submit(job_host, make_order(job_host, replace_command=["/bin/sh", "-c", script]))
    lose_node_1(job_host)
    assert wait_for_state(job_host, "waiting")["head_replaces"]
    go.touch()
    job_host.wait_for("`cluster up` replaces it")
    lines = messages_in([json.loads(line) for line in job_host.events().splitlines()])
    assert {"no capacity", "the head did not replace node-1 (exit code 3)"} <= set(lines)
    assert not job_host.record()["head_replaces"]
    replace(job_host, NEW)
    assert job_host.result()["state"] == "done"
    assert replace(job_host, NEW) == job_host.ask("message", JOB, "words")[0] == {"error": f"job {JOB} has ended"}


def test_a_head_does_not_replace_itself(job_host: LocalHead) -> None:
    """It would terminate itself while the job's record is copied to S3, and launch a head that nobody sets up."""
    with noticed_once_here(job_host) as env:
        env |= {"FIRST": "wait_for_notice; save"}
        order = make_order(job_host, env=env, replace_command=["/bin/sh", "-c", "echo replaced"])
        order["hosts"][0]["instance_id"] = order["hosts"][1].pop("instance_id")
        submit(job_host, order)
        record = wait_for_state(job_host, "waiting")
        assert (record["waiting_for"], record["head_replaces"]) == (["node-0"], False)
        job_host.wait_for("waiting for node-0: `cluster up` replaces it")
        job_host.kill_supervisor()  # as by the end of the head
        assert job_host.ask("list")[0]["jobs"][0]["error"] == "node-0 was shut down"  # it has booted again
    assert "replaced" not in job_host.events()


def test_a_new_node_is_not_called_unhealthy(job_host: LocalHead) -> None:
    [site] = Path(job_host.python).parents[1].glob("lib/python*/site-packages")
    (site / "pynvml.py").symlink_to(pynvml.__file__)  # for health_report.py
    order = make_order(job_host, env={"FIRST": "exit 5"})
    order["hosts"][0]["memory_mib"], order["hosts"][1]["memory_mib"] = 1, 1 << 30
    submit(job_host, order)
    record = wait_for_state(job_host, "waiting")
    assert (record["waiting_for"], len(record["warnings"])) == (["node-1"], 1)
    replace(job_host, NEW)
    assert job_host.result()["state"] == "done"
    assert job_host.record()["warnings"] == []
