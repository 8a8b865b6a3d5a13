"""Stop, start and status, by the real command."""

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


def test_a_stopped_cluster_starts_and_trains_again(two_nodes: Project) -> None:
    project = two_nodes
    (pins,) = (project.directory / "state").rglob("known_hosts")
    pinned = pins.read_text()
    before = status_of(project)
    assert (before["state"], before["node_counts"]) == ("ready", {"running": 2})
    assert before["cost"]["usd_per_hour"] > 0

    stopped = project.run("stop", "--nodes")

    assert "its disks, 200 GiB, still cost money: $16.00 per month (simulated)" in stopped.stdout
    resting = status_of(project)
    assert (resting["state"], resting["node_counts"], resting["errors"]) == ("stopped", {"stopped": 2}, [])
    assert 0 < resting["cost"]["usd_per_hour"] < before["cost"]["usd_per_hour"]  # the disks
    assert [node["public_ip"] for node in resting["nodes"]] == [None, None]
    assert "(stopped)" in project.run("train", code=1).stderr

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
    assert "nothing to do" in project.run("up").stderr
