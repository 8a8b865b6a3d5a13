"""The table of faults for jobs in containers: they end like jobs without containers, and leave no container.

The rows are those of test_job_faults.py and test_node_faults.py, and the engine's own programs. The nodes' environment
is mounted into an image that has only Python. test_jobs_in_containers.py has two of the rows for `make test`.
"""

import os
import re
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

import pytest

from container_nodes import ContainerNodes, container_nodes, engine_program, in_container
from job_host import parent_of
from job_steps import (
    JOINS,
    SILENCE_S,
    STARTS,
    Running,
    Tell,
    borrowed,
    check,
    nothing_left,
    records,
    running,
)
from oci_images import plain_image
from project import Project, processes_of
from waits import until

pytestmark = [pytest.mark.sandbox, pytest.mark.slow]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ContainerNodes]:
    with (
        container_nodes(tmp_path_factory.mktemp("containers")) as nodes,
        nodes.configured(nodes.push(plain_image(), "plain:latest")),
    ):
        yield nodes


@pytest.fixture
def nodes(shared: ContainerNodes) -> Iterator[Project]:
    """The shared cluster; afterwards no container and no program of an engine is left.

    The program that keeps podman's namespace may stay.
    """
    with borrowed(shared.project) as project:
        yield project
    until(lambda: not shared.containers(), f"containers are left: {shared.containers()}", timeout_s=15.0)
    until(lambda: not shared.engine_programs(), f"left: {shared.engine_programs()}", timeout_s=15.0)


@dataclass(frozen=True)
class Killed:
    """A process to kill. find: returns its pid. said: a pattern of the message about it."""

    what: str
    find: Callable[[Running], int]
    said: str
    code: int = 1
    command: Sequence[str] = STARTS


SSH_FAILED = r"(worker|server)( \d)? on node-1 \(process \d+\) was lost: ssh to it failed: "
AGENT_KILLED = SSH_FAILED + r"the program that runs it there was killed"
PROCESS = r"(worker|server)( \d)? on node-1 \(process \d+\)"
KILLED = (
    Killed("worker", lambda job: in_container(job, "worker"), rf"{PROCESS} was killed by signal 9", 137),
    Killed("podman", lambda job: engine_program(job, "podman"), rf"{PROCESS}.* podman, which runs its .* killed", 137),
    Killed(
        "conmon", lambda job: parent_of(in_container(job, "worker")), rf"{PROCESS}.* conmon, which runs its .* killed",
        137,
    ),
    Killed("the agent", lambda job: job.agent("node-1"), AGENT_KILLED),
    Killed("the supervisor", lambda job: job.program("supervise"), "the supervisor on node-0 was killed"),
    Killed(
        "worker that has joined", lambda job: in_container(job, "worker"), rf"{PROCESS} was killed by signal 9", 137,
        JOINS,
    ),
    Killed("server", lambda job: in_container(job, "server"), rf"{PROCESS} was killed by signal 9", 137, JOINS),
    Killed(
        "scheduler", lambda job: in_container(job, "scheduler", "node-0"),
        r"scheduler on node-0 \(process \d+\) was killed by signal 9", 137, JOINS,
    ),
    Killed("launch.py", lambda job: job.program("launch"), r"launch\.py on node-0 \(process \d+\) was killed", 137),
    Killed(
        "ssh", lambda job: job.ssh(),
        r"(worker|server) on node-1 \(process \d+\) was lost: ssh to it failed: ssh was killed by signal 9",
    ),
    Killed("sshd on node-1", lambda job: job.parent_of(job.agent("node-1")), SSH_FAILED),
)  # fmt: skip


@pytest.mark.parametrize(
    "row",
    [pytest.param(row, id=row.what) for row in KILLED],
)
def test_a_program_that_is_killed(nodes: Project, record_property: Tell, row: Killed) -> None:
    with running(nodes, command=row.command) as job:
        job.kill(row.find(job))
        check(f"in containers: {row.what} killed", job, (row.code, "failed: " + row.said), record_property)


def test_the_keeper_of_the_container_is_killed(nodes: Project) -> None:
    """The job goes on, and its end removes the container."""
    with running(nodes) as job:
        job.kill(engine_program(job, "conmon"))
        nodes.run("stop", job.id)


