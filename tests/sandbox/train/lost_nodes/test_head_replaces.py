"""A head that replaces lost nodes by itself, with the role of its instance, while no command of the user runs."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest

from bootstrap.ssh.keys import MARK
from ec2_sandbox import control
from iam_calls import find_denied
from job_steps import Host, cause, ec2_of, gone, hosts_of, live, python, records
from project import Project, cluster_in
from waits import until

pytestmark = pytest.mark.sandbox

SECRETS = ("hook-4711", "token-4711", "argument-4711")
CONFIG = f"""
name = "itself"
cloud = "sandbox"

[provision]
nodes = 2
instance_type = "c5.xlarge"
market = "spot"
instance_profile = "auto"

[bootstrap]
framework = "none"

[train]
launcher = "env"
silence_timeout_s = 5
args = ["--token", "{SECRETS[2]}"]
env = {{ API_TOKEN = "{SECRETS[1]}" }}

[notify]
webhook = "https://127.0.0.1:9/{SECRETS[0]}"
"""
# Saves at the notice that a node is about to end; the second attempt ends at once.
PROGRAM = """
import json, os, sys, time
attempt, notice = os.environ["CLUSTER_ATTEMPT"], os.environ["CLUSTER_NOTICE_FILE"]
print("attempt", attempt, "on", os.environ["CLUSTER_HOST"], flush=True)
while attempt == "1":
    time.sleep(0.05)
    if os.path.exists(notice) and not os.path.exists(notice + ".saved"):
        with open(notice + ".new", "w") as stream:
            json.dump({"url": "s3://bucket/model", "epoch": 3, "batch": 7}, stream)
        os.replace(notice + ".new", notice + ".saved")
"""
REPLACED_S = 240.0
ROLE = "cluster-us-east-1-itself"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    with cluster_in(tmp_path_factory.mktemp("itself"), CONFIG) as project:
        yield project


@pytest.fixture
def nodes(cluster: Project) -> Iterator[Project]:
    yield cluster
    for record in records(cluster):
        if record["state"] not in {"done", "failed", "stopped"}:
            cluster.run("stop", record["id"])


def start(project: Project) -> tuple[str, dict[str, Host]]:
    """Starts a job; returns its id and the hosts once it runs. From now on no command runs."""
    before = hosts_of(project, again=True)
    job = project.run("train", "--detach", "-n", "2", *python(PROGRAM)).stdout.strip()
    until(lambda: state_of(project, job) == "running", "it does not run")
    return job, before


def record_of(project: Project, job: str) -> dict[str, Any]:
    return next(record for record in records(project) if record["id"] == job)


def state_of(project: Project, job: str) -> str:
    return str(record_of(project, job)["state"])


def log_of(host: Host, job: str) -> str:
    return (host.root / f"home/ubuntu/.cluster/jobs/{job}/events").read_text()


def wait_until_done(project: Project, job: str, head: Host) -> None:
    until(lambda: state_of(project, job) in {"done", "failed"}, "it does not end", timeout_s=REPLACED_S)
    assert state_of(project, job) == "done", log_of(head, job)


def check_replaced(project: Project, job: str, before: dict[str, Host]) -> dict[str, Host]:
    """Checks that only node-1 has been replaced, and that nothing is left over."""
    gone(job)
    after = hosts_of(project, again=True)
    assert after["node-0"] == before["node-0"]
    assert after["node-1"].instance_id != before["node-1"].instance_id
    assert live(boto3.client("ec2")) == {host.instance_id for host in after.values()}
    assert "there was nothing to do" in project.run("up").stderr
    assert live(boto3.client("ec2")) == {host.instance_id for host in after.values()}
    return after


def test_a_job_continues_while_no_command_runs(nodes: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    ec2_of(nodes, monkeypatch)
    job, before = start(nodes)
    head = before["node-0"]
    cause(nodes, "unauthorized", "service=ssm")  # as the role's policy; the image is then found by its name

    cause(nodes, "spot-notice", f"instance={before['node-1'].instance_id}")
    wait_until_done(nodes, job, head)

    control.disarm_faults(nodes.directory, "all")
    log = log_of(head, job)
    assert "waiting for node-1: the head replaces it" in log
    assert "cluster` command" not in log
    after = check_replaced(nodes, job, before)
    first, second = record_of(nodes, job)["attempts"]
    assert (first["reason"], first["lost"], second["reason"]) == ("notice", ["node-1"], "done")
    assert first["cost_usd"] > 0
    assert "node-1 interrupted (spot notice)" in nodes.run("jobs").stdout
    assert [attempt["instances"]["node-1"] for attempt in (first, second)] == [
        before["node-1"].instance_id,
        after["node-1"].instance_id,
    ]
    keys = (after["node-1"].root / "home/ubuntu/.ssh/authorized_keys").read_text().splitlines()
    assert [line.split()[0].split(",from=")[0] for line in keys if line.endswith(f" {MARK}")] == ["restrict"]
    calls = [json.loads(line) for line in nodes.run("sandbox", "log", "--json").stdout.splitlines()]
    policy = next(call["parameters"]["PolicyDocument"] for call in calls if call["action"] == "PutRolePolicy")
    by_head = [call for call in calls if ROLE in (call["caller"] or "") and not call["dry_run"]]
    assert "RunInstances" in {call["action"] for call in by_head}
    denied = find_denied(by_head, policy)
    assert denied <= {"ssm:GetParameter", "servicequotas:GetServiceQuota"}
    check_secrets(head)


def check_secrets(head: Host) -> None:
    """Checks that the head has no private key of the user, and no secret in its settings for replacements."""
    home = head.root / "home/ubuntu/.cluster"
    found = [path for path in home.rglob("*") if path.is_file() and b"PRIVATE KEY" in head_of(path)]
    assert [path.relative_to(home) for path in found] == [Path("ssh/id_ed25519")]
    settings = home / "replace/settings.json"
    assert settings.stat().st_mode & 0o077 == 0
    text = settings.read_text()
    assert not [secret for secret in SECRETS if secret in text]


def head_of(path: Path) -> bytes:
    with path.open("rb") as stream:
        return stream.read(100)


@pytest.mark.slow
def test_without_the_permission_the_job_waits_for_the_next_command(
    nodes: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    ec2_of(nodes, monkeypatch)
    job, before = start(nodes)
    head = before["node-0"]
    cause(nodes, "unauthorized", "action=RunInstances")

    cause(nodes, "spot-notice", f"instance={before['node-1'].instance_id}")
    until(lambda: "`cluster up` replaces it" in log_of(head, job), "it does not say so", timeout_s=120)

    assert "ec2:RunInstances" in log_of(head, job)
    assert "the head did not replace node-1 (exit code 1)" in log_of(head, job)
    assert state_of(nodes, job) == "waiting"
    assert before["node-1"].instance_id in live(boto3.client("ec2"))  # a node that cannot be replaced is not ended
    control.disarm_faults(nodes.directory, "all")
    assert f"job {job} continues" in nodes.run("up").stderr
    wait_until_done(nodes, job, head)
    check_replaced(nodes, job, before)
