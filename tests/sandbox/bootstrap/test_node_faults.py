"""The second half of the table of faults: nodes, the network, full disks and S3; see test_job_faults.py."""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import boto3
import pytest

from ec2_sandbox import control
from job_steps import (
    JOINS,
    ONE_WORKER,
    SILENCE_S,
    STARTS,
    Running,
    Tell,
    borrowed,
    cause,
    check,
    ec2_of,
    fail,
    hosts_of,
    only_these_ports_between_members,
    python,
    records,
    running,
)
from project import Project, processes_of
from waits import until

pytestmark = pytest.mark.sandbox

STARTED = r"(worker|server) on node-1 \(process \d+\)"
UNSEARCHED = r"may still run: node-1 could not be searched: ssh: connect to host \S+ port 22: Connection"


@pytest.fixture
def nodes(two_nodes: Project) -> Iterator[Project]:
    with borrowed(two_nodes) as project:
        yield project


# -- nodes -----------------------------------------------------------------------------------------------------------


def ends_itself(job: Running) -> None:
    """Asserts that the job has ended on all hosts on its own."""
    job.is_gone(timeout_s=2 * SILENCE_S + 10.0)


@pytest.mark.slow
def test_a_node_that_freezes(nodes: Project, record_property: Tell) -> None:
    with running(nodes, "--job", "silence.toml", command=STARTS) as job:
        node = job.hosts["node-1"]
        job.fault("freeze", f"instance={node.instance_id}")
        words = rf"{STARTED}: no sign of life from its node for 5 s"
        try:
            said = check("node-1 frozen", job, (1, words), record_property, silence_s=SILENCE_S, besides=("node-1",))
        finally:
            job.fault("thaw", f"instance={node.instance_id}")
        ends_itself(job)
    assert re.search(UNSEARCHED, said)


def test_a_node_that_is_cut_off(nodes: Project, record_property: Tell) -> None:
    """The job ends on both sides of the cut. `cluster stop` ends what is left once the node is back."""
    with running(nodes, "--job", "silence.toml", command=STARTS) as job:
        ends = [f"{name}={job.hosts[node].instance_id}" for name, node in (("a", "node-0"), ("b", "node-1"))]
        job.fault("partition", *ends)
        words = rf"{STARTED}: no sign of life from its node for 5 s"
        try:
            said = check("node-1 cut off", job, (1, words), record_property, silence_s=SILENCE_S, besides=("node-1",))
            assert re.search(UNSEARCHED, said)
            ends_itself(job)  # although no command can reach it
            left = f"CLUSTER_JOB_ID={job.id} setsid sleep 598 >/dev/null 2>&1 </dev/null &"
            nodes.run("exec", "--node", "node-1", "--", "sh", "-c", left)
            until(lambda: processes_of("CLUSTER_JOB_ID", job.id), "nothing is left to be ended")
            failed = nodes.run("stop", job.id, code=1)
            assert f"job {job.id} had already ended, but processes of it may still run: node-1" in failed.stderr
            assert list(newest(nodes)["left"]) == ["node-1"]
        finally:
            job.fault("heal", *ends)
        assert processes_of("CLUSTER_JOB_ID", job.id)
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
def test_a_node_whose_power_is_cut(nodes: Project, record_property: Tell) -> None:
    with running(nodes, "--job", "silence.toml", command=STARTS) as job:
        job.fault("kill", f"instance={job.hosts['node-1'].instance_id}")
        words = rf"{STARTED}( was lost: ssh to it failed: |: no sign of life)"
        try:
            said = check("node-1 without power", job, (1, words), record_property, silence_s=SILENCE_S)
        finally:
            until_started(nodes)
    assert re.search(UNSEARCHED, said)


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
    with only_these_ports_between_members(boto3.client("ec2"), (22, 22), (9091, 9999)):
        done = fail(entered, *JOINS)
    blocked = r"node-[01] cannot reach node-[01] \(.*\) on TCP ports? \d+"
    assert re.search(rf"failed: the job's processes cannot find each other: {blocked}", done.stderr), done.stderr
    assert "security group" in done.stderr


# -- full disks ------------------------------------------------------------------------------------------------------


@contextmanager
def full_disk(project: Project, host: str) -> Iterator[None]:
    instance = hosts_of(project)[host].instance_id
    cause(project, "full-disk", f"instance={instance}")
    try:
        yield
    finally:
        cause(project, "free-disk", f"instance={instance}")


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
    assert re.search(r"error: .*node-0.*: No space left on device", refused.stderr), refused.stderr


@pytest.mark.slow
def test_a_worker_whose_disk_is_full(nodes: Project) -> None:
    program = 'if [ "$DMLC_ROLE" = worker ]; then sleep 1; cat /dev/zero > "$CLUSTER_OUTPUT_DIR/out"; fi; sleep 600'
    with full_disk(nodes, "node-1"):
        done = fail(nodes, "--", "sh", "-c", program)
    assert re.search(r"^\[(worker|server) \? node-1\] .*No space left on device", done.stdout, re.MULTILINE)
    assert re.search(r"failed: .*(worker|server) on node-1 .*ended with exit code 1", done.stderr)
    assert "a disk is full" in done.stderr


# -- S3 --------------------------------------------------------------------------------------------------------------

READ = 'import mxnet as mx; mx.recordio.MXRecordIO("s3://cluster-faults/records/one.rec", "r").read()'


@contextmanager
def unavailable(project: Project) -> Iterator[None]:
    cause(project, "s3-503", "operation=GetObject", "count=all")
    yield
    control.disarm_faults(project.directory, "all")


@contextmanager
def forbidden(project: Project) -> Iterator[None]:
    cause(project, "unauthorized", "service=s3", "action=GetObject")
    yield
    control.disarm_faults(project.directory, "all")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "code", "advice"),
    [
        pytest.param(forbidden, "AccessDenied", "S3 denied access: ", id="403"),
        pytest.param(unavailable, "SlowDown", "S3 limits the request rate", id="503"),
    ],
)
def test_s3_that_refuses(
    entered: Project, fault: Callable[[Project], AbstractContextManager[None]], code: str, advice: str
) -> None:
    folder = entered.directory / "records"
    folder.mkdir(exist_ok=True)
    (folder / "one.rec").write_bytes(bytes.fromhex("0a23d7ce04000000") + b"data")
    entered.run("data", "put", "--create-bucket", "records/", "s3://cluster-faults/records/")
    with fault(entered):
        done = fail(entered, *ONE_WORKER, *python(READ))
    assert re.search(r"failed: worker 0 on node-0 \(process \d+\) ended with exit code 1", done.stderr)
    assert f"hint [worker 0 node-0]: {advice}" in done.stderr
    assert f"<Code>{code}</Code>" in done.stdout


@pytest.mark.slow
def test_damage_on_a_node_is_repaired(two_nodes: Project) -> None:
    """A killed run leaves an incomplete environment; the next run replaces it."""
    program = "import glob, os; [os.remove(p) for p in glob.glob(os.path.expanduser('~/.cluster/env/*/.complete'))]"
    two_nodes.run("train", "--kv-store", "dist_sync", "--", "python", "-c", program, code=None)
    done = two_nodes.run("up")
    assert "ready to train" in done.stderr
    two_nodes.run("verify")
    assert two_nodes.run("up").stderr.count("nothing to change") == 2
