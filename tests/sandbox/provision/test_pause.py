"""Stop, start, list, status and allow, by the real command."""

import json
import re
from typing import Any

import pytest

from project import Project

pytestmark = pytest.mark.sandbox

JOB = "echo rank $RANK of $WORLD_SIZE"


def status_of(project: Project) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(project.run("status", "--json").stdout)
    return document


def set_provision(project: Project, line: str, *, replaces: str = r"# ssh_from = .*") -> None:
    text = (project.directory / "cluster.toml").read_text()
    changed = re.sub(f"^{replaces}$", line, text, count=1, flags=re.MULTILINE)
    assert changed != text
    project.write(changed)


def test_a_stopped_cluster_starts_and_trains_again(two_nodes: Project) -> None:
    project = two_nodes
    (pins,) = (project.directory / "state").rglob("known_hosts")
    pinned = pins.read_text()
    before = status_of(project)
    assert (before["state"], before["node_counts"]) == ("ready", {"running": 2})
    assert before["cost"]["usd_per_hour"] > 0
    assert project.run("stop").stdout == "no job runs\n"

    stopped = project.run("stop", "--nodes")

    assert "its disks, 200 GiB, still cost money: $16.00 per month (simulated)" in stopped.stdout
    resting = status_of(project)
    assert (resting["state"], resting["node_counts"], resting["errors"]) == ("stopped", {"stopped": 2}, [])
    assert 0 < resting["cost"]["usd_per_hour"] < before["cost"]["usd_per_hour"]  # the disks
    assert [node["public_ip"] for node in resting["nodes"]] == [None, None]
    ran = [node["running_s"] for node in resting["cost"]["nodes"].values()]
    assert ran == [node["running_s"] for node in status_of(project)["cost"]["nodes"].values()]  # it stays the same
    assert "(stopped)" in project.run("train", code=1).stderr
    again = project.run("stop", "--nodes")
    assert "no resources to change" in again.stderr
    assert again.stdout == stopped.stdout

    project.run("start")

    after = status_of(project)
    assert (after["state"], after["node_counts"]) == ("ready", {"running": 2})
    kept = ("name", "role", "instance_id", "private_ip")
    assert [[node[key] for key in kept] for node in after["nodes"]] == [
        [node[key] for key in kept] for node in before["nodes"]
    ]
    assert pins.read_text() == pinned
    assert all(node["started_at"] > node["launched_at"] for node in after["nodes"])
    trained = project.run("train", "--launcher", "env", "--", "sh", "-c", JOB)
    assert set(re.findall(r"rank (\d) of 2", trained.stdout)) == {"0", "1"}
    assert "nothing to do" in project.run("start").stderr
    assert "nothing to do" in project.run("up").stderr


@pytest.mark.slow
def test_status_shows_failed_nodes(project: Project) -> None:
    project.run("up")
    lost = status_of(project)["nodes"][1]["instance_id"]

    project.run("sandbox", "fault", "kill", f"instance={lost}")
    wait_until_stopped(project, lost)

    status = status_of(project)
    assert (status["state"], status["node_counts"]) == ("degraded", {"running": 1, "stopped": 1})
    assert [(error["instance_id"], error["node"], error["code"]) for error in status["errors"]] == [
        (lost, "node-1", "Server.ScheduledStop")
    ]
    shown = project.run("status").stdout
    assert f"error  node-1 ({lost}) stopped: Stopped due to scheduled retirement" in shown
    assert "state  degraded: node 1 is stopped" in shown
    project.run("start")
    assert status_of(project)["state"] == "ready"
    project.run("verify")


def wait_until_stopped(project: Project, instance_id: str) -> None:
    states: dict[str, str] = {}
    for _ in range(100):
        states = {node["instance_id"]: node["state"] for node in status_of(project)["nodes"]}
        if states[instance_id] == "stopped":
            return
    raise AssertionError(states)


@pytest.mark.slow
def test_allow_changes_the_address(two_nodes: Project) -> None:
    before = (two_nodes.directory / "cluster.toml").read_text()
    same = two_nodes.run("allow").stdout
    (own,) = re.fullmatch(r"ssh is allowed from (\S+), as it was\n", same).groups()
    set_provision(two_nodes, 'ssh_from = "203.0.113.0/24"')
    try:
        assert two_nodes.run("allow").stdout == f"ssh is allowed from 203.0.113.0/24; it was from {own}\n"
        assert "cluster allow" in two_nodes.run("verify", code=1).stderr
    finally:
        two_nodes.write(before)
        assert two_nodes.run("allow").stdout == f"ssh is allowed from {own}; it was from 203.0.113.0/24\n"
    two_nodes.run("verify")


def test_lists_the_clusters_of_the_region(two_nodes: Project) -> None:
    [demo] = json.loads(two_nodes.run("list", "--json").stdout)
    assert (demo["name"], demo["node_counts"], demo["key_here"]) == ("demo", {"running": 2}, True)
    assert demo["usd_per_hour"] > 0
    before = (two_nodes.directory / "cluster.toml").read_text()
    set_provision(two_nodes, 'name = "another"', replaces="name = .*")
    try:
        heading, line, prices = two_nodes.run("list").stdout.splitlines()
        assert status_of(two_nodes)["state"] == "none"
        assert "no such cluster" in two_nodes.run("allow", code=1).stderr
        assert "no nodes to start" in two_nodes.run("start", code=1).stderr
    finally:
        two_nodes.write(before)
    assert prices == "prices are simulated"
    assert heading.split() == ["NAME", "NODES", "TYPE", "AGE", "ENDS", "PRICE/h", "OWNER", "KEY"]
    assert re.fullmatch(r"demo +2 running +c5\.xlarge +\S+ +\S.* +\$\S+ +\S+ +here", line)
