"""[notify] on real hosts: events arrive, and the URL stays secret."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from ec2_sandbox.paths import paths_of
from job_steps import hosts_of
from project import Project, configure, project_in, shipped
from secret_watch import Watch, files_with, has_any, watching
from waits import until

pytestmark = pytest.mark.sandbox

SECRET = "canaryOfAWebhook0123456789"


@dataclass
class Webhook:
    """A webhook on this machine that the hosts can reach, and what it received: (path, event)."""

    url: str = ""
    asked: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    @property
    def events(self) -> list[dict[str, Any]]:
        return [event for _, event in self.asked]

    def find(self, name: str) -> dict[str, Any] | None:
        return next((event for event in self.events if event["event"] == name), None)


@contextmanager
def listening(address: str) -> Iterator[Webhook]:
    webhook = Webhook()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            event = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            webhook.asked.append((self.path, event))
            self.send_response(200, f"for {self.path}")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer((address, 0), Handler) as server:
        thread = Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        webhook.url = f"http://{address}:{server.server_port}/services/{SECRET}"
        try:
            yield webhook
        finally:
            server.shutdown()
            thread.join()


@dataclass
class Lived:
    """A cluster with a history: its project, and all output of the commands."""

    project: Project
    webhook: Webhook
    watch: Watch
    messages: list[str] = field(default_factory=list)

    def run(self, *words: str) -> str:
        done = self.project.run(*words)
        self.messages += [done.stdout, done.stderr]
        return done.stdout


@pytest.fixture(scope="module")
def lived(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lived]:
    """Yields a cluster after `up` and a job, with [notify] and [data] results."""
    text = shipped(provision__nodes=1, framework="none", sync=["cluster.toml", "mine"])
    with project_in(tmp_path_factory.mktemp("lived"), text) as project:
        (project.directory / "mine").write_text("of the user")
        project.run("sandbox", "start")
        address = re.search(r"AWS_ENDPOINT_URL='?https://([0-9.]+):", project.run("sandbox", "env").stdout)
        assert address is not None
        with listening(address[1]) as webhook, watching() as watch:
            results = "s3://cluster-lived/results/"
            command = "cat >>~/events"
            project.write(configure(text, webhook=webhook.url, command=command, results=results))
            made = Lived(project, webhook, watch)
            made.run("data", "put", "--create-bucket", "mine", "s3://cluster-lived/mine/")
            made.run("up")
            made.run("train", "--", "sh", "-c", "echo trained; sleep 1")
            yield made


def test_events_reach_webhook_and_command(lived: Lived) -> None:
    """The end of a job, and an event of one of the head's own programs, whose command runs as the user."""
    until(lambda: lived.webhook.find("job-ended"), "the event")
    event = lived.webhook.find("job-ended")
    assert event is not None
    (record,) = json.loads(lived.run("jobs", "--json"))
    assert (event["cluster"], event["job"]["id"], event["job"]["state"]) == ("demo", record["id"], "done")
    assert lived.webhook.asked[0][0] == f"/services/{SECRET}"
    ran_s = event["job"]["ended_at"] - event["job"]["started_at"]
    assert record["cost_usd"] >= 0.17 * ran_s / 3600
    assert record["cost_usd"] == event["job"]["cost_usd"]
    root = hosts_of(lived.project)["node-0"].root
    written = root / "home/ubuntu/events"
    assert json.loads(written.read_text().splitlines()[0])["job"]["id"] == record["id"]
    text = json.dumps({"event": "lease-ending", "at": 5, "text": "ends in ten minutes"})
    script = f"cd /run/cluster/events && echo '{text}' >new && mv new lease-ending.json"
    lived.run("ssh", "node-0", "--", "sudo", "sh", "-c", script)
    until(lambda: len(written.read_text().splitlines()) == 2, "the command")
    assert lived.webhook.find("lease-ending") == {
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
    lived.run("cost")
    lived.run("logs")
    assert len(watch.command_lines) > 20
    assert watch.lines_with(SECRET) == []
    assert watch.holders_of(SECRET) == set()
    hosts = hosts_of(project)
    assert hosts
    for host in hosts.values():
        assert files_with(host.root, [SECRET]) == []
        assert files_with(host.root, ["of the user"])  # an event that was sent is found
    assert [text for text in lived.messages if SECRET in text] == []
    assert any("cluster.toml is not sent: its [notify] webhook is a secret" in text for text in lived.messages)
    state = [path for path in (project.directory / "state").rglob("*") if path.is_file()]
    state += [path for path in paths_of(project.directory).state_dir.glob("*") if path.is_file()]
    assert any(path.name == "demo.costs.json" for path in state)
    assert [path for path in state if has_any(path, [SECRET])] == []
    project.run("data", "get", "s3://cluster-lived/", str(tmp_path / "s3"))
    stored = [path for path in (tmp_path / "s3").rglob("*") if path.is_file()]
    assert {path.name for path in stored} >= {"record.json", "events"}
    assert [path for path in stored if has_any(path, [SECRET])] == []
