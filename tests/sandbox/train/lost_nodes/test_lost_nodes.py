"""Jobs that lose nodes, on real hosts: a spot notice from the metadata service, and a node that falls silent.

No replacement is launched here. The cluster has one node more than the job uses; a test hands it to the job in place
of the lost one, like a replacement.
"""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from job_steps import borrowed, cause, hosts_of, job_of, wait_for_state
from project import Project, cluster_in
from waits import until

pytestmark = pytest.mark.sandbox

CONFIG = """
name = "lost"
cloud = "sandbox"

[provision]
nodes = 3
instance_type = "c5.xlarge"
market = "spot"

[bootstrap]
framework = "none"

[train]
launcher = "env"
hosts = ["node-0", "node-1"]
silence_timeout_s = 5
"""
# Counts batches, and saves at a notice. Only rank 0 saves, as in most programs.
PROGRAM = """
import json, os, signal, time
told = []
signal.signal(signal.SIGUSR1, lambda *_: told.append("signal"))
attempt, notice = int(os.environ["CLUSTER_ATTEMPT"]), os.environ["CLUSTER_NOTICE_FILE"]
def write(suffix, **numbers):
    with open(notice + ".new", "w") as stream:
        json.dump(numbers, stream)
    os.replace(notice + ".new", notice + suffix)
resumes = "resumes" if os.environ.get("CLUSTER_RESUME") else ""
print("attempt", attempt, "on", os.environ["CLUSTER_HOST"], resumes, flush=True)
if attempt > 1:
    print("Resumed from epoch 0 batch 5", flush=True)
for batch in range(3000 if attempt == 1 else 20):
    time.sleep(0.1)
    if os.environ["RANK"] == "0" and batch <= 7:
        write(".progress", epoch=0, batch=batch)
    if os.path.exists(notice) and told and batch >= 7:
        print("told by file and", told[0], flush=True)
        if os.environ["RANK"] == "0":
            write(".saved", url="s3://bucket/model", epoch=0, batch=5)
        told.clear()
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    with cluster_in(tmp_path_factory.mktemp("lost"), CONFIG) as project:
        yield project


@pytest.fixture
def nodes(cluster: Project) -> Iterator[Project]:
    with borrowed(cluster) as project:
        yield project


def start(project: Project) -> str:
    """Starts a job, and waits until both processes run; returns its id."""
    done = project.run("train", "--detach", "--", "python3", "-c", PROGRAM)
    job = done.stdout.strip()
    until(lambda: job_of(project, job)["state"] == "running", "the job runs")
    return job


def replace(project: Project, job: str, name: str, by: str) -> dict[str, Any]:
    """Hands one of the cluster's nodes to a job, in place of another one; returns the answer of jobs.py."""
    host = hosts_of(project)[by]
    record = job_of(project, job)
    new = json.dumps([{"name": name, "ip": host.address, "instance_id": host.instance_id}])
    runtime = f"/home/ubuntu/.cluster/runtime/{record['code']}"
    words = [f"{runtime}/bin/python", "-Es", f"{runtime}/node", "jobs", "replace", job]
    done = project.run("exec", "--node", "node-0", "--", "sh", "-c", f"echo '{new}' | {' '.join(words)}")
    answer: dict[str, Any] = json.loads(done.stdout[done.stdout.index("{") :])
    return answer


def test_a_spot_notice(nodes: Project) -> None:
    """This must be the last test, because the notice stays and node-1 ends ten minutes later."""
    job = start(nodes)
    lost = hosts_of(nodes)["node-1"]
    cause(nodes, f"spot-notice instance={lost.instance_id} after_s=600")
    record = wait_for_state(nodes, job, "waiting")
    assert record["waiting_for"] == ["node-1"]
    status = json.loads(nodes.run("status", "--json").stdout)["job"]
    assert (status["state"], status["waiting_for"], status["attempt"]) == ("waiting", ["node-1"], 1)
    assert "waiting for node-1" in nodes.run("logs", "--json", job).stdout  # with --json, nothing is replaced
    assert replace(nodes, job, "node-1", by="node-2") == {"job": job}
    done = nodes.run("logs", "-f", "--plain", job)
    lines = done.stdout.splitlines()
    assert sum("told by file and signal" in line for line in lines) >= 1
    assert sum("attempt 2 on node-1 resumes" in line for line in lines) == 1
    assert sum("attempt 2 on node-0 resumes" in line for line in lines) == 1
    assert any("spot notice: EC2 will terminate node-1 at " in line for line in lines)
    first, second = job_of(nodes, job)["attempts"]
    assert (first["reason"], first["lost"], first["lost_batches"]) == ("notice", ["node-1"], 2)
    assert (second["reason"], second["exit_code"]) == ("done", 0)
    assert second["instances"]["node-1"] == hosts_of(nodes)["node-2"].instance_id
    assert first["cost_usd"] > 0
    shown = nodes.run("jobs").stdout
    assert "attempt 1 ended after" in shown
    assert "node-1 interrupted (spot notice), 2 batches lost" in shown
