"""The first half of the table of faults: programs that are killed or fail, and clients.

Each fault is real. Every time, the command soon ends with the right exit code. No process is left on a running node,
not even one without the job's session and environment. The message names role, rank, host and cause.

The other half is test_node_faults.py. Other files test a worker that fails half-way, the scheduler's port and ssh
blocked by a security group (test_train.py), stopped processes (test_hanging_jobs.py), and clients that are killed
(test_jobs.py).
"""

from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass

import pytest

from job_steps import (
    ONE_WORKER,
    STARTS,
    Running,
    Tell,
    borrowed,
    check,
    hosts_of,
    nothing_left,
    records,
    running,
)
from project import Project

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


# test_supervise.py has the other programs, with processes of one machine, and test_random_kills.py all of them, also
# in jobs whose processes have joined each other.
KILLED = (
    Killed(
        "worker",
        lambda job: job.training_process("worker", "node-1", program="sh"),
        r"worker on node-1 \(process \d+\) was killed by signal 9",
        code=137,
    ),
    Killed("the supervisor", lambda job: job.program("supervise"), "the supervisor on node-0 was killed"),
)


@pytest.mark.parametrize(
    "row", [pytest.param(KILLED[0], id="worker"), pytest.param(KILLED[1], id="supervisor", marks=pytest.mark.slow)]
)
def test_a_program_that_is_killed(nodes: Project, record_property: Tell, row: Killed) -> None:
    with running(nodes, command=STARTS) as job:
        job.kill(row.find(job))
        check(f"{row.what} killed", job, (row.code, "failed: " + row.said), record_property)


# -- clients -----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_two_clients_that_start_a_job_at_the_same_moment(nodes: Project) -> None:
    """One job runs, and the other is refused with the name of the first."""
    words = ("train", *ONE_WORKER, "--name", "sleeper", "--", "sleep", "600")
    with ThreadPoolExecutor() as pool:
        both = [pool.submit(nodes.run, *words, code=None) for _ in range(2)]
        ended, others = wait(both, return_when=FIRST_COMPLETED)
        jobs = [one for one in records(nodes) if one["name"] == "sleeper"]
        assert len(jobs) == 1, [one.result().stderr for one in ended]
        job = jobs[0]
        nodes.run("stop", job["id"])
        nothing_left(job["id"], hosts_of(nodes))
        (refused,), (stopped,) = [one.result() for one in ended], [one.result() for one in others]
    assert (refused.returncode, stopped.returncode) == (1, 130)
    assert f"job {job['id']} (sleeper) is " in refused.stderr
    assert "runs one job at a time" in refused.stderr
