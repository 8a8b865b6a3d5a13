"""Clusters of existing hosts as text and as JSON."""

import pytest
from msgspec.structs import replace

from cluster.views.hosts import HostsStatus, HostState, render_hosts_status, status_document
from cluster.views.status import HeadJob
from job_records import NOW, make_running
from node_facts import LAB

HEAD = HostState(host=replace(LAB, name="gpu1", private_ip="10.0.0.1", user="me", is_head=True), state="ready", slots=2)
OTHER = HostState(host=replace(LAB, name="gpu2", private_ip="", address="gpu2.example.org", user="me"), state="ready")


def test_the_hosts_and_the_job() -> None:
    status = HostsStatus(cluster="lab", hosts=[HEAD, OTHER], job=HeadJob(record=make_running(1)), now=NOW)
    lines = [line.split() for line in render_hosts_status(status).splitlines()]
    assert lines[0] == ["NODE", "ROLE", "STATE", "SLOTS", "USER", "PORT", "ADDRESS"]
    assert lines[1] == ["gpu1", "head", "ready", "2", "me", str(LAB.port), "10.0.0.1"]
    assert lines[2][-1] == "gpu2.example.org"
    assert lines[3] == ["state", "ready"]
    assert lines[4][:2] == ["job", "20261121-000000-abc"]
    document = status_document(status)
    assert document["nodes"][0]["slots"] == 2
    assert (document["cloud"], document["state"], document["job"]["state"]) == ("hosts", "ready", "running")


@pytest.mark.parametrize(
    ("states", "state"),
    [
        (("ready", "ready"), "state  ready"),
        (("ready", "not-set-up"), "state  not set up: cluster up sets up the hosts"),
        (("not-set-up", "unreachable"), "state  degraded"),
    ],
)
def test_the_state_of_the_cluster(states: tuple[str, str], state: str) -> None:
    hosts = [
        replace(one, state=message, why="gpu2 (me@gpu2): no answer" if message == "unreachable" else None)
        for one, message in zip([HEAD, OTHER], states, strict=True)
    ]
    text = render_hosts_status(HostsStatus(cluster="lab", hosts=hosts, job=None, now=NOW))
    assert text.splitlines()[-1] == state
    assert ("error  gpu2 (me@gpu2): no answer" in text) is ("unreachable" in states)
