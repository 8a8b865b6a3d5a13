"""[notify] on real hosts: events arrive, and the URL stays secret."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from ec2_sandbox.paths import paths_of
from http_server import answer_status, serve_webhook
from job_steps import hosts_of
from project import Project, configure, project_in, shipped
from secret_watch import Watch, files_with, has_any, watching
from waits import until

pytestmark = pytest.mark.sandbox

SECRET = "canaryOfAWebhook0123456789"


class Lived(NamedTuple):
    """A cluster with a history, and what its commands have shown. asked: (path, event) of its webhook."""

    project: Project
    asked: list[tuple[str, Any]]
    watch: Watch
    shown: str

    def find_event(self, name: str) -> dict[str, Any] | None:
        return next((event for _, event in self.asked if event["event"] == name), None)


def show(project: Project, *words: str) -> str:
    done = project.run(*words)
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def lived(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lived]:
    """Yields a cluster after `up` and a job, with [notify] and [data] results."""
    text = shipped(provision__nodes=1, framework="none", sync=["cluster.toml", "mine"])
    with project_in(tmp_path_factory.mktemp("lived"), text) as project:
        (project.directory / "mine").write_text("of the user")
        project.run("sandbox", "start")
        address = re.search(r"AWS_ENDPOINT_URL='?https://([0-9.]+):", project.run("sandbox", "env").stdout)
        assert address is not None
        webhook = serve_webhook(answer_status(200), f"/services/{SECRET}", address=address[1])
        with webhook as (url, asked), watching() as watch:
            results = "s3://cluster-lived/results/"
            command = "cat >>~/events"
            project.write(configure(text, webhook=url, command=command, results=results))
            project.run("data", "put", "--create-bucket", "mine", "s3://cluster-lived/mine/")
            shown = show(project, "up") + show(project, "train", "--", "sh", "-c", "echo trained; sleep 1")
            yield Lived(project, asked, watch, shown)


def test_events_reach_webhook_and_command(lived: Lived) -> None:
    """The end of a job, and an event of one of the head's own programs, whose command runs as the user."""
    until(lambda: lived.find_event("job-ended"), "the event")
    event = lived.find_event("job-ended")
    assert event is not None
    (record,) = json.loads(lived.project.run("jobs", "--json").stdout)
    assert (event["cluster"], event["job"]["id"], event["job"]["state"]) == ("demo", record["id"], "done")
    assert lived.asked[0][0] == f"/services/{SECRET}"
    ran_s = event["job"]["ended_at"] - event["job"]["started_at"]
    assert record["cost_usd"] >= 0.17 * ran_s / 3600
    assert record["cost_usd"] == event["job"]["cost_usd"]
    root = hosts_of(lived.project)["node-0"].root
    written = root / "home/ubuntu/events"
    assert json.loads(written.read_text().splitlines()[0])["job"]["id"] == record["id"]
    text = json.dumps({"event": "lease-ending", "at": 5, "text": "ends in ten minutes"})
    script = f"cd /run/cluster/events && echo '{text}' >new && mv new lease-ending.json"
    lived.project.run("ssh", "node-0", "--", "sudo", "sh", "-c", script)
    until(lambda: len(written.read_text().splitlines()) == 2, "the command")
    assert lived.find_event("lease-ending") == {
        "event": "lease-ending",
        "cluster": "demo",
        "at": 5,
        "text": "ends in ten minutes",
        "content": "ends in ten minutes",
    }
    assert written.stat().st_uid == (root / "home/ubuntu").stat().st_uid


def test_the_url_of_the_webhook_is_nowhere(lived: Lived, tmp_path: Path) -> None:
    """It is in no process list, environment, file of a host or of this machine, object in S3 or output."""
    watch, project = lived.watch, lived.project
    shown = lived.shown + show(project, "cost") + show(project, "logs")
    assert len(watch.command_lines) > 20
    assert watch.lines_with(SECRET) == []
    assert watch.holders_of(SECRET) == set()
    hosts = hosts_of(project)
    assert hosts
    for host in hosts.values():
        assert files_with(host.root, [SECRET]) == []
        assert files_with(host.root, ["of the user"])  # an event that was sent is found
    assert SECRET not in shown
    assert "cluster.toml is not sent: its [notify] webhook is a secret" in shown
    state = [path for path in (project.directory / "state").rglob("*") if path.is_file()]
    state += [path for path in paths_of(project.directory).state_dir.glob("*") if path.is_file()]
    assert any(path.name == "demo.costs.json" for path in state)
    assert [path for path in state if has_any(path, [SECRET])] == []
    project.run("data", "get", "s3://cluster-lived/", str(tmp_path / "s3"))
    stored = [path for path in (tmp_path / "s3").rglob("*") if path.is_file()]
    assert {path.name for path in stored} >= {"record.json", "events"}
    assert [path for path in stored if has_any(path, [SECRET])] == []
