"""Of several ends that are heard of one after the other, the one that came first is named, and not what followed it."""

from types import SimpleNamespace

import pytest

from job_host import NODE_DIR

import hub  # isort: skip - these run by path on the nodes, so they are found by path here
import judge  # isort: skip
import roster  # isort: skip

assert judge.__file__ == str(NODE_DIR / "judge.py")
HOSTS = [{"name": "node-0", "ip": "10.0.0.4"}, {"name": "node-1", "ip": "10.0.0.5"}]
LAUNCHER = 77


class Timers:
    """The hub's, with a clock that goes when it is told to."""

    after, cancel, has = hub.Hub.after, hub.Hub.cancel, hub.Hub.has

    def __init__(self) -> None:
        self._timers: dict[str, object] = {}


class Job:
    """One with two workers and a scheduler on the head, which all run."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, launcher: str) -> None:
        self.now = 0.0
        monkeypatch.setattr(hub.time, "monotonic", lambda: self.now)
        order = {"hosts": HOSTS, "workers": 2, "servers": 1, "launcher": launcher}
        self.roster = roster.Roster(order)
        self.timers = Timers()
        self.judge = judge.Judge(order, self.roster, self.timers, pytest.fail, pytest.fail)
        by = LAUNCHER if launcher == "ssh" else None
        self.launcher = self._add("launcher", "node-0", LAUNCHER, None)
        self.scheduler = self._add("scheduler", "node-0", 1, None)
        self.workers = [self._add("worker", host["name"], 2, by) for host in HOSTS]

    def _add(self, role: str, host: str, pid: int, by: int | None) -> roster.Role:
        made = self.roster.add(role, host)
        made.pid, made.by = pid, by
        return made

    def wait(self, seconds: float) -> None:
        self.now += seconds
        for name, (due, callback) in sorted(self.timers._timers.items(), key=lambda item: item[1][0]):
            if due <= self.now:
                del self.timers._timers[name]
                callback()

    def exits(self, worker: int, code: int) -> None:
        self.workers[worker].exit_code = code
        self.judge.judge_exit(self.workers[worker])

    def launcher_ends(self, code: int) -> None:
        self.judge.judge_child("launch.py on node-0", SimpleNamespace(returncode=code, pid=LAUNCHER), is_launcher=True)

    @property
    def error(self) -> str | None:
        return self.judge.outcome and self.judge.outcome[2]


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch) -> Job:
    return Job(monkeypatch, "ssh")


def test_two_that_fail_at_the_same_time_are_counted(job: Job) -> None:
    job.exits(1, 7)
    job.wait(judge.GATHER_S / 2)
    assert job.error is None
    job.exits(0, 3)
    job.wait(0.0)
    assert job.judge.outcome == (
        "failed",
        7,
        "2 workers failed; first: worker on node-1 (process 2) ended with exit code 7",
    )


def test_one_that_fails_alone_is_named_after_a_moment(job: Job) -> None:
    job.exits(1, 7)
    job.wait(judge.GATHER_S)
    assert job.judge.outcome == ("failed", 7, "worker on node-1 (process 2) ended with exit code 7")


def test_a_launcher_that_was_killed_is_named_and_not_what_ended_with_it(job: Job) -> None:
    job.judge.judge_lost(job.workers[0])
    job.launcher_ends(-9)
    assert job.error == "launch.py on node-0 (process 77) was killed by signal 9"


def test_a_launcher_that_failed_is_named_unless_the_reason_is_heard_of_a_moment_later(job: Job) -> None:
    job.launcher_ends(1)
    job.wait(judge.GATHER_S / 2)
    assert job.error is None
    job.judge.judge_lost(job.scheduler)
    assert job.error == "scheduler on node-0 (process 1) was lost: the program on node-0 that led to it was killed"


def test_without_another_reason_a_launcher_that_failed_is_the_reason(job: Job) -> None:
    job.launcher_ends(1)
    job.wait(judge.GATHER_S)
    assert job.error == "launch.py on node-0 (process 77) ended with exit code 1"


def test_what_mpirun_ends_because_of_another_is_not_named_before_that(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(monkeypatch, "mpi")
    job.judge.judge_lost(job.workers[0])
    job.wait(judge.MPI_GATHER_S / 2)
    assert job.error is None
    job.judge.fail("worker on node-1 was lost: ssh to it failed")
    job.wait(judge.MPI_GATHER_S)
    assert job.error == "worker on node-1 was lost: ssh to it failed"


def test_with_mpirun_too_one_that_is_lost_alone_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(monkeypatch, "mpi")
    job.judge.judge_lost(job.workers[0])
    job.wait(judge.MPI_GATHER_S)
    assert job.error == "worker on node-0 (process 2) was lost: the program on node-0 that led to it was killed"


@pytest.mark.parametrize(
    ("bound", "rank", "is_warned_of"), [(None, None, True), (["10.0.0.4", 5], None, False), (None, 0, False)]
)
def test_servers_that_nobody_dismisses_are_a_sign_of_workers_without_a_kv_store(
    job: Job, monkeypatch: pytest.MonkeyPatch, *, bound: list[object] | None, rank: int | None, is_warned_of: bool
) -> None:
    warned: dict[str, str] = {}
    monkeypatch.setattr(job.judge, "_warn", warned.__setitem__)
    job.judge._order.update(command=["./train"], cwd="/", kv_store="dist_sync")
    job.workers[0].bound, job.workers[0].rank = bound, rank
    job.exits(0, 0)
    job.exits(1, 0)
    assert job.judge.outcome is None
    job.wait(judge.REAP_GRACE_S)
    assert job.judge.outcome == ("done", 0, None)
    assert list(warned) == ["kv-store"] * is_warned_of