@pytest.mark.parametrize(
    ("who", "words"),
    [
        pytest.param("worker-node-1", r"worker", id="one"),
        pytest.param(
            "scheduler-* server-* worker-*", r"([2345] (workers|processes) failed; first: )?", id="all",
        ),
    ],
)  # fmt: skip
def test_some_exit_with_a_code(nodes: Project, record_property: Tell, who: str, words: str) -> None:
    ends = who.replace(" ", "|")
    program = "echo waits; until [ -e $CLUSTER_OUTPUT_DIR/../now ]; do sleep 0.1; done; "
    program += f"case $DMLC_ROLE-$CLUSTER_HOST in {ends}) exit 7;; esac; sleep 600"
    said = rf"failed: {words}.* on node-[01] \(process \d+\) ended with exit code 7"
    with running(nodes, command=("--", "sh", "-c", program)) as job:
        for pid, env in processes_of("CLUSTER_CONTAINER").items():
            if env.get("CLUSTER_JOB_ID") == job.id and "CLUSTER_OUTPUT_DIR" in env:
                with suppress(FileNotFoundError), open(f"/proc/{pid}/root{env['CLUSTER_OUTPUT_DIR']}/../now", "w"):
                    pass  # a process that has ended meanwhile was not the only one of its container
        job.struck_at = time.monotonic()
        check(f"in containers: {who} exit with code 7", job, (7, said), record_property)


def test_processes_that_ignore_sigterm(nodes: Project, record_property: Tell) -> None:
    program = (
        "trap '' TERM; (env -i setsid sh -c 'trap \"\" TERM; exec sleep 599' &) ; echo waits; while :; do sleep 1; done"
    )
    with running(nodes, command=("--", "sh", "-c", program)) as job:
        nodes.run("stop", job.id)
        job.struck_at = time.monotonic()
        code, said = job.ends()
    assert code == 130, said
    assert "may still run" not in said
    record_property("result", f"in containers: SIGTERM ignored: {job.took_s:.1f} s after stop")


def test_sigterm_arrives_once(nodes: Project) -> None:
    """A container's client, monitor and runtime do not pass the signal on a second time."""
    program = """
import signal, sys, time
count = 0
def note(*_):
    global count
    count += 1
    print("signal number", count, flush=True)
signal.signal(signal.SIGTERM, note)
print("waits", flush=True)
end = time.monotonic() + 600
while time.monotonic() < end and count == 0:
    time.sleep(0.05)
time.sleep(1.0)
sys.exit(0)
"""
    with running(nodes, "--launcher", "env", command=("--", "python3", "-c", program), waiting=2) as job:
        nodes.run("stop", job.id)
        code, said = job.ends()
    assert code == 130, said
    got = [line for line in job.shown if "signal number" in line]
    assert sorted(got) == ["[worker 0 node-0] signal number 1", "[worker 1 node-1] signal number 1"]


def test_a_client_that_is_killed(nodes: Project) -> None:
    """The job continues, and `cluster stop` ends it."""
    with running(nodes, command=STARTS) as job:
        os.killpg(job.process.pid, signal.SIGKILL)
        job.process.wait()
        time.sleep(1.0)
        (record,) = [one for one in records(nodes) if one["id"] == job.id]
        assert record["state"] == "running"
        assert in_container(job, "worker")
        nodes.run("stop", job.id)
        nothing_left(job.id, job.hosts)


def test_a_stopped_agent_whose_worker_was_killed(nodes: Project, record_property: Tell) -> None:
    with running(nodes, "--job", "silence.toml", command=STARTS) as job:
        worker = in_container(job, "worker")
        os.kill(job.agent("node-1"), signal.SIGSTOP)
        job.kill(worker)
        words = r"(worker|server) on node-1 \(process \d+\): no sign of life from its node for 5 s"
        check("in containers: the agent stopped", job, (1, words), record_property, silence_s=SILENCE_S)


@pytest.mark.parametrize("fault", ["freeze", "partition"])
def test_a_node_that_falls_silent(nodes: Project, record_property: Tell, fault: str) -> None:
    with running(nodes, "--job", "silence.toml", command=STARTS) as job:
        node, head = job.hosts["node-1"].instance_id, job.hosts["node-0"].instance_id
        ends = {"freeze": [f"instance={node}"], "partition": [f"a={head}", f"b={node}"]}[fault]
        job.fault(fault, *ends)
        words = r"(worker|server) on node-1 \(process \d+\): no sign of life from its node for 5 s"
        try:
            said = check(
                f"in containers: {fault}", job, (1, words), record_property, silence_s=SILENCE_S, besides=("node-1",)
            )
        finally:
            job.fault({"freeze": "thaw", "partition": "heal"}[fault], *ends)
        job.is_gone(timeout_s=2 * SILENCE_S + 10.0)
    assert re.search("may still run: node-1 could not be searched", said)


def test_a_stopped_job_leaves_nothing(nodes: Project) -> None:
    with running(nodes, command=JOINS) as job:
        nodes.run("stop", job.id)
        code, said = job.ends()
    assert code == 130, said
