"""Nodes end or stop at bad moments of a training: it ends, no command hangs, and nothing that costs is left.

`cluster up` is the command that mends, or `cluster start` where it says so.
"""

import json
import random
import shutil
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import boto3
import pytest

from ec2_sandbox.errors import SandboxError
from job_steps import cause, ec2_of, hosts_of, live
from project import Project, cluster_in, shipped
from waits import until

if TYPE_CHECKING:
    from mypy_boto3_ec2.client import EC2Client

pytestmark = [pytest.mark.sandbox, pytest.mark.slow]

SHAPE = ("--network", "mlp", "--num-epochs", "4", "--batch-size", "16", "--disp-batches", "5", "--model-prefix")
COMMAND_S = 900.0
"""After this long, a command hangs: nodes that do not answer are awaited for 5 minutes."""
ENDED = ("done", "failed", "stopped")
ROUNDS = 6


@pytest.fixture(scope="module", params=["none", "auto"], ids=["without-role", "with-role"])
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    """A cluster of two nodes, whose head replaces lost nodes if it has a role; [data] results is in S3."""
    text = shipped(
        instance_profile=request.param, mode="stage", results="s3://cluster-demo/results/", silence_timeout_s=5,
        restarts=10,
    )  # fmt: skip
    with cluster_in(tmp_path_factory.mktemp("kills"), text) as project:
        project.run("data", "demo", "digits")
        project.run("data", "put", "--create-bucket", "digits/", "s3://cluster-demo/digits/")
        yield project
        project.run("down", "--yes")
        with pytest.MonkeyPatch.context() as patch:
            assert not live(ec2_of(project, patch))


def strike(project: Project, ec2: "EC2Client", instance_id: str, how: str) -> None:
    """Cuts an instance's power. EC2 then shows it as stopped, as after a scheduled retirement, or as terminated."""

    def has_struck() -> bool:
        try:
            cause(project, "kill", f"instance={instance_id}", f"leaves={'stopped' if how == 'stop' else 'running'}")
        except SandboxError:  # it does not run yet
            return False
        return True

    until(has_struck, f"{instance_id} does not run")
    if how == "end":
        ec2.terminate_instances(InstanceIds=[instance_id])


