"""A job that loses a node continues: the node is replaced, the others are untouched, and nothing is left over."""

import json
import random
import re
import time
from collections.abc import Callable, Iterator
from typing import Any

import boto3
import pytest
from mypy_boto3_ec2.client import EC2Client

from job_steps import Host, cause, ec2_of, gone, hosts_of, python, records
from project import REPOSITORY, Project, cluster_in, configure
from waits import until

pytestmark = pytest.mark.sandbox

# Works until the notice that a node is about to end, and then saves; the next attempt ends.
PROGRAM = """
import json, os, sys, time
attempt, notice = os.environ["CLUSTER_ATTEMPT"], os.environ["CLUSTER_NOTICE_FILE"]
print("attempt", attempt, "resumes", os.environ.get("CLUSTER_RESUME"), flush=True)
if attempt == "1":
    while not os.path.exists(notice):
        time.sleep(0.05)
    with open(notice + ".new", "w") as stream:
        json.dump({"url": "s3://bucket/model", "epoch": 3, "batch": 7}, stream)
    os.replace(notice + ".new", notice + ".saved")
    time.sleep(600)
"""
WORKERS = ("--launcher", "env", "-n", "2")


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    """A cluster of two spot instances without a framework, which takes less time to replace."""
    text = configure((REPOSITORY / "cluster.toml").read_text(), market="spot", framework="none")
    with cluster_in(tmp_path_factory.mktemp("spot"), text) as made:
        yield made


@pytest.fixture(scope="module")
def with_data(nodes: Project) -> Project:
    """The cluster, with MXNet, and the digits in the bucket that the shipped cluster.toml names."""
    nodes.write(configure((REPOSITORY / "cluster.toml").read_text(), market="spot"))
    nodes.run("up")
    nodes.run("data", "demo", "digits")
    nodes.run("data", "put", "--create-bucket", "digits/", "s3://cluster-demo/digits/")
    return nodes


def job_of(project: Project, job: str) -> dict[str, Any]:
    return next(record for record in records(project) if record["id"] == job)


def wait_for_state(project: Project, job: str, *states: str, timeout_s: float = 60.0) -> dict[str, Any]:
    """Waits until the job is in one of these states by its record on the head; returns the record."""
    until(lambda: job_of(project, job)["state"] in states, f"{job} is not {states}", timeout_s=timeout_s)
    return job_of(project, job)


def live(ec2: EC2Client) -> set[str]:
    """The ids of the instances that run or may run again."""
    pages = ec2.get_paginator("describe_instances").paginate()
    return {
        instance["InstanceId"]
        for page in pages
        for reservation in page["Reservations"]
        for instance in reservation["Instances"]
        if instance["State"]["Name"] not in {"shutting-down", "terminated"}
    }


