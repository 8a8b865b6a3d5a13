"""A job that loses a node continues: the node is replaced, the others are untouched, and nothing is left over."""

import json
import os
import signal

import boto3
import pytest
from mypy_boto3_ec2.client import EC2Client

from job_steps import Host, cause, ec2_of, gone, hosts_of, job_of, live, python, records, wait_for_state
from project import Project
from spot_trainings import SLOW_EPOCHS, SLOW_MBIT, slow_down, train_and_interrupt
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


def test_an_attached_train_replaces_a_node(spot_nodes: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands that only read, meanwhile, change nothing."""
    before = hosts_of(spot_nodes, again=True)
    ec2 = ec2_of(spot_nodes, monkeypatch)
    sleeper = spot_nodes.run("exec", "--node", "node-0", "--", "sh", "-c", "nohup sleep 987 >/dev/null 2>&1 & echo $!")

    with spot_nodes.running("train", "--name", "attached", *WORKERS, *python(PROGRAM)) as train:
        [job] = until(lambda: [one["id"] for one in records(spot_nodes) if one["name"] == "attached"], "no job")
        wait_for_state(spot_nodes, job, "running")
        os.kill(train.pid, signal.SIGSTOP)
        cause(spot_nodes, "spot-notice", f"instance={before['node-1'].instance_id}")
        waiting = wait_for_state(spot_nodes, job, "waiting")
        assert waiting["waiting_for"] == ["node-1"]
        assert [attempt["reason"] for attempt in waiting["attempts"]] == ["notice"]
        assert "cluster up replaces" in spot_nodes.run("status").stdout
        spot_nodes.run("jobs")
        assert "`cluster up` replaces it" in spot_nodes.run("logs", job).stdout
        assert live(ec2) == {host.instance_id for host in before.values()}
        os.kill(train.pid, signal.SIGCONT)
        assert train.wait(timeout=120) == 0, spot_nodes.messages.read_text()
    assert f"job {job} (attached) waits for node-1: replacing it" in spot_nodes.messages.read_text()
    ended = job_of(spot_nodes, job)
    after = hosts_of(spot_nodes, again=True)
    assert after["node-0"] == before["node-0"]
    assert after["node-1"].instance_id != before["node-1"].instance_id
    assert live(ec2) == {host.instance_id for host in after.values()}
    still = sleeper.stdout.split()[-1]
    spot_nodes.run("exec", "--node", "node-0", "--", "kill", still)  # other processes keep running
    assert [attempt["number"] for attempt in ended["attempts"]] == [1, 2]
    assert [attempt["instances"]["node-1"] for attempt in ended["attempts"]] == [
        before["node-1"].instance_id,
        after["node-1"].instance_id,
    ]
    log = spot_nodes.run("logs", job).stdout
    assert log.count("attempt 1 resumes None") == 2
    assert log.count("attempt 2 resumes 1") == 2
    gone(job)
    assert "nothing to do" in spot_nodes.run("up").stderr


def lose_at_once(project: Project, ec2: EC2Client, host: Host) -> None:
    """Cuts the host's power, then ends its instance in EC2: no process of it can report anything."""
    cause(project, "kill", f"instance={host.instance_id}", "leaves=running")
    ec2.terminate_instances(InstanceIds=[host.instance_id])


@pytest.mark.parametrize("at_once", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_job_continues_on_another_head(
    spot_nodes: Project, monkeypatch: pytest.MonkeyPatch, *, at_once: bool
) -> None:
    ec2, s3 = ec2_of(spot_nodes, monkeypatch), boto3.client("s3")
    if "results" not in [bucket["Name"] for bucket in s3.list_buckets()["Buckets"]]:
        s3.create_bucket(Bucket="results")

    def is_there(key: str) -> bool:
        return bool(s3.list_objects_v2(Bucket="results", Prefix=key).get("KeyCount"))

    before = hosts_of(spot_nodes, again=True)
    with spot_nodes.configured(results="s3://results/jobs/"):
        words = ("--env", "COLOUR=blue green", "--env", "API_TOKEN=hidden", "--name", "long")
        job = spot_nodes.run("train", "--detach", *words, *WORKERS, *python(PROGRAM)).stdout.strip()
        wait_for_state(spot_nodes, job, "running")
        until(lambda: is_there(f"jobs/{job}/record.json"), "no record in S3")
        following = spot_nodes.run(
            "train", "--detach", "--queue", "--name", "following", *WORKERS, *python("")
        ).stdout.strip()
        until(lambda: is_there(f"jobs/{following}/record.json"), "no record of the queued job in S3")
        events = before["node-0"].root / f"home/ubuntu/.cluster/jobs/{job}/events"
        until(lambda: events.read_text().count("attempt 1 resumes None") == 2, "not both have begun")
        if at_once:  # only what has been copied before is left
            until(lambda: is_there(f"jobs/{job}/events"), "no log in S3", timeout_s=150)
            lose_at_once(spot_nodes, ec2, before["node-0"])
        else:
            ec2.terminate_instances(InstanceIds=[before["node-0"].instance_id])
        until(lambda: before["node-0"].instance_id not in live(ec2))
        shown = spot_nodes.run("status", "--json")
        assert len(live(ec2)) == 1, shown.stdout  # --json only reads
        document = json.loads(shown.stdout)
        assert (document["job"]["state"], document["job"]["why"]) == ("unknown", "the head has ended")
        assert document["lost_head"]["jobs"] == [job, following]
        listed = {one["id"]: one for one in json.loads(spot_nodes.run("jobs", "--json").stdout)}
        assert [(listed[one]["source"], listed[one]["head_lost"]) for one in (job, following)] == [("s3", True)] * 2

        assert f"the head of cluster {document['name']} has ended" in spot_nodes.run("status").stdout
        assert len(live(ec2)) == 1

        said = spot_nodes.run("up").stderr

        assert f"the head of job {job} (long) has ended: continuing the job on a new one" in said
        assert "API_TOKEN" in said  # its value is in no record
        after = hosts_of(spot_nodes, again=True)
        assert after["node-0"].instance_id != before["node-0"].instance_id
        assert after["node-1"] == before["node-1"]
        assert live(ec2) == {host.instance_id for host in after.values()}
        ended = wait_for_state(spot_nodes, job, "done", "failed")
        [known] = (spot_nodes.directory / "state").rglob("addresses.json")
        begun = known.with_name("continued_jobs")
        assert not begun.exists()
        begun.write_text(f"{job}\n")  # as if the command had been killed just after it had ordered the job
        assert "continuing" not in spot_nodes.run("up").stderr
        assert not begun.exists()
        assert (ended["state"], ended["exit_code"]) == ("done", 0), spot_nodes.run("logs", job).stdout
        assert [(one["number"], one["reason"], one["lost"]) for one in ended["attempts"]] == [
            (1, "lost", ["node-0"]),
            (2, "done", []),
        ]
        assert ended["env"]["COLOUR"] == "blue green"
        assert wait_for_state(spot_nodes, following, "done", "failed")["exit_code"] == 0
        log = spot_nodes.run("logs", job).stdout
        assert log.count("attempt 1 resumes None") == 2
        assert log.count("attempt 2 resumes 1") == 2
        gone(job)
        until(lambda: json.loads(s3.get_object(Bucket="results", Key=f"jobs/{job}/record.json")["Body"].read())["state"]
              == "done")  # fmt: skip
        text = s3.get_object(Bucket="results", Key=f"jobs/{job}/events")["Body"].read().decode()
        assert text.count("attempt 1 resumes None") == text.count("attempt 2 resumes 1") == 2
        assert "nothing to do" in spot_nodes.run("up").stderr


@pytest.mark.slow
def test_an_attached_train_continues_on_another_head(spot_nodes: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    ec2, s3 = ec2_of(spot_nodes, monkeypatch), boto3.client("s3")
    s3.create_bucket(Bucket="attached")
    before = hosts_of(spot_nodes, again=True)
    with (
        spot_nodes.configured(results="s3://attached/"),
        spot_nodes.running("train", "--plain", "--name", "attached", *WORKERS, *python(PROGRAM)) as train,
    ):
        until(lambda: s3.list_objects_v2(Bucket="attached").get("KeyCount"), "no record in S3")
        [job] = [one["id"] for one in records(spot_nodes) if one["name"] == "attached" and not one["ended_at"]]
        events = before["node-0"].root / f"home/ubuntu/.cluster/jobs/{job}/events"
        until(lambda: events.read_text().count("attempt 1 resumes None") == 2, "not both have begun")
        ec2.terminate_instances(InstanceIds=[before["node-0"].instance_id])
        shown, _ = train.communicate(timeout=180)
    assert train.returncode == 0, spot_nodes.messages.read_text()
    assert [shown.count(line) for line in ("attempt 1 resumes None", "attempt 2 resumes 1")] == [2, 2]
    assert live(ec2) == {host.instance_id for host in hosts_of(spot_nodes, again=True).values()}


def test_training_continues_after_a_node_was_replaced(with_data: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    ec2 = ec2_of(with_data, monkeypatch)

    slow_down(with_data, SLOW_MBIT)
    prefix = "s3://cluster-demo/models/once/m"
    ended = train_and_interrupt(with_data, ec2, prefix, 0.5, notice=False, epochs=SLOW_EPOCHS, batch_size=128)

    assert ended["attempts"][0]["lost_batches"] is not None
    assert live(ec2) == {host.instance_id for host in hosts_of(with_data).values()}
