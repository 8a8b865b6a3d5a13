"""A job that loses a node continues: the node is replaced, the others are untouched, and nothing is left over.

The head replaces another node by itself, with the role of its instance; `cluster up` replaces the head.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import boto3
import pytest

from bootstrap.ssh.keys import MARK
from ec2_sandbox import control
from iam_calls import find_denied
from job_steps import Host, borrowed, cause, ec2_of, gone, hosts_of, job_of, live, python, wait_for_state
from project import Project, cluster_in
from waits import until

if TYPE_CHECKING:
    from mypy_boto3_ec2.client import EC2Client

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

[data]
results = "s3://results/jobs/"

[notify]
webhook = "https://127.0.0.1:9/{SECRETS[0]}"
"""
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
REPLACED_S = 240.0
ROLE = "cluster-us-east-1-itself"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    with cluster_in(tmp_path_factory.mktemp("itself"), CONFIG) as project:
        yield project


@pytest.fixture
def ec2(cluster: Project, monkeypatch: pytest.MonkeyPatch) -> "EC2Client":
    made = ec2_of(cluster, monkeypatch)
    boto3.client("s3").create_bucket(Bucket="results")
    return made


@pytest.fixture
def nodes(cluster: Project, ec2: "EC2Client") -> Iterator[Project]:
    with borrowed(cluster):
        yield cluster


def start(project: Project, name: str) -> str:
    """Starts a job; returns its id once it runs on both nodes."""
    words = ("--name", name, "--env", "COLOUR=blue green", "--env", "OTHER_TOKEN=hidden", *WORKERS)
    job = project.run("train", "--detach", *words, *python(PROGRAM)).stdout.strip()
    wait_for_state(project, job, "running")
    until(lambda: log_of(hosts_of(project)["node-0"], job).count("attempt 1 resumes None") == 2, "not both have begun")
    return job


def log_of(host: Host, job: str) -> str:
    return (host.root / f"home/ubuntu/.cluster/jobs/{job}/events").read_text()


def kept(key: str) -> str:
    """What is in S3 of a job; "" for nothing."""
    s3 = boto3.client("s3")
    found = s3.list_objects_v2(Bucket="results", Prefix=f"jobs/{key}").get("KeyCount")
    return s3.get_object(Bucket="results", Key=f"jobs/{key}")["Body"].read().decode() if found else ""


def test_a_job_continues_while_no_command_runs(nodes: Project, ec2: "EC2Client") -> None:
    """The head and its programs do only what the policy of its role allows, and have no secret."""
    before = hosts_of(nodes, again=True)
    job = start(nodes, "alone")
    head = before["node-0"]
    cause(nodes, "unauthorized", "service=ssm")  # as the role's policy; the image is then found by its name

    cause(nodes, "spot-notice", f"instance={before['node-1'].instance_id}")
    ended = wait_for_state(nodes, job, "done", "failed", timeout_s=REPLACED_S)

    control.disarm_faults(nodes.directory, "all")
    log = log_of(head, job)
    assert ended["state"] == "done", log
    assert log.count("told by file and signal") == log.count("attempt 2 resumes 1") == 2
    assert "waiting for node-1: the head replaces it" in log
    assert "cluster` command" not in log
    gone(job)
    after = hosts_of(nodes, again=True)
    assert after["node-0"] == head
    assert after["node-1"].instance_id != before["node-1"].instance_id
    assert "there was nothing to do" in nodes.run("up").stderr
    assert live(ec2) == {host.instance_id for host in after.values()}
    first, second = ended["attempts"]
    assert (first["reason"], first["lost"], first["lost_batches"]) == ("notice", ["node-1"], 2)
    assert (second["number"], second["reason"], second["exit_code"]) == (2, "done", 0)
    assert first["cost_usd"] > 0
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
    assert denied <= {"servicequotas:GetServiceQuota"}
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


