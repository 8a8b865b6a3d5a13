"""Nodes that stop, or that another command ends, while a job or a command waits for nodes."""

from collections.abc import Iterator

import boto3
import pytest

from job_steps import borrowed, ec2_of, gone, hosts_of, job_of, live, python, wait_for_state
from project import Project, cluster_in

pytestmark = pytest.mark.sandbox

CONFIG = """
name = "stopped"
cloud = "sandbox"

[provision]
nodes = 3
instance_type = "c5.xlarge"

[bootstrap]
framework = "none"

[train]
launcher = "env"
silence_timeout_s = 5
"""
PROGRAM = """
import os, time
while os.environ["CLUSTER_ATTEMPT"] == "1":
    time.sleep(0.1)
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    with cluster_in(tmp_path_factory.mktemp("stopped"), CONFIG) as project:
        yield project


@pytest.fixture
def nodes(cluster: Project, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    with borrowed(cluster) as project:
        ec2_of(project, monkeypatch)
        yield project


def lose_node_1(project: Project) -> str:
    """Starts a job that loses a node, and waits; returns its id."""
    hosts = hosts_of(project, again=True)
    job = project.run("train", "--detach", *python(PROGRAM)).stdout.strip()
    wait_for_state(project, job, "running")
    boto3.client("ec2").terminate_instances(InstanceIds=[hosts["node-1"].instance_id])
    wait_for_state(project, job, "waiting")
    return job


def test_fewer_nodes_while_a_job_waits_end_the_job(nodes: Project) -> None:
    job = lose_node_1(nodes)

    assert f"this would interrupt job {job}" in nodes.run("resize", "2", code=2).stderr
    assert job_of(nodes, job)["state"] == "waiting"
    said = nodes.run("resize", "2", "--yes").stderr

    assert f"stopping job {job} (python), which uses node-2" in said
    assert job_of(nodes, job)["state"] == "stopped"
    gone(job)
    after = hosts_of(nodes, again=True)
    assert [*after] == ["node-0", "node-1"]
    assert live(boto3.client("ec2")) == {host.instance_id for host in after.values()}