class Row:
    """A training, and a kill at a moment. which: "head" or "worker".

    With a role, workers are terminated and heads stopped; without one, the other way round.
    """

    def __init__(self, project: Project, ec2: "EC2Client", name: str, which: str) -> None:
        self.project, self.ec2 = project, ec2
        self.name, self.victim = name, "node-0" if which == "head" else "node-1"
        self.has_role = 'instance_profile = "auto"' in (project.directory / "cluster.toml").read_text()
        self.how = "end" if (which == "worker") == self.has_role else "stop"
        self.hosts = hosts_of(project, again=True)
        self.key = f"results/models/{name}"  # where a role may write
        self.words = ("train", "--detach", "--", *SHAPE, f"s3://cluster-demo/{self.key}/m")
        self.job = ""

    def strike(self, instance_id: str = "") -> None:
        strike(self.project, self.ec2, instance_id or self.hosts[self.victim].instance_id, self.how)

    def start(self) -> None:
        self.job = self.project.run(*self.words).stdout.strip()

    # -- moments -----------------------------------------------------------------------------------------------------

    def kill_in_set_up(self) -> None:
        """While `cluster train` connects, sets up and submits."""
        with self.project.running(*self.words) as process:
            time.sleep(random.Random(self.name).uniform(0.2, 2.0))
            self.strike()
            out, _ = process.communicate(timeout=COMMAND_S)
        self.job = out.strip()
        assert self.job or process.returncode, self.project.messages.read_text()

    def kill_in_staging(self) -> None:
        cause(self.project, "link", f"instance={self.hosts['node-1'].instance_id}", "mbit=8")
        cache = self.hosts["node-1"].root / "home/ubuntu/.cluster/data"
        for staged in (cache / "objects").glob("*"):  # by earlier jobs
            shutil.rmtree(staged)
        self.start()
        until(lambda: list((cache / "incoming").glob("*")), "nothing is staged")
        self.strike()
        if self.victim == "node-0":
            cause(self.project, "link", f"instance={self.hosts['node-1'].instance_id}", "mbit=0")

    def kill_in_saving(self) -> None:
        """Once the first file of the first checkpoint is in S3."""
        self.start()
        s3 = boto3.client("s3")
        until(lambda: s3.list_objects_v2(Bucket="cluster-demo", Prefix=self.key).get("KeyCount"), "it saves nothing")
        self.strike()

    def kill_in_replacement(self) -> None:
        """While a new worker is set up: that one, or the head."""
        self.start()
        until(lambda: self.state() in {"running", *ENDED}, "it does not run")
        known = live(self.ec2)
        strike(self.project, self.ec2, self.hosts["node-1"].instance_id, "end")
        if self.has_role:
            self.kill_the_new(known)
            return
        until(lambda: self.state() in {"waiting", *ENDED}, "it does not wait")
        with self.project.running("up", "--yes") as process:
            self.kill_the_new(known)
            process.communicate(timeout=COMMAND_S)

    def kill_the_new(self, known: set[str]) -> None:
        new = until(lambda: live(self.ec2) - known, "no new node", timeout_s=200)
        self.strike("" if self.victim == "node-0" else new.pop())

    def kill_twice(self) -> None:
        """The second time in the next attempt."""
        self.start()
        until(lambda: self.state() in {"running", *ENDED}, "it does not run")
        strike(self.project, self.ec2, self.hosts["node-1"].instance_id, "end")
        until(lambda: self.state() in {"waiting", *ENDED}, "it does not wait")
        self.project.run("up", "--yes", timeout_s=COMMAND_S)
        until(lambda: self.state() in {"running", *ENDED}, "it does not run again", timeout_s=200)
        self.hosts = hosts_of(self.project, again=True)
        self.strike()

    # -- afterwards --------------------------------------------------------------------------------------------------

    def read(self, *words: str) -> str:
        """Runs a command that only reads; returns its stdout."""
        done = self.project.run(*words, code=None)
        return done.stdout if done.returncode == 0 else ""

    def state(self) -> str:
        """The job's state; "" while no source is there."""
        jobs = json.loads(self.read("jobs", "--json") or "[]")
        return next((job["state"] for job in jobs if job["id"] == self.job), "")

    def mend(self) -> tuple[str, str]:
        """Runs the commands that a user would run, until the job has ended; returns its state and the last messages."""
        for _ in range(ROUNDS):
            done = self.project.run("up", "--yes", code=None, timeout_s=COMMAND_S)
            if done.returncode and "cluster start" in done.stderr:
                self.project.run("start", "--yes", code=None, timeout_s=COMMAND_S)
            elif done.returncode == 0 and not self.job:
                self.start()
            if self.job:
                until(lambda: self.state() in {"waiting", "", *ENDED}, f"{self.job}: {self.state()}", timeout_s=240)
            if self.job and self.state() in ENDED:
                break
        return self.state(), done.stderr


@pytest.mark.parametrize("which", ["worker", "head"])
@pytest.mark.parametrize("moment", ["set_up", "staging", "saving", "replacement", "twice"])
def test_kills(
    cluster: Project,
    monkeypatch: pytest.MonkeyPatch,
    record_property: Callable[[str, object], None],
    *,
    moment: str,
    which: str,
) -> None:
    ec2 = ec2_of(cluster, monkeypatch)
    for job in json.loads(cluster.run("jobs", "--json").stdout):
        if job["state"] not in ENDED:  # an earlier row has failed
            cluster.run("stop", job["id"], code=None)
    row = Row(cluster, ec2, f"{moment}-{which}", which)

    getattr(row, f"kill_in_{moment}" if moment != "twice" else "kill_twice")()
    for words in (("status", "--json"), ("jobs", "--json"), ("logs", "--json", *([row.job] if row.job else []))):
        row.read(*words)
    state, output = row.mend()

    [record] = [job for job in json.loads(row.read("jobs", "--json")) if job["id"] == row.job] or [{}]
    record_property("result", f"{row.name}: {state or 'no record'}; {record.get('error')}")
    assert state in ENDED, output
    assert state == "done" or record["error"]
    cluster.run("up", "--yes", timeout_s=COMMAND_S)
    shown = json.loads(row.read("status", "--json"))
    assert not shown["untrusted"]
    assert live(ec2) == {node["instance_id"] for node in shown["nodes"]}
    assert len(shown["nodes"]) == 2
