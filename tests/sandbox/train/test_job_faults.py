"""The first half of the table of faults: programs that are killed, are stopped (SIGSTOP) or fail, and clients.

Each fault is real. Every time, the command ends with the right exit code: soon, or within the configured time if
something falls silent. No process is left on a running node, not even one without the job's session and environment.
The message names role, rank, host and cause.

The other half is test_node_faults.py. Other files test a worker that fails half-way, the scheduler's port and ssh
blocked by a security group (test_train.py), and clients that are killed or cut off (test_jobs.py).
"""

import os
import random
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

import pytest

from job_steps import (
    JOINS,
    ONE_WORKER,
    SILENCE_S,
    SLEEPS,
    STARTS,
    Running,
    Tell,
    borrowed,
    check,
    hosts_of,
    nothing_left,
    python,
    records,
    running,
)
from project import CLUSTER, Project
from soak_steps import TARGETS, Nodes, Soak
from waits import until

pytestmark = pytest.mark.sandbox


@pytest.fixture
def nodes(two_nodes: Project) -> Iterator[Project]:
    with borrowed(two_nodes) as project:
        yield project


# -- killed ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Killed:
    """A process to kill. find: returns its pid. said: a pattern of the message about it."""

    what: str
    find: Callable[[Running], int]
    said: str
    code: int = 1
    command: Sequence[str] = JOINS
    options: Sequence[str] = ()


SSH_FAILED = r"(worker|server)( \d)? on node-1 \(process \d+\) was lost: ssh to it failed: "
AGENT_KILLED = SSH_FAILED + r"the program that runs it there was killed"
LOST_HERE = r"(worker|server|scheduler)( \d)? on node-0 \(process \d+\) was lost: the program that runs it was killed"
# test_supervise.py also tests most of ALSO_KILLED, with processes of one machine.
KILLED = (
    Killed(
        "worker",
        lambda job: job.training_process("worker", "node-1"),
        r"worker \d on node-1 \(process \d+\) was killed by signal 9",
        code=137,
        options=("-s", "1"),
    ),
    Killed(
        "the supervisor", lambda job: job.program("supervise"), "the supervisor on node-0 was killed", command=STARTS
    ),
)
ALSO_KILLED = (
    Killed(
        "scheduler",
        lambda job: job.training_process("scheduler", program="sh"),
        r"scheduler on node-0 \(process \d+\) was killed by signal 9",
        code=137,
        command=STARTS,
    ),
    Killed(
        "launch.py",
        lambda job: job.program("launch"),
        r"launch\.py on node-0 \(process \d+\) was killed by signal 9",
        code=137,
        command=STARTS,
    ),
    Killed("the agent", lambda job: job.agent("node-1"), AGENT_KILLED, command=SLEEPS),
    Killed("the head's agent", lambda job: job.agent("node-0"), LOST_HERE, command=SLEEPS),
    Killed(
        "server",
        lambda job: job.training_process("server", "node-1"),
        r"server \d on node-1 \(process \d+\) was killed by signal 9",
        code=137,
    ),
    Killed(
        "ssh",
        lambda job: job.ssh(),
        SSH_FAILED + "ssh was killed by signal 9",
        command=STARTS,
    ),
    Killed("the agent, when all have joined", lambda job: job.agent("node-1"), AGENT_KILLED),
    Killed("sshd on node-1", lambda job: job.parent_of(job.agent("node-1")), SSH_FAILED, command=STARTS),
    Killed(
        "the supervisor, when all have joined",
        lambda job: job.program("supervise"),
        "the supervisor on node-0 was killed",
    ),
)


@pytest.mark.parametrize(
    "row",
    [pytest.param(row, id=row.what) for row in KILLED]
    + [pytest.param(row, id=row.what, marks=pytest.mark.slow) for row in ALSO_KILLED],
)
def test_a_program_that_is_killed(nodes: Project, record_property: Tell, row: Killed) -> None:
    with running(nodes, *row.options, command=row.command) as job:
        job.kill(row.find(job))
        check(f"{row.what} killed", job, (row.code, "failed: " + row.said), record_property)


@pytest.mark.parametrize(
    ("who", "words"),
    [
        pytest.param("worker-node-1", r"worker", id="one"),
        pytest.param(
            "scheduler-* server-* worker-*",
            r"([2345] (workers|processes) failed; first: )?",
            id="all",
            marks=pytest.mark.slow,
        ),
        pytest.param("worker-*", r"(2 workers failed; first: )?worker", id="all workers", marks=pytest.mark.slow),
    ],
)
def test_some_exit_with_a_code(nodes: Project, record_property: Tell, who: str, words: str) -> None:
    ends = who.replace(" ", "|")
    program = "echo waits; until [ -e ~/now ]; do sleep 0.1; done; "
    program += f"case $DMLC_ROLE-$CLUSTER_HOST in {ends}) exit 7;; esac; sleep 600"
    said = rf"failed: {words}.* on node-[01] \(process \d+\) ended with exit code 7"
    with running(nodes, command=("--", "sh", "-c", program)) as job, job.told("now"):
        check(f"{who} exit with code 7", job, (7, said), record_property)


