"""The events that a job's supervisor sends to [notify]. The webhook's URL is stored nowhere."""

import json
import os
import signal
from typing import Any

from foundation.file_lock import is_held
from http_server import answer_status, serve_webhook
from job_host import LocalHead, job_host, job_id
from secret_watch import has_any
from waits import until

__all__ = ["job_host"]

SECRET = "canaryOfAWebhook0123456789"


def notified(job_host: LocalHead, url: str | None, command: str | None = None, **more: Any) -> dict[str, Any]:
    return job_host.order(notify={"cluster": "demo", "webhook": url, "command": command}, **more)


def test_a_webhook_that_fails_is_a_warning_that_names_its_host(job_host: LocalHead) -> None:
    with serve_webhook(answer_status(404), f"/services/{SECRET}") as (url, events):
        result, _ = job_host.run(notified(job_host, url, "exit 7"))
        until(lambda: job_host.record()["warnings"], "the warnings")
    assert (result["state"], len(events)) == ("done", 1)  # the job itself did not fail
    assert sorted(job_host.record()["warnings"]) == [
        "[notify] command: exit code 7",
        "[notify] webhook at 127.0.0.1: HTTP 404 Not Found",
    ]
    files = [path for path in job_host.home.rglob("*") if path.is_file()]
    assert [path for path in files if has_any(path, [SECRET])] == []


def test_a_lost_node_is_reported(job_host: LocalHead) -> None:
    with serve_webhook(answer_status(200), f"/services/{SECRET}") as (url, events):
        job_host.refuse("127.0.0.2")
        order = notified(job_host, url)
        for host in order["hosts"]:
            host["usd_per_hour"] = 3600.0
        result, _ = job_host.run(order)
        until(lambda: len(events) == 2, "both events")
    ended = next(event for _, event in events if event["event"] == "job-ended")
    assert (result["state"], ended["job"]["state"], ended["job"]["exit_code"]) == ("failed", "failed", 1)
    assert ended["text"] == ended["content"]
    assert ended["text"].startswith(f"job {job_id(1)} (name) is failed: ")
    assert ended["text"].endswith(f"; its nodes cost ${job_host.record()['cost_usd']:.2f}")
    lost = next(event for _, event in events if event["event"] == "node-lost")
    assert lost["node"] == "node-1"
    assert lost["text"].startswith(
        f"job {job_id(1)} (name) has lost node-1: ssh to it failed: ssh: connect to host 127.0.0.2"
    )
    assert "; `cluster verify` tries the ports between all nodes" in lost["text"]  # it was never reached


def test_a_head_that_shuts_down_is_reported(job_host: LocalHead) -> None:
    """Its jobs wait for another head, because their records outlive this one. systemd need not wait for any process."""
    jobs, volume = (job_id(1), job_id(2)), job_host.home / "volume"
    with serve_webhook(answer_status(200), f"/services/{SECRET}") as (url, events):
        for job in jobs:
            more = {"job": job, "on_node_loss": "requeue", "output_url": f"{volume}/{job}/"}
            job_host.ask("submit", order=notified(job_host, url, **more) | {"command": ["sleep", "100"], "queue": True})
        job_host.wait_for('"state": "running"')
        until((volume / jobs[1] / "record.json").exists, "the queued job is not copied")
        for job in reversed(jobs):
            os.kill(job_host.record(job)["supervisor"]["pid"], signal.SIGTERM)
        locks = [str(job_host.folder(job) / "lock") for job in jobs]
        until(lambda: not any(map(is_held, locks)), "the supervisors do not end")
    copied = [json.loads((volume / job / "record.json").read_bytes()) for job in jobs]
    assert [(record["state"], record["waiting_for"]) for record in copied] == [("waiting", ["node-0"]), ("queued", [])]
    [(_, lost)] = events
    assert lost["text"] == f"job {job_id(1)} (name) has lost node-0: it shuts down"
    (stopped,) = job_host.ask("stop", job_id(1))
    assert (stopped["already"], stopped["result"]["error"]) == (True, "node-0 was shut down")


def test_a_job_that_is_stopped_while_its_head_shuts_down(job_host: LocalHead) -> None:
    """It does not continue on another head."""
    order = job_host.order("bash", "-c", "trap '' TERM; echo ready; while :; do sleep 0.1; done", workers=1, servers=0)
    job_host.ask("submit", order=order | {"on_node_loss": "requeue", "output_url": f"{job_host.home}/volume/"})
    job_host.wait_for('"line": "ready"')
    os.kill(job_host.record()["supervisor"]["pid"], signal.SIGTERM)
    job_host.wait_for('"state": "ending"')
    (stopped,) = job_host.ask("stop", job_id(1))
    assert stopped["result"]["state"] == "stopped"
