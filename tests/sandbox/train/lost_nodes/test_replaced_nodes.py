"""A job that loses a node continues: the node is replaced, the others are untouched, and nothing is left over."""

import json
import os
import signal
from typing import TYPE_CHECKING, Any

import boto3
import pytest

from job_forms import nest_record
from job_steps import Host, cause, ec2_of, gone, hosts_of, job_of, live, python, records, wait_for_state
from project import Project
from sandbox_steps import find_sleepers
from waits import until

if TYPE_CHECKING:
    from mypy_boto3_ec2.client import EC2Client

pytestmark = pytest.mark.sandbox

# In the first attempt, works until the notice that its node is about to end, and saves; only rank 0 does, as in most
# programs. The next attempt ends at once.
PROGRAM = """
import json, os, signal, time
told = []
signal.signal(signal.SIGUSR1, lambda *_: told.append("signal"))
attempt, notice = os.environ["CLUSTER_ATTEMPT"], os.environ["CLUSTER_NOTICE_FILE"]
def write(suffix, **numbers):
    if os.environ["RANK"] == "0":
        with open(notice + ".new", "w") as stream:
            json.dump(numbers, stream)
        os.replace(notice + ".new", notice + suffix)
print("attempt", attempt, "resumes", os.environ.get("CLUSTER_RESUME"), flush=True)
if attempt == "1":
    write(".progress", epoch=0, batch=7)
    while not (os.path.exists(notice) and told):
        time.sleep(0.05)
    print("told by file and", told[0], flush=True)
    write(".saved", url="s3://bucket/model", epoch=0, batch=5)
    time.sleep(600)
print("Resumed from epoch 0 batch 5", flush=True)
"""
WORKERS = ("--launcher", "env", "-n", "2")


