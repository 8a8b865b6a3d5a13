"""`cluster cost` and [notify] on real hosts: costs match the sandbox's log, events arrive, and the URL stays secret."""

import json
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from ec2_sandbox import control
from ec2_sandbox.paths import paths_of
from foundation.progress import silent
from job_steps import hosts_of
from project import REPOSITORY, Project, configure
from secret_watch import Watch, files_with, has_any, watching
from states_bill import bill, read_states
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
    said: list[str] = field(default_factory=list)

    def run(self, *words: str, code: int | None = 0) -> str:
        done = self.project.run(*words, code=code)
        self.said += [done.stdout, done.stderr]
        return done.stdout

    def cost(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self.run("cost", "--json"))
        return document

    def states(self) -> list[dict[str, Any]]:
        return read_states(paths_of(self.project.directory).state_log)

    def wait_for_state(self, state: str) -> None:
        until(lambda: any(entry["state"] == state for entry in self.states()), state)

    def assert_costs_match(self) -> None:
        """Asserts that the total, and each part of it, equals that of the sandbox's own log."""
        shown, now = self.cost(), time.time()
        expected = bill(self.states(), now=now)
        clusters = [*shown["earlier"], *filter(None, [shown["current"]])]
        instances = sum(each["instances_usd"] for each in clusters)
        assert instances == pytest.approx(expected.get("on-demand", 0) + expected.get("spot", 0), rel=0.01)
        assert sum(each["addresses_usd"] for each in clusters) == pytest.approx(expected["address"], rel=0.01)
        assert shown["usd"] == pytest.approx(sum(expected.values()), rel=0.01)


@pytest.fixture(scope="module")
def lived(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lived]:
    """Yields a cluster after `up` and a job, with [notify] and [data] results."""
    project = Project(tmp_path_factory.mktemp("lived"))
    text = configure((REPOSITORY / "cluster.toml").read_text(), framework="none", sync=["cluster.toml", "mine"])
    project.write(text)
    (project.directory / "mine").write_text("of the user")
    try:
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
    finally:
        control.reset(project.directory, report=silent)


def test_the_end_of_a_job_reaches_webhook_and_command(lived: Lived) -> None:
    until(lambda: lived.webhook.find("job-ended"), "the event")
    event = lived.webhook.find("job-ended")
    assert event is not None
    (record,) = json.loads(lived.run("jobs", "--json"))
    assert (event["cluster"], event["job"]["id"], event["job"]["state"]) == ("demo", record["id"], "done")
    assert lived.webhook.asked[0][0] == f"/services/{SECRET}"
    written = lived.run("ssh", "node-0", "--", "cat", "events")
    assert json.loads(written.splitlines()[0])["job"]["id"] == record["id"]
    ran_s = event["job"]["ended_at"] - event["job"]["started_at"]
    assert record["cost_usd"] >= 2 * 0.17 * ran_s / 3600
    assert record["cost_usd"] == event["job"]["cost_usd"]
    assert re.search(r" \$0\.00\d\d +0$", lived.run("jobs"), re.MULTILINE)


def test_the_head_sends_the_events_of_its_own_programs(lived: Lived) -> None:
    written = json.dumps({"event": "lease-ending", "at": 5, "text": "ends in ten minutes"})
    place = "/run/cluster/events"
    script = f"echo '{written}' >{place}/new && mv {place}/new {place}/lease-ending.json"
    lived.run("ssh", "node-0", "--", "sudo", "sh", "-c", script)
    until(lambda: lived.webhook.find("lease-ending"), "the event")
    event = lived.webhook.find("lease-ending")
    assert event == {
        "event": "lease-ending",
        "cluster": "demo",
        "at": 5,
        "text": "ends in ten minutes",
        "content": "ends in ten minutes",
    }

    def read(path: str) -> str:
        return lived.run("ssh", "node-0", "--", "cat", path)

    until(lambda: "lease-ending lease-ending.json: sent" in read("/run/cluster/notify.log"), "the log")
    assert len(read("events").splitlines()) == 2
    owner = lived.run("ssh", "node-0", "--", "stat", "-c", "%U", "events")
    assert owner == "ubuntu\n"


def test_the_costs_are_those_of_the_sandboxs_log(lived: Lived) -> None:
    lived.assert_costs_match()
    lived.run("ssh", "node-1", "--", "sudo", "poweroff", code=None)
    until(lambda: [entry for entry in lived.states() if entry["state"] in ("stopped", "terminated")], "its end")
    lived.assert_costs_match()
    shown = lived.cost()
    assert shown["current"]["nodes"][0]["state"] == "running"
    assert shown["current"]["nodes"][1]["state"] in {"stopped", "ended"}
    assert shown["current"]["unseen_usd"] == 0
    text = lived.run("cost")
    assert "simulated" in text
    assert "node-1" in text


def test_the_url_of_the_webhook_is_nowhere(lived: Lived, tmp_path: Path) -> None:
    """It is in no process list, environment, file of a host or of this machine, object in S3 or output."""
    watch, project = lived.watch, lived.project
    lived.run("status")
    lived.run("logs")
    assert len(watch.command_lines) > 20
    assert watch.lines_with(SECRET) == []
    assert watch.holders_of(SECRET) == set()
    hosts = hosts_of(project)
    assert hosts
    for host in hosts.values():
        assert files_with(host.root, [SECRET]) == []
        assert files_with(host.root, ["of the user"])  # an event that was sent is found
    assert [text for text in lived.said if SECRET in text] == []
    assert any("cluster.toml is not sent: its [notify] webhook is a secret" in text for text in lived.said)
    state = [path for path in (project.directory / "state").rglob("*") if path.is_file()]
    state += [path for path in paths_of(project.directory).state_dir.glob("*") if path.is_file()]
    assert any(path.name == "demo.costs.json" for path in state)
    assert [path for path in state if has_any(path, [SECRET])] == []
    project.run("data", "get", "s3://cluster-lived/", str(tmp_path / "s3"))
    stored = [path for path in (tmp_path / "s3").rglob("*") if path.is_file()]
    assert {path.name for path in stored} >= {"record.json", "events"}
    assert [path for path in stored if has_any(path, [SECRET])] == []


def test_the_costs_stay_after_the_cluster(lived: Lived) -> None:
    """The last test to use the cluster."""
    lived.run("down")
    lived.assert_costs_match()
    after = lived.cost()
    assert (after["current"], after["usd_per_hour"]) == (None, 0)
    (earlier,) = after["earlier"]
    assert len(earlier["nodes"]) == 2
    assert "earlier clusters of this name" in lived.run("cost")