# -- stopped -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_stopped_agent_whose_worker_was_killed(nodes: Project, record_property: Tell) -> None:
    """The process left below it has nothing of the job, not even its environment."""
    with running(nodes, "--job", "silence.toml", command=STARTS) as job:
        agent = job.agent("node-1")
        worker, *_ = (int(word) for word in Path(f"/proc/{agent}/task/{agent}/children").read_text().split())
        os.kill(agent, signal.SIGSTOP)
        job.kill(worker)
        words = r"(worker|server) on node-1 \(process \d+\): no sign of life from its node for 5 s"
        said = check("the agent stopped", job, (1, words), record_property, silence_s=SILENCE_S)
    assert "may still run" not in said


# -- clients -----------------------------------------------------------------------------------------------------------


def test_two_clients_that_start_a_job_at_the_same_moment(nodes: Project) -> None:
    """One job runs, and the other is refused with the name of the first."""
    words = ("train", *ONE_WORKER, "--name", "sleeper", "--", "sleep", "600")
    with ThreadPoolExecutor() as pool:
        both = [pool.submit(nodes.run, *words, code=None) for _ in range(2)]
        ended, others = wait(both, return_when=FIRST_COMPLETED)
        (job,) = [one for one in records(nodes) if one["name"] == "sleeper"]
        nodes.run("stop", job["id"])
        nothing_left(job["id"], hosts_of(nodes))
        (refused,), (stopped,) = [one.result() for one in ended], [one.result() for one in others]
    assert (refused.returncode, stopped.returncode) == (1, 130)
    assert f"job {job['id']} (sleeper) is " in refused.stderr
    assert "runs one job at a time" in refused.stderr


# Numbered lines, about 500 kB a second: more than all buffers on the way hold. The head's ~/enough ends it.
COUNT = """
import os, time
number = 0
while not os.path.exists(os.path.expanduser("~/enough")):
    for number in range(number, number + 50):
        print(number, "x" * 1000)
    number += 1
    time.sleep(0.1)
os.remove(os.path.expanduser("~/enough"))
print(number, "is the last one")
"""


@pytest.mark.slow
def test_a_client_that_is_gone_for_a_minute(nodes: Project) -> None:
    """The job continues as if the client were present, and the client gets every line when it is back."""
    head = hosts_of(nodes)["node-0"]
    out = nodes.directory / "count.out"
    with out.open("wb") as stdout:
        client = subprocess.Popen(
            [CLUSTER, "train", *ONE_WORKER, "--name", "count", *python(COUNT)],
            cwd=nodes.directory,
            env=nodes.environment(),
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=subprocess.PIPE,
        )
    try:
        until(lambda: out.stat().st_size, "no line comes")
        client.send_signal(signal.SIGSTOP)
        (job,) = [one for one in records(nodes) if one["name"] == "count"]
        log = head.root / f"home/ubuntu/.cluster/jobs/{job['id']}/events"
        for _ in range(6):
            size = log.stat().st_size
            time.sleep(10)
            assert log.stat().st_size > size + (1 << 20)
        client.send_signal(signal.SIGCONT)
        (head.root / "home/ubuntu/enough").touch()
        _, said = client.communicate(timeout=120)
    finally:
        client.kill()
        client.wait()
    assert client.returncode == 0, said
    numbers = [int(number) for number in re.findall(r"^\[worker 0 node-0\] (\d+) ", out.read_text(), re.MULTILINE)]
    assert numbers[:-1] == list(range(len(numbers) - 1))
    assert out.read_text().endswith("is the last one\n")


# -- many jobs in a row, in each of which something is killed at a random moment ---------------------------------------

SEED = int(os.environ.get("SOAK_SEED", "1"))  # a seed repeats the events only as far as processes are repeatable


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_jobs_with_random_kills(two_nodes: Project, record_property: Callable[[str, object], None]) -> None:
    jobs = int(os.environ.get("SOAK_JOBS", "200"))
    hosts = hosts_of(two_nodes)
    nodes = Nodes(tuple(hosts[name] for name in sorted(hosts)))
    soak = Soak(f"soak-of-{jobs}", two_nodes, nodes, random.Random(SEED))
    soak.begin()
    targets: list[str] = []
    for number in range(jobs):
        targets = targets or soak.chance.sample(TARGETS, len(TARGETS))  # each as often as the others
        soak.run_job(number, targets.pop())
        assert len(soak.faults) < 5, "\n".join(soak.faults)
    soak.finish()
    record_property(
        "result",
        f"{jobs} jobs with kills {dict(soak.killed.most_common())}: ended {dict(soak.states.most_common())}, "
        f"at the latest {soak.longest_s:.1f} s after the last kill; nothing left",
    )
    assert soak.faults == [], "\n".join(soak.faults)