def test_a_job_continues_on_another_head(nodes: Project, ec2: "EC2Client") -> None:
    """Only the jobs that this machine submitted do; nothing follows from another record in the bucket."""
    before = hosts_of(nodes, again=True)
    job = start(nodes, "long")
    words = ("train", "--detach", "--queue", "--name", "following", *WORKERS, *python(""))
    following = nodes.run(*words).stdout.strip()
    record: dict[str, Any] = json.loads(until(lambda: kept(f"{following}/record.json"), "no record in S3"))
    until(lambda: kept(f"{job}/record.json"), "no record in S3")
    forged = f"{following.rpartition('-')[0]}-f0f0f0"
    record["spec"]["id"], record["spec"]["train"]["command"] = forged, ["touch", "/tmp/forged"]
    boto3.client("s3").put_object(Bucket="results", Key=f"jobs/{forged}/record.json", Body=json.dumps(record).encode())

    ec2.terminate_instances(InstanceIds=[before["node-0"].instance_id])
    until(lambda: before["node-0"].instance_id not in live(ec2))

    document = json.loads(nodes.run("status", "--json").stdout)
    assert (document["job"]["state"], document["job"]["why"]) == ("unknown", "the head has ended")
    assert sorted(document["lost_head"]["jobs"]) == sorted([job, following, forged])
    assert document["lost_head"]["why"].startswith("the head of cluster itself has ended")
    refused = nodes.run("train", "--detach", "--", "true", code=1).stderr
    assert "the head of cluster itself has ended" in refused
    assert "cluster up" in refused
    assert len(live(ec2)) == 1  # none of these replaces it

    output = nodes.run("up").stderr

    assert f"the head of job {job} (long) has ended: continuing the job on a new one" in output
    assert "OTHER_TOKEN" in output  # its value is in no record
    assert output.count("is not continued: ") == output.count(f"job {forged} is not continued: ") == 1
    after = hosts_of(nodes, again=True)
    assert after["node-0"].instance_id != before["node-0"].instance_id
    assert after["node-1"] == before["node-1"]
    assert live(ec2) == {host.instance_id for host in after.values()}
    ended = wait_for_state(nodes, job, "done", "failed")
    [known] = (nodes.directory / "state").rglob("addresses.json")
    begun = known.with_name("continued_jobs")
    assert not begun.exists()
    begun.write_text(f"{job}\n")  # as if the command had been killed just after it had ordered the job
    assert "continuing" not in nodes.run("up").stderr
    assert not begun.exists()
    assert (ended["state"], ended["exit_code"]) == ("done", 0), log_of(after["node-0"], job)
    assert [(one["number"], one["reason"], one["lost"]) for one in ended["attempts"]] == [
        (1, "lost", ["node-0"]),
        (2, "done", []),
    ]
    assert ended["env"]["COLOUR"] == "blue green"
    assert wait_for_state(nodes, following, "done", "failed")["exit_code"] == 0
    gone(job)
    until(lambda: json.loads(kept(f"{job}/record.json"))["state"] == "done")
    text = kept(f"{job}/events")
    assert text.count("attempt 1 resumes None") == text.count("attempt 2 resumes 1") == 2
    assert not any((host.root / "tmp/forged").exists() for host in after.values())


def test_fewer_nodes_end_the_job_that_uses_them(nodes: Project, ec2: "EC2Client") -> None:
    """Otherwise it would wait for them, and launch them again. The last test: one node is left."""
    job = start(nodes, "python")

    assert f"this would interrupt job {job}" in nodes.run("resize", "1", code=2).stderr
    assert job_of(nodes, job)["state"] == "running"
    output = nodes.run("resize", "1", "--yes").stderr

    assert f"stopping job {job} (python), which uses node-1" in output
    assert job_of(nodes, job)["state"] == "stopped"
    gone(job)
    after = hosts_of(nodes, again=True)
    assert [*after] == ["node-0"]
    assert live(ec2) == {after["node-0"].instance_id}
