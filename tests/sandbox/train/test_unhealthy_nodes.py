"""Unhealthy nodes, with real faults: named, left out of jobs, and shown until they are healthy again."""

import json
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from job_steps import borrowed, records
from project import Project

pytestmark = pytest.mark.sandbox

SHORT = "printf 'MemTotal: 3000000 kB\\n' >/tmp/meminfo && sudo mount --bind /tmp/meminfo /proc/meminfo"
READ_ONLY = "sudo mount --bind ~ ~ && sudo mount -o remount,bind,ro ~"
HOME = "/home/ubuntu cannot be written to: mounted read-only"


@pytest.fixture
def nodes(two_nodes: Project) -> Iterator[Project]:
    with borrowed(two_nodes) as project:
        yield project


@contextmanager
def fault(project: Project, node: str, breaks: str, repairs: str) -> Iterator[None]:
    project.run("exec", "--node", node, "--", "sh", "-c", breaks)
    try:
        yield
    finally:
        project.run("exec", "--node", node, "--", "sh", "-c", repairs)


def read_only(project: Project, node: str) -> "contextmanager[None]":
    return fault(project, node, READ_ONLY, "cd / && sudo umount -l ~")


def unhealthy(project: Project) -> dict[str, list[str]]:
    status = json.loads(project.run("status", "--json").stdout)
    return {node["name"]: node["unhealthy"] for node in status["nodes"]}


def test_a_node_that_lacks_memory(nodes: Project) -> None:
    nodes.run("train", "--kv-store", "none", "--launcher", "env", "--", "true")
    with fault(nodes, "node-1", SHORT, "sudo umount /proc/meminfo"):
        done = nodes.run("train", "--kv-store", "none", "--launcher", "env", "--", "hostname")
        said = "2929 MiB of memory, and its type has 8192 MiB"
        assert f"node-1: unhealthy and left out: {said}" in done.stderr
        newest = max(records(nodes), key=lambda record: record["submitted_at"])
        assert [host["name"] for host in newest["nodes"]] == ["node-0"]
        assert unhealthy(nodes) == {"node-0": [], "node-1": [said]}
        shown = nodes.run("status").stdout
        assert f"error  node-1 is unhealthy: {said}" in shown
        verified = nodes.run("verify", code=1)
        assert f"node-1: health, node: {said}" in verified.stderr
        refused = nodes.run("train", "--nodes", "2", "--", "true", code=1)
        assert "the job needs 2 nodes, and the cluster has 1" in refused.stderr
    nodes.run("train", "--kv-store", "none", "--launcher", "env", "--", "true")
    assert unhealthy(nodes) == {"node-0": [], "node-1": []}


def test_disks_that_become_read_only(nodes: Project) -> None:
    with read_only(nodes, "node-1"):
        done = nodes.run("train", "--kv-store", "none", "--launcher", "env", "--", "true")
        assert f"node-1: unhealthy and left out: {HOME}" in done.stderr
    with read_only(nodes, "node-0"):
        refused = nodes.run("train", "--kv-store", "none", "--launcher", "env", "--", "true", code=1)
        assert f"node-0, the head, is unhealthy: {HOME}" in refused.stderr


def test_a_job_that_fails_says_which_node_is_unhealthy(nodes: Project) -> None:
    """Its own process makes the node's home read-only, and fails."""
    program = f'[ "$CLUSTER_HOST" = node-1 ] || sleep 60; ({READ_ONLY}); exit 5'
    command = ["--kv-store", "none", "--launcher", "env", "--", "sh", "-c", program]
    try:
        done = nodes.run("train", *command, code=5)
    finally:
        nodes.run("exec", "--node", "node-1", "--", "sh", "-c", "cd / && sudo umount -l ~")
    assert f"node-1 is unhealthy: {HOME}" in done.stderr
    newest = max(records(nodes), key=lambda record: record["submitted_at"])
    assert newest["warnings"] == [f"node-1 is unhealthy: {HOME}"]
    assert unhealthy(nodes) == {"node-0": [], "node-1": [HOME]}
    nodes.run("train", "--kv-store", "none", "--launcher", "env", "--", "true")
    assert unhealthy(nodes) == {"node-0": [], "node-1": []}
