"""Unhealthy nodes, with real faults: named, left out of jobs, and shown until they are healthy again."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from job_steps import hosts_of, records
from project import Project

pytestmark = pytest.mark.sandbox

SHORT = (
    "sed 's/^MemTotal:.*/MemTotal: 3000000 kB/' /proc/meminfo >/tmp/meminfo && "
    "sudo mount --bind /tmp/meminfo /proc/meminfo"
)
READ_ONLY = "sudo mount --bind ~ ~ && sudo mount -o remount,bind,ro ~"
REPAIRS = "cd / && sudo umount -l ~"
HOME = "/home/ubuntu cannot be written to: mounted read-only"


def on(project: Project, node: str, script: str) -> None:
    """Runs a script on a node as root, without a login."""
    inside = ("nsenter", "--all", "--target", str(hosts_of(project)[node].pid), "env", "HOME=/home/ubuntu")
    subprocess.run((*inside, "sh", "-c", script), check=True)


@contextmanager
def fault(project: Project, node: str, breaks: str, repairs: str) -> Iterator[None]:
    on(project, node, breaks)
    try:
        yield
    finally:
        on(project, node, repairs)


def unhealthy(project: Project) -> dict[str, list[str]]:
    status = json.loads(project.run("status", "--json").stdout)
    return {node["name"]: node["unhealthy"] for node in status["nodes"]}


def test_a_node_that_lacks_memory(nodes: Project) -> None:
    with fault(nodes, "node-1", SHORT, "sudo umount /proc/meminfo"):
        done = nodes.run("train", "--kv-store", "none", "--launcher", "env", "--", "hostname")
        output = "2929 MiB of memory, and its type has 8192 MiB"
        assert f"node-1: unhealthy and left out: {output}" in done.stderr
        newest = max(records(nodes), key=lambda record: record["submitted_at"])
        assert [host["name"] for host in newest["nodes"]] == ["node-0"]
        assert unhealthy(nodes) == {"node-0": [], "node-1": [output]}
        assert f"error  node-1 is unhealthy: {output}" in nodes.run("status").stdout
        refused = nodes.run("train", "--nodes", "2", "--", "true", code=1)
        assert "the job needs 2 nodes, and the cluster has 1" in refused.stderr


def test_a_job_that_fails_says_which_node_is_unhealthy(nodes: Project) -> None:
    """The job's own process makes the node's home read-only, and fails."""
    program = f'[ "$CLUSTER_HOST" = node-1 ] || sleep 60; ({READ_ONLY}); exit 5'
    words = ", ".join(json.dumps(word) for word in ("sh", "-c", program))
    (nodes.directory / "fail.toml").write_text(f'command = [{words}]\non_node_loss = "fail"\n')
    try:
        done = nodes.run("train", "--kv-store", "none", "--launcher", "env", "--job", "fail.toml", code=5)
    finally:
        on(nodes, "node-1", REPAIRS)
    assert f"node-1 is unhealthy: {HOME}" in done.stderr
    newest = max(records(nodes), key=lambda record: record["submitted_at"])
    assert newest["warnings"] == [f"node-1 is unhealthy: {HOME}"]
    assert unhealthy(nodes) == {"node-0": [], "node-1": [HOME]}
    nodes.run("train", "--kv-store", "none", "--launcher", "env", "--", "true")
    assert unhealthy(nodes) == {"node-0": [], "node-1": []}
