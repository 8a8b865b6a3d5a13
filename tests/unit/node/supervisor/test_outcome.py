"""If several processes end in succession, the original cause is named."""

from types import SimpleNamespace
from typing import Any

import pytest

from fake_timers import Timers
from job_channels import make_order
from node.protocol import JobHost
from node.supervisor import outcome
from node.supervisor.attempts.restarts import Ending
from node.supervisor.processes import JobProcess, Processes

HOSTS = (JobHost(name="node-0", ip="10.0.0.4"), JobHost(name="node-1", ip="10.0.0.5"))
LAUNCHER = 77


def never(*what: object) -> None:
    pytest.fail(str(what))


class Job:
    """A job with two workers and a scheduler on the head, all of which run."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, launcher: str) -> None:
        self.timers = Timers(monkeypatch)
        order = make_order(hosts=HOSTS, workers=2, servers=1, launcher=launcher)
        self.processes = Processes(order)
        self.outcome = outcome.Outcome(order, self.processes, self.timers, never, never)
        by = LAUNCHER if launcher == "ssh" else None
        self.launcher = self._add("launcher", "node-0", LAUNCHER, None)
        self.scheduler = self._add("scheduler", "node-0", 1, None)
        self.workers = [self._add("worker", host.name, 2, by) for host in HOSTS]
        self.wait = self.timers.wait

    def _add(self, role: str, host: str, pid: int, by: int | None) -> JobProcess:
        made = self.processes.add(role, host)
        made.pid, made.by = pid, by
        return made

    def exits(self, worker: int, code: int) -> None:
        self.workers[worker].exit_code = code
        self.outcome.note_exit(self.workers[worker])

    def launcher_ends(self, code: int) -> None:
        child: Any = SimpleNamespace(returncode=code, pid=LAUNCHER)
        self.outcome.note_child_end("launch.py on node-0", child, is_launcher=True)

    @property
    def error(self) -> str | None:
        return None if self.outcome.decided is None else self.outcome.decided.error


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Job:
    return Job(monkeypatch, "ssh")


def test_workers_that_fail_at_the_same_time_are_counted(job: Job) -> None:
    job.exits(1, 7)
    job.wait(outcome.GATHER_S / 2)
    assert job.error is None
    job.exits(0, 3)
    job.wait(0.0)
    error = "2 workers failed; first: worker on node-1 (process 2) ended with exit code 7"
    assert job.outcome.decided == Ending("failed", 7, error, "error")


def test_a_single_failure_is_named_after_a_moment(job: Job) -> None:
    job.exits(1, 7)
    job.wait(outcome.GATHER_S)
    assert job.error == "worker on node-1 (process 2) ended with exit code 7"


def test_a_killed_launcher_is_named_not_the_processes_that_end_with_it(job: Job) -> None:
    job.outcome.note_lost(job.workers[0])
    job.launcher_ends(-9)
    assert job.error == "launch.py on node-0 (process 77) was killed by signal 9"


def test_the_reason_for_a_failed_launcher_may_arrive_a_moment_later(job: Job) -> None:
    job.launcher_ends(1)
    job.wait(outcome.GATHER_S / 2)
    assert job.error is None
    job.outcome.note_lost(job.scheduler)
    assert job.error == "scheduler on node-0 (process 1) was lost: the program on node-0 that led to it was killed"


def test_without_another_reason_a_failed_launcher_is_named(job: Job) -> None:
    job.launcher_ends(1)
    job.wait(outcome.GATHER_S)
    assert job.error == "launch.py on node-0 (process 77) ended with exit code 1"


def test_of_mpiruns_processes_the_original_failure_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(monkeypatch, "mpi")
    job.outcome.note_lost(job.workers[0])
    job.wait(1.0 / 2)
    assert job.error is None
    job.outcome.fail("worker on node-1 was lost: ssh to it failed")
    job.wait(1.0)
    assert job.error == "worker on node-1 was lost: ssh to it failed"


def test_a_single_lost_process_of_mpirun_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(monkeypatch, "mpi")
    job.outcome.note_lost(job.workers[0])
    job.wait(1.0)
    assert job.error == "worker on node-0 (process 2) was lost: the program on node-0 that led to it was killed"


@pytest.mark.parametrize(
    ("bound", "rank", "is_warned_of"), [(None, None, True), (("10.0.0.4", 5), None, False), (None, 0, False)]
)
def test_running_servers_at_the_end_mean_workers_without_a_kv_store(
    job: Job, monkeypatch: pytest.MonkeyPatch, *, bound: tuple[str, int] | None, rank: int | None, is_warned_of: bool
) -> None:
    warned: dict[str, str] = {}
    monkeypatch.setattr(job.outcome, "_warn", warned.__setitem__)
    job.outcome._order.kv_store = "dist_sync"
    job.workers[0].bound, job.workers[0].rank = bound, rank
    job.exits(0, 0)
    job.exits(1, 0)
    assert job.outcome.decided is None
    job.wait(outcome.REAP_GRACE_S)
    assert job.outcome.decided == Ending("done", 0, None, "done")
    assert list(warned) == ["kv-store"] * is_warned_of