@pytest.mark.slow
def test_an_attached_train_replaces_a_node(spot_nodes: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands that only read, meanwhile, change nothing."""
    before = hosts_of(spot_nodes, again=True)
    ec2 = ec2_of(spot_nodes, monkeypatch)
    other = "nohup sleep 98765.4 >/dev/null 2>&1 &"  # keeps running
    spot_nodes.run("exec", "--node", "node-0", "--", "sh", "-c", other)

    with spot_nodes.following("train", "--name", "attached", *WORKERS, *python(PROGRAM)) as train:
        [job] = until(lambda: [one["id"] for one in records(spot_nodes) if one["name"] == "attached"], "no job")
        wait_for_state(spot_nodes, job, "running")
        os.kill(train.pid, signal.SIGSTOP)
        cause(spot_nodes, "spot-notice", f"instance={before['node-1'].instance_id}")
        waiting = wait_for_state(spot_nodes, job, "waiting")
        assert waiting["waiting_for"] == ["node-1"]
        assert [attempt["reason"] for attempt in waiting["attempts"]] == ["notice"]
        assert "cluster up replaces" in spot_nodes.run("status").stdout
        status = json.loads(spot_nodes.run("status", "--json").stdout)["job"]
        assert (status["state"], status["waiting_for"], status["attempt"]) == ("waiting", ["node-1"], 1)
        assert "waiting for node-1: `cluster up` replaces it" in spot_nodes.run("logs", "--json", job).stdout
        assert live(ec2) == {host.instance_id for host in before.values()}
        os.kill(train.pid, signal.SIGCONT)
        assert train.wait(timeout=120) == 0, spot_nodes.messages.read_text()
    assert f"job {job} (attached) waits for node-1: replacing it" in spot_nodes.messages.read_text()
    ended = job_of(spot_nodes, job)
    after = hosts_of(spot_nodes, again=True)
    assert after["node-0"] == before["node-0"]
    assert after["node-1"].instance_id != before["node-1"].instance_id
    assert live(ec2) == {host.instance_id for host in after.values()}
    [sleeper] = find_sleepers("98765.4")
    os.kill(sleeper, signal.SIGKILL)
    first, second = ended["attempts"]
    assert (first["reason"], first["lost"], first["lost_batches"]) == ("notice", ["node-1"], 2)
    assert (second["number"], second["reason"], second["exit_code"]) == (2, "done", 0)
    assert first["cost_usd"] > 0
    assert [attempt["instances"]["node-1"] for attempt in (first, second)] == [
        before["node-1"].instance_id,
        after["node-1"].instance_id,
    ]
    log = spot_nodes.run("logs", job).stdout
    assert log.count("attempt 1 resumes None") == log.count("told by file and signal") == 2
    assert log.count("attempt 2 resumes 1") == 2
    assert "spot notice: EC2 will terminate node-1 at " in log
    shown = spot_nodes.run("jobs").stdout
    assert "attempt 1 ended after" in shown
    assert "node-1 interrupted (spot notice), 2 batches lost" in shown
    gone(job)


def forge(number: int, head: str, **values: Any) -> dict[str, Any]:
    """A record of a job that this machine did not submit, queued on the head when that ended."""
    record = {
        "id": f"20300101-00000{number}-abcdef",
        "name": f"forged{number}",
        "state": "queued",
        "workers": 1,
        "servers": 0,
        "submitted_at": 1.9e9 + number,
        "started_at": None,
        "ended_at": None,
        "exit_code": None,
        "error": None,
        "nodes": [{"name": "node-0", "ip": "10.0.0.4", "workers": 1, "instance_id": head}],
        "python": "python",
        "command": ["sh", "-c", "touch /tmp/forged"],
        "launcher": "env",
        "kv_store": "none",
    }
    return nest_record(record | values)


@pytest.fixture
def forged(spot_nodes: Project, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The ids of jobs whose records somebody else has put into the bucket for results."""
    ec2_of(spot_nodes, monkeypatch)
    s3, head = boto3.client("s3"), hosts_of(spot_nodes, again=True)["node-0"].instance_id
    secret = spot_nodes.directory.parent / "outside.py"
    secret.write_text("print('secret of another folder')\n")
    records = [
        forge(0, head),
        forge(1, head, nodes=[{"name": f"node-{index}", "workers": 1, "instance_id": head} for index in range(8)]),
        forge(2, head, script=str(secret), script_source="project"),
        forge(3, head, command=["cat", "s3://payroll/salaries.csv"]),
        forge(4, head, launcher="nonesuch"),
    ]
    s3.create_bucket(Bucket="results")
    ids = [str(record["spec"]["id"]) for record in records]
    for job, record in zip(ids, records, strict=True):
        s3.put_object(Bucket="results", Key=f"jobs/{job}/record.json", Body=json.dumps(record).encode())
    return ids


def lose_at_once(project: Project, ec2: "EC2Client", host: Host) -> None:
    """Cuts the host's power, then ends its instance in EC2: no process of it can report anything."""
    cause(project, "kill", f"instance={host.instance_id}", "leaves=running")
    ec2.terminate_instances(InstanceIds=[host.instance_id])


@pytest.mark.parametrize("at_once", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_job_continues_on_another_head(
    spot_nodes: Project, forged: list[str], monkeypatch: pytest.MonkeyPatch, *, at_once: bool
) -> None:
    """Only the jobs that this machine submitted do; nothing follows from another record in the bucket."""
    ec2, s3 = ec2_of(spot_nodes, monkeypatch), boto3.client("s3")

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
        assert sorted(document["lost_head"]["jobs"]) == [job, following, *forged]
        listed = {one["id"]: one for one in json.loads(spot_nodes.run("jobs", "--json").stdout)}
        assert {(listed[one]["source"], listed[one]["head_lost"]) for one in (job, following, *forged)} == {
            ("s3", True)
        }

        status = spot_nodes.run("status").stdout
        assert f"the head of cluster {document['name']} has ended" in status
        assert "cluster up continues" in status
        refused = spot_nodes.run("train", "--detach", "--", "true", code=1)
        assert "has ended" in refused.stderr
        calls = spot_nodes.run("sandbox", "log", "--json").stdout
        assert "GetFederationToken" in calls
        assert "payroll" not in calls  # no credentials for what a forged record names
        assert len(live(ec2)) == 1

        said = spot_nodes.run("up").stderr

        assert f"the head of job {job} (long) has ended: continuing the job on a new one" in said
        assert "API_TOKEN" in said  # its value is in no record
        assert [said.count(f"job {one} is not continued: ") for one in forged] == [1] * len(forged)
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
        listed = {one["id"]: one for one in json.loads(spot_nodes.run("jobs", "--json").stdout)}
        assert {listed[one]["state"] for one in forged} == {"queued"}
        for host in after.values():
            assert not (host.root / "tmp/forged").exists()
            assert list((host.root / "home/ubuntu/.cluster").rglob("outside.py")) == []


@pytest.mark.slow
def test_an_attached_train_continues_on_another_head(spot_nodes: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    ec2, s3 = ec2_of(spot_nodes, monkeypatch), boto3.client("s3")
    s3.create_bucket(Bucket="attached")
    before = hosts_of(spot_nodes, again=True)
    with (
        spot_nodes.configured(results="s3://attached/"),
        spot_nodes.following("train", "--plain", "--name", "attached", *WORKERS, *python(PROGRAM)) as train,
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


def test_fewer_nodes_end_the_job_that_uses_them(spot_nodes: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise it would wait for them, and launch them again. The last test: one node is left."""
    ec2 = ec2_of(spot_nodes, monkeypatch)
    job = spot_nodes.run("train", "--detach", *WORKERS, *python(PROGRAM)).stdout.strip()
    wait_for_state(spot_nodes, job, "running")

    assert f"this would interrupt job {job}" in spot_nodes.run("resize", "1", code=2).stderr
    assert job_of(spot_nodes, job)["state"] == "running"
    said = spot_nodes.run("resize", "1", "--yes").stderr

    assert f"stopping job {job} (python), which uses node-1" in said
    assert job_of(spot_nodes, job)["state"] == "stopped"
    gone(job)
    after = hosts_of(spot_nodes, again=True)
    assert [*after] == ["node-0"]
    assert live(ec2) == {after["node-0"].instance_id}