@pytest.mark.slow  # the drill below does the same
def test_a_node_with_a_notice_is_replaced(nodes: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    before = hosts_of(nodes, again=True)
    job = nodes.run("train", "--detach", *WORKERS, *python(PROGRAM)).stdout.strip()
    wait_for_state(nodes, job, "running")
    sleeper = nodes.run("exec", "--node", "node-0", "--", "sh", "-c", "nohup sleep 987 >/dev/null 2>&1 & echo $!")

    cause(nodes, "spot-notice", f"instance={before['node-1'].instance_id}")
    waiting = wait_for_state(nodes, job, "waiting")

    assert waiting["waiting_for"] == ["node-1"]
    assert [attempt["reason"] for attempt in waiting["attempts"]] == ["notice"]
    shown = json.loads(nodes.run("status", "--json").stdout)
    assert live(ec2_of(nodes, monkeypatch)) == {host.instance_id for host in before.values()}  # --json only reads
    assert shown["job"]["state"] == "waiting"

    said = nodes.run("status").stderr

    assert f"job {job} (python) waits for node-1: replacing it" in said
    ended = wait_for_state(nodes, job, "done", "failed")
    assert (ended["state"], ended["exit_code"]) == ("done", 0), nodes.run("logs", job).stdout
    after = hosts_of(nodes, again=True)
    assert after["node-0"] == before["node-0"]
    assert after["node-1"].instance_id != before["node-1"].instance_id
    assert live(ec2_of(nodes, monkeypatch)) == {host.instance_id for host in after.values()}
    still = sleeper.stdout.split()[-1]
    assert nodes.run("exec", "--node", "node-0", "--", "kill", still).returncode == 0  # other processes keep running
    assert [attempt["number"] for attempt in ended["attempts"]] == [1, 2]
    assert [attempt["instances"]["node-1"] for attempt in ended["attempts"]] == [
        before["node-1"].instance_id,
        after["node-1"].instance_id,
    ]
    log = nodes.run("logs", job).stdout
    assert log.count("attempt 1 resumes None") == 2
    assert log.count("attempt 2 resumes 1") == 2
    gone(job)
    assert "nothing to do" in nodes.run("up").stderr


@pytest.mark.parametrize("how", [(), pytest.param(("--no-notice",), marks=pytest.mark.slow)])
def test_a_drill_shows_how_the_job_continues(nodes: Project, how: tuple[str, ...]) -> None:
    before = hosts_of(nodes, again=True)
    job = nodes.run("train", "--detach", *WORKERS, *python(PROGRAM)).stdout.strip()
    wait_for_state(nodes, job, "running")
    assert "node-0 is the head" in nodes.run("drill", "spot", "node-0", code=2).stderr

    shown = nodes.run("drill", "spot", *how).stdout

    assert f"job {job} (python): attempt 1 was interrupted, attempt 2 " in shown
    assert ("ended node-1" if how else "notice to node-1") in shown
    steps = ["attempt 1 has ended", "launched", "sshd", "set up", "handed over"]
    assert [line.split("  ")[-1].partition(":")[0] for line in shown.splitlines() if " s  " in line][1:6] == steps
    assert wait_for_state(nodes, job, "done", "failed")["exit_code"] == 0
    after = hosts_of(nodes, again=True)
    assert (after["node-0"], after["node-1"].instance_id != before["node-1"].instance_id) == (before["node-0"], True)
    gone(job)


def test_a_drill_needs_a_job_that_continues(nodes: Project) -> None:
    assert "no job is running" in nodes.run("drill", "spot", code=1).stderr
    job = nodes.directory / "fails.toml"
    job.write_text('on_node_loss = "fail"\n')
    started = nodes.run("train", "--job", "fails.toml", "--detach", *WORKERS, "--", "sleep", "600").stdout.strip()
    wait_for_state(nodes, started, "running")
    assert 'its [train] on_node_loss is "fail"' in nodes.run("drill", "spot", code=2).stderr
    nodes.run("stop", started)


def lose_at_once(project: Project, ec2: EC2Client, host: Host) -> None:
    """Cuts the host's power, then ends its instance in EC2: no process of it can report anything."""
    cause(project, "kill", f"instance={host.instance_id}", "leaves=running")
    ec2.terminate_instances(InstanceIds=[host.instance_id])


@pytest.mark.parametrize("at_once", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_job_continues_on_another_head(nodes: Project, monkeypatch: pytest.MonkeyPatch, *, at_once: bool) -> None:
    ec2, s3 = ec2_of(nodes, monkeypatch), boto3.client("s3")
    if "results" not in [bucket["Name"] for bucket in s3.list_buckets()["Buckets"]]:
        s3.create_bucket(Bucket="results")

    def is_there(key: str) -> bool:
        return bool(s3.list_objects_v2(Bucket="results", Prefix=key).get("KeyCount"))

    before = hosts_of(nodes, again=True)
    with nodes.configured(results="s3://results/jobs/"):
        words = ("--env", "COLOUR=blue green", "--env", "API_TOKEN=hidden", "--name", "long")
        job = nodes.run("train", "--detach", *words, *WORKERS, *python(PROGRAM)).stdout.strip()
        wait_for_state(nodes, job, "running")
        until(lambda: is_there(f"jobs/{job}/record.json"), "no record in S3")
        following = nodes.run(
            "train", "--detach", "--queue", "--name", "following", *WORKERS, *python("")
        ).stdout.strip()
        until(lambda: is_there(f"jobs/{following}/record.json"), "no record of the queued job in S3")
        events = before["node-0"].root / f"home/ubuntu/.cluster/jobs/{job}/events"
        until(lambda: events.read_text().count("attempt 1 resumes None") == 2, "not both have begun")
        if at_once:  # only what has been copied before is left
            until(lambda: is_there(f"jobs/{job}/events"), "no log in S3", timeout_s=150)
            lose_at_once(nodes, ec2, before["node-0"])
        else:
            ec2.terminate_instances(InstanceIds=[before["node-0"].instance_id])
        until(lambda: before["node-0"].instance_id not in live(ec2))
        shown = nodes.run("status", "--json")
        assert len(live(ec2)) == 1, shown.stdout  # --json only reads
        document = json.loads(shown.stdout)
        assert (document["job"]["state"], document["job"]["why"]) == ("unknown", "the head has ended")
        assert document["lost_head"]["jobs"] == [job, following]
        listed = {one["id"]: one for one in json.loads(nodes.run("jobs", "--json").stdout)}
        assert [(listed[one]["source"], listed[one]["head_lost"]) for one in (job, following)] == [("s3", True)] * 2

        said = nodes.run("status").stderr

        assert f"the head of job {job} (long) has ended: continuing the job on a new one" in said
        assert "API_TOKEN" in said  # its value is in no record
        after = hosts_of(nodes, again=True)
        assert after["node-0"].instance_id != before["node-0"].instance_id
        assert after["node-1"] == before["node-1"]
        assert live(ec2) == {host.instance_id for host in after.values()}
        ended = wait_for_state(nodes, job, "done", "failed")
        [known] = (nodes.directory / "state").rglob("addresses.json")
        begun = known.with_name("continued_jobs")
        assert not begun.exists()
        begun.write_text(f"{job}\n")  # as if the command had been killed just after it had ordered the job
        assert "continuing" not in nodes.run("status").stderr
        assert not begun.exists()
        assert (ended["state"], ended["exit_code"]) == ("done", 0), nodes.run("logs", job).stdout
        assert [(one["number"], one["reason"], one["lost"]) for one in ended["attempts"]] == [
            (1, "lost", ["node-0"]),
            (2, "done", []),
        ]
        assert ended["env"]["COLOUR"] == "blue green"
        assert wait_for_state(nodes, following, "done", "failed")["exit_code"] == 0
        log = nodes.run("logs", job).stdout
        assert log.count("attempt 1 resumes None") == 2
        assert log.count("attempt 2 resumes 1") == 2
        gone(job)
        until(lambda: json.loads(s3.get_object(Bucket="results", Key=f"jobs/{job}/record.json")["Body"].read())["state"]
              == "done")  # fmt: skip
        key = f"jobs/{job}/ranks/worker-0.log"
        text = s3.get_object(Bucket="results", Key=key)["Body"].read().decode()
        assert text == "attempt 1 resumes None\nattempt 2 resumes 1\n"
        assert "nothing to do" in nodes.run("up").stderr


EPOCHS = 20
BATCH_SIZE = 16
SLOW_EPOCHS = 4
SLOW_MBIT, SLOWER_THAN_A_DRILL_MBIT = 4, 60
"""With the first bandwidth a batch takes a second, and almost no CPU time; with the second, the training a minute."""


def training(prefix: str, *, epochs: int = EPOCHS, batch_size: int = BATCH_SIZE) -> tuple[str, ...]:
    """The arguments of `cluster train` that train the digits."""
    shape = ("--network", "mlp", "--num-epochs", str(epochs), "--batch-size", str(batch_size))
    return ("--", *shape, "--disp-batches", "5", "--model-prefix", prefix)


def read_digests(key: str) -> dict[str, str]:
    """The digests of the last checkpoint's files: the weights and the optimizer's state."""
    body = boto3.client("s3").get_object(Bucket="cluster-demo", Key=f"{key}-{EPOCHS:04}.json")["Body"].read()
    return {kind: file["sha256"] for kind, file in json.loads(body)["files"].items()}


@pytest.fixture(scope="module")
def uninterrupted(with_data: Project) -> dict[str, str]:
    """The digests of a training without interruptions."""
    with_data.run("train", *training("s3://cluster-demo/models/whole/m"))
    with pytest.MonkeyPatch.context() as patch:
        ec2_of(with_data, patch)
        return read_digests("models/whole/m")


def slow_down(project: Project, mbit: int) -> None:
    """Limits the bandwidth of node-1, until it is replaced."""
    cause(project, "link", f"instance={hosts_of(project, again=True)['node-1'].instance_id}", f"mbit={mbit}")


def train_and_interrupt(
    project: Project, prefix: str, after_s: float, *how: str, epochs: int = EPOCHS, batch_size: int = BATCH_SIZE
) -> str:
    """Trains the digits, interrupts node-1 this long after the first checkpoint, and waits for the end.

    Returns the output of the drill.
    """
    words = training(prefix, epochs=epochs, batch_size=batch_size)
    before = hosts_of(project, again=True)
    with project.configured(checkpoint_grace="30s" if not how else "1s"):
        job = project.run("train", "--detach", *words).stdout.strip()
    bucket, _, key = prefix.removeprefix("s3://").partition("/")
    s3 = boto3.client("s3")
    until(lambda: s3.list_objects_v2(Bucket=bucket, Prefix=key).get("KeyCount", 0) > 1, "no checkpoint")
    time.sleep(after_s)
    assert job_of(project, job)["state"] == "running", job_of(project, job)
    shown = project.run("drill", "spot", *how).stdout
    ended = wait_for_state(project, job, "done", "failed", "stopped", timeout_s=200)
    log = project.run("logs", job).stdout
    assert (ended["state"], ended["exit_code"]) == ("done", 0), log
    assert [attempt["number"] for attempt in ended["attempts"]] == [1, 2]
    after = hosts_of(project, again=True)
    assert after["node-0"] == before["node-0"]
    assert after["node-1"].instance_id != before["node-1"].instance_id
    done = [int(number) for number in re.findall(r"Epoch\[(\d+)\] Train-accuracy", log)]
    assert set(done) == set(range(epochs))  # no epoch is left out
    gone(job)
    return shown


def test_training_continues_after_a_node_was_replaced(with_data: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    ec2 = ec2_of(with_data, monkeypatch)

    slow_down(with_data, SLOW_MBIT)
    prefix = "s3://cluster-demo/models/once/m"
    shown = train_and_interrupt(with_data, prefix, 0.5, "--no-notice", epochs=SLOW_EPOCHS, batch_size=128)

    assert "training again" in shown
    assert live(ec2) == {host.instance_id for host in hosts_of(with_data).values()}


@pytest.mark.slow
@pytest.mark.parametrize("how", [(), ("--no-notice",)], ids=["notice", "no-notice"])
@pytest.mark.parametrize("number", range(50))
def test_interruptions_at_random_moments(
    with_data: Project,
    monkeypatch: pytest.MonkeyPatch,
    record_property: Callable[[str, object], None],
    uninterrupted: dict[str, str],
    how: tuple[str, ...],
    *,
    number: int,
) -> None:
    """The final model equals that of a training without interruptions, bit for bit."""
    ec2 = ec2_of(with_data, monkeypatch)
    if "node-1" not in hosts_of(with_data, again=True):  # an earlier test has failed
        with_data.run("up")
    after_s = random.Random(number).uniform(0, 4)

    # Otherwise a busy machine may interrupt it too late.
    slow_down(with_data, SLOWER_THAN_A_DRILL_MBIT)
    shown = train_and_interrupt(with_data, f"s3://cluster-demo/models/{number}-{len(how)}/m", after_s, *how)

    lost = re.search(r"lost batches: (\d+)", shown)
    if not how:
        assert lost is not None, shown
        assert int(lost[1]) <= 1
    assert read_digests(f"models/{number}-{len(how)}/m") == uninterrupted
    assert live(ec2) == {host.instance_id for host in hosts_of(with_data).values()}
    told = ", ".join(line for line in shown.splitlines() if ("sshd" in line and "again" in line) or "lost" in line)
    record_property("result", f"interruption {number}, {after_s:.1f} s after the first checkpoint: {told}")
