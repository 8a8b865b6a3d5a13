"""Faults of nodes, the network and full disks."""

import json
import re
from typing import TYPE_CHECKING, Any

import boto3
import pytest

from job_steps import (
    JOINS,
    ONE_WORKER,
    SILENCE_S,
    STARTS,
    Running,
    Tell,
    check,
    ec2_of,
    fail,
    records,
    running,
)
from project import Project, processes_of
from waits import until

if TYPE_CHECKING:
    from mypy_boto3_ec2.type_defs import IpPermissionTypeDef

pytestmark = pytest.mark.sandbox

STARTED = r"(worker|server) on node-1 \(process \d+\)"
UNSEARCHED = r"may still run: node-1 could not be searched: ssh: connect to host \S+ port 22: Connection"


# -- nodes -----------------------------------------------------------------------------------------------------------


def ends_itself(job: Running) -> None:
    """Asserts that the job has ended on all hosts on its own."""
    job.is_gone(timeout_s=2 * SILENCE_S + 10.0)


def test_a_node_that_is_cut_off(nodes: Project, record_property: Tell) -> None:
    """The job ends on both sides of the cut. `cluster stop` ends what is left once the node is back."""
    with running(nodes, "--job", "silence.toml", command=STARTS) as job:
        ends = [f"{name}={job.hosts[node].instance_id}" for name, node in (("a", "node-0"), ("b", "node-1"))]
        job.fault("partition", *ends)
        words = rf"{STARTED}: no sign of life from its node for 5 s"
        try:
            output = check("node-1 cut off", job, (1, words), record_property, silence_s=SILENCE_S, besides=("node-1",))
            assert re.search(UNSEARCHED, output)
            ends_itself(job)  # although no command can reach it
            left = f"CLUSTER_JOB_ID={job.id} setsid sleep 598 >/dev/null 2>&1 </dev/null &"
            nodes.run("exec", "--node", "node-1", "--", "sh", "-c", left)
            until(lambda: processes_of(job.id), "nothing is left to be ended")
            failed = nodes.run("stop", job.id, code=1)
            assert f"job {job.id} had already ended, but processes of it may still run: node-1" in failed.stderr
            assert list(newest(nodes)["left"]) == ["node-1"]
        finally:
            job.fault("heal", *ends)
        assert processes_of(job.id)
        done = nodes.run("stop")
        assert f"job {job.id}" in done.stderr
        first, second, third = done.stdout.splitlines()
        assert first == "no job runs"
        assert second.startswith(f"job {job.id} ")
        assert second.endswith(" had already ended: failed")
        assert third == "no process of the job is left on node-0, node-1"
        job.is_gone()
    assert (newest(nodes)["id"], newest(nodes)["left"]) == (job.id, {})
    assert nodes.run("stop").stdout == "no job runs\n"


def newest(project: Project) -> dict[str, Any]:
    """What `cluster jobs --json` prints about the newest job."""
    found: dict[str, Any] = json.loads(project.run("jobs", "--json").stdout)[0]
    return found


@pytest.mark.slow
def test_a_head_whose_power_is_cut(nodes: Project, record_property: Tell) -> None:
    with running(nodes, "--job", "silence.toml") as job:
        job.fault("kill", f"instance={job.hosts['node-0'].instance_id}")
        words = (
            r"ended with its head: node-0 \(\S+\) is stopp(ing|ed); no process of the job is left on the other nodes"
        )
        try:
            check(
                "the head without power", job, (1, words), record_property, silence_s=30.0
            )  # includes attempts to reconnect
        finally:
            until_started(nodes)
    (record,) = [one for one in json.loads(nodes.run("jobs", "--json").stdout) if one["id"] == job.id]
    assert (record["state"], record["error"]) == ("failed", "the supervisor on node-0 was killed")


@pytest.mark.slow
def test_a_head_that_freezes_for_a_while(nodes: Project, record_property: Tell) -> None:
    with running(nodes, "--job", "silence.toml", command=STARTS) as job:
        node = job.hosts["node-0"]
        job.fault("freeze", f"instance={node.instance_id}")
        try:
            until(lambda: not job.hosts["node-1"].programs("agent"), "node-1 keeps running without its head")
        finally:
            job.fault("thaw", f"instance={node.instance_id}")
        words = r"failed: (worker|server|scheduler) on node-[01] \(process \d+\)"
        check("the head frozen until the others gave up, and thawed", job, (1, words), record_property, silence_s=15.0)


def until_started(project: Project) -> None:
    """Starts the stopped nodes, once each node either runs or is stopped."""

    def states() -> set[str]:
        return {node["state"] for node in json.loads(project.run("status", "--json").stdout)["nodes"]}

    until(lambda: states() <= {"running", "stopped"}, "a node neither runs nor is stopped")
    project.run("start")


# -- the network -----------------------------------------------------------------------------------------------------


@pytest.fixture
def entered(nodes: Project, monkeypatch: pytest.MonkeyPatch) -> Project:
    """The shared cluster, with boto3 pointed at its sandbox."""
    ec2_of(nodes, monkeypatch)
    return nodes


@pytest.mark.slow
def test_blocked_ports_between_servers_and_workers(entered: Project) -> None:
    """All processes reach the scheduler and start, but do not reach each other."""
    ec2 = boto3.client("ec2")
    [group] = ec2.describe_security_groups(Filters=[{"Name": "tag:cluster:name", "Values": ["*"]}])["SecurityGroups"]
    name = group["GroupId"]
    rules = [rule for rule in group["IpPermissions"] if rule["UserIdGroupPairs"]]
    assert rules
    allowed: list[IpPermissionTypeDef] = [
        {"IpProtocol": "tcp", "FromPort": first, "ToPort": last, "UserIdGroupPairs": [{"GroupId": name}]}
        for first, last in ((22, 22), (9091, 9999))
    ]
    ec2.revoke_security_group_ingress(GroupId=name, IpPermissions=rules)
    ec2.authorize_security_group_ingress(GroupId=name, IpPermissions=allowed)
    (entered.directory / "start.toml").write_text("start_timeout_s = 8\n")
    try:
        done = fail(entered, "--job", "start.toml", *JOINS)
    finally:
        ec2.revoke_security_group_ingress(GroupId=name, IpPermissions=allowed)
        ec2.authorize_security_group_ingress(GroupId=name, IpPermissions=rules)
    blocked = r"node-[01] cannot reach node-[01] \(.*\) on TCP ports? \d+.*security group"
    assert re.search(rf"failed: started, but not joined within 8 s: .*; {blocked}", done.stderr), done.stderr


# -- full disks ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_head_whose_disk_is_full(nodes: Project, record_property: Tell) -> None:
    program = "echo waits; while sleep 0.2; do echo a line of the log; done"
    with running(nodes, command=("--", "sh", "-c", program)) as job:
        job.fault("full-disk", f"instance={job.hosts['node-0'].instance_id}")
        words = rf"failed: node-0: No space left on device \(\S+{job.id}/\S+\)"
        try:
            check("the head's disk full", job, (1, words), record_property)
            (record,) = [one for one in records(nodes) if one["id"] == job.id]
            refused = nodes.run("train", *ONE_WORKER, "--", "true", code=1)  # and the job does not count as running
        finally:
            job.fault("free-disk", f"instance={job.hosts['node-0'].instance_id}")
    assert (record["state"], record["exit_code"]) == ("failed", 1)
    assert "No space left on device" in record["error"]
    full = r"error: .*node-0.*: No space left on device"
    assert re.search(full, refused.stderr), refused.stderr
