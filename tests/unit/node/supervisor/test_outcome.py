"""If several processes end in succession, the original cause is named."""

from collections.abc import Sequence
from typing import Any

import pytest

from fake_timers import Timers, timers
from job_channels import make_agents, make_order
from node.protocol import JobHost
from node.supervisor import outcome
from node.supervisor.attempts.restarts import AttemptEnd
from node.supervisor.processes import JobProcess, Processes
from node.wire import Exited

__all__ = ["timers"]

HOSTS = (JobHost(name="node-0", ip="10.0.0.4"), JobHost(name="node-1", ip="10.0.0.5"))


def never(*what: object) -> None:
    pytest.fail(str(what))


class Job:
    """A job with two workers and a scheduler on the head, all of which run. more: fields of its order."""

    def __init__(self, timers: Timers, **more: Any) -> None:
        self.timers = timers
        lines = tuple(host.name for host in HOSTS)
        order = make_order(**{"hosts": HOSTS, "lines": lines, "workers": 2, "servers": 1, **more})
        self.agents = make_agents(order)
        self.processes = Processes(order, self.agents)
        self.outcome = outcome.Outcome(self.processes, self.timers, message=never, warn=never)
        self.launcher = self._add("launcher", "node-0", 77)
        self.scheduler = self._add("scheduler", "node-0", 1)
        self.workers = [self._add("worker", host.name, 2) for host in HOSTS]
        self.wait = self.timers.wait

    def _add(self, role: str, host: str, pid: int) -> JobProcess:
        made = self.processes.add(role, host)
        made.pid = pid
        return made

    def ends(self, process: JobProcess, code: int, number: int | None = None, **more: Any) -> None:
        process.note_end(Exited(p=process.number, exit_code=code, signal=number, **more))
        self.outcome.note_exit(process)

    def exits(self, worker: int, code: int, **more: Any) -> None:
        self.ends(self.workers[worker], code, **more)

    @property
    def error(self) -> str | None:
        return None if self.outcome.decided is None else self.outcome.decided.error


@pytest.fixture
def job(timers: Timers) -> Job:
    return Job(timers)


def test_workers_that_fail_at_the_same_time_are_counted(job: Job) -> None:
    job.exits(1, 7)
    job.wait(outcome.GATHER_S / 2)
    assert job.error is None
    job.exits(0, 3)
    job.wait(0.0)
    error = "2 workers failed; first: worker on node-1 (process 2) ended with exit code 7"
    assert job.outcome.decided == AttemptEnd(7, error, "error")


def test_a_killed_worker_is_named_not_one_that_lost_its_connection_to_it(job: Job) -> None:
    job.exits(0, 1)
    job.ends(job.workers[1], 137, 9)
    job.wait(outcome.GATHER_S)
    error = "2 workers failed; first: worker on node-1 (process 2) was killed by signal 9"
    assert job.outcome.decided == AttemptEnd(137, error, "error")


def test_a_worker_that_fails_first_is_named_not_one_that_complains_about_it(job: Job) -> None:
    """Its own report may be later than that of another one whose peer is gone."""
    job.workers[0].last_lines.append("RuntimeError: [gloo/tcp/pair.cc:598] Connection closed by peer [10.0.0.5]:2804")
    job.exits(0, 1)
    job.wait(outcome.ENDED_GRACE_S / 2)
    assert job.error is None
    job.exits(1, 7)
    job.wait(outcome.GATHER_S)
    assert job.error == "2 workers failed; first: worker on node-1 (process 2) ended with exit code 7"
    assert job.outcome.culprit is job.workers[1]


@pytest.mark.parametrize(
    ("why", "line", "shown"),
    [
        (None, "", ""),
        (None, "KeyError: 'x'", "; its last line: KeyError: 'x'"),
        (None, "\x1b]0;x" + "y" * 300, f"; its last line: ?]0;x{'y' * 195}..."),
        ("cannot start 'x': no such program", "a line", ": cannot start 'x': no such program"),
    ],
)
def test_the_reason_of_a_process_that_failed(job: Job, why: str | None, line: str, shown: str) -> None:
    """What the agent says, or its last line."""
    job.workers[1].last_line = line
    job.exits(1, 7, why=why)
    job.wait(outcome.GATHER_S)
    assert job.error == "worker on node-1 (process 2) ended with exit code 7" + shown


def test_a_worker_that_ended_early_is_named_as_what_came_before(job: Job) -> None:
    """The others lose their connections to it, and fail."""
    job.exits(0, 0)
    job.exits(1, 1)
    job.wait(outcome.GATHER_S)
    message = (
        "worker on node-1 (process 2) ended with exit code 1; before that, worker on node-0 ended with exit code 0"
    )
    assert job.error == message


@pytest.mark.parametrize(
    ("servers", "more"), [((), "; never started: server on node-0, server on node-1"), (("node-0", "node-1"), "")]
)
def test_a_process_that_mpirun_has_ended_ends_the_job(timers: Timers, servers: Sequence[str], more: str) -> None:
    """Its mpirun has failed, as without its daemon on a node or a shim there, and launch.py continues."""
    job = Job(timers, servers=2)
    for host in servers:
        job._add("server", host, 3)
    job.ends(job.workers[0], 143, 15, ended=True)
    job.wait(outcome.ENDED_GRACE_S / 2)
    assert job.error is None
    job.wait(outcome.ENDED_GRACE_S)
    assert job.error == "worker on node-0 (process 2) was ended by the program that started it" + more


def test_a_process_that_mpirun_has_ended_is_not_the_cause(job: Job) -> None:
    """The one that failed is reported later only by a slower connection: mpirun hears of its end afterwards."""
    job.ends(job.workers[0], 143, 15, ended=True)
    job.wait(outcome.ENDED_GRACE_S / 2)
    job.ends(job.workers[1], 137, 9)
    job.wait(0.0)
    assert job.outcome.decided == AttemptEnd(137, "worker on node-1 (process 2) was killed by signal 9", "error")


@pytest.mark.parametrize("ends_with", ["all", "rank 0"])
def test_a_worker_that_was_ended_has_not_succeeded(timers: Timers, ends_with: str) -> None:
    """It may handle SIGTERM, and exit with 0: as when torchrun was killed."""
    job = Job(timers, ends_with=ends_with, servers=0)
    job.workers[0].rank = 0
    job.exits(1, 0)
    job.exits(0, 0, ended=True)
    job.wait(outcome.REAP_GRACE_S)
    assert job.error == "worker 0 on node-0 (process 2) was ended by the program that started it"


def test_the_reason_for_a_failed_launcher_may_arrive_a_moment_later(job: Job) -> None:
    job.ends(job.launcher, 1)
    job.wait(outcome.GATHER_S / 2)
    assert job.error is None
    job.exits(1, 7)
    job.wait(outcome.GATHER_S)
    assert job.error == "worker on node-1 (process 2) ended with exit code 7"


def test_a_lost_agent_without_a_running_process_is_named_by_its_host(job: Job) -> None:
    job.exits(1, 0)
    job.outcome.note_lost(job.agents["node-1"], "the program that runs it was killed")
    assert job.error == "node-1 was lost: the program that runs it was killed"
    assert [*job.outcome.lost_hosts] == ["node-1"]


def test_a_lost_head_is_named_by_a_process_and_not_by_its_launcher(job: Job) -> None:
    job.outcome.note_lost(job.agents["node-0"], "the program that runs it was killed")
    assert job.error == "scheduler on node-0 (process 1) was lost: the program that runs it was killed"


@pytest.mark.parametrize(
    ("bound", "rank", "is_warned_of"), [(None, None, True), (("10.0.0.4", 5), None, False), (None, 0, False)]
)
def test_running_servers_at_the_end_mean_workers_without_a_kv_store(
    job: Job, monkeypatch: pytest.MonkeyPatch, *, bound: tuple[str, int] | None, rank: int | None, is_warned_of: bool
) -> None:
    warned: dict[str, str] = {}
    monkeypatch.setattr(job.outcome, "_warn", warned.__setitem__)
    job.workers[0].bound, job.workers[0].rank = bound, rank
    job.exits(0, 0)
    job.exits(1, 0)
    assert job.outcome.decided is None
    job.wait(outcome.REAP_GRACE_S)
    assert job.outcome.decided == AttemptEnd(0, None, "done")
    assert list(warned) == ["kv-store"] * is_warned_of


def test_training_before_there_is_a_kv_store_is_warned_of(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program may also make its kv-store later."""
    warned: list[str | None] = []
    monkeypatch.setattr(job.outcome, "_warn", lambda _, text: warned.append(text))
    job._add("server", "node-1", 3).bound = ("10.0.0.5", 5)
    job.outcome.note_line("Epoch data 3 of 7")
    assert not warned
    job.outcome.note_line("INFO:root:Epoch[3] Time cost=1.234")
    assert str(warned.pop()).startswith("2 workers trained 2 separate models")
    job.workers[0].bound = ("10.0.0.4", 6)
    job.outcome.note_joined()
    job.outcome.note_line("INFO:root:Epoch[4] Time cost=1.234")
    assert warned == [None]


def test_the_end_waits_for_a_process_that_is_announced_late(job: Job) -> None:
    """The engine's launcher may start the last one when a short program has already ended in the others."""
    job.outcome._warn = lambda *_: None
    for process in (*job.workers, job.scheduler):
        job.ends(process, 0)
    assert job.outcome.decided is None
    job.ends(job._add("server", "node-1", 3), 0)
    assert job.outcome.decided == AttemptEnd(0, None, "done")


def test_a_server_that_fails_after_the_workers_is_only_reported(job: Job) -> None:
    messages: list[str] = []
    job.outcome._message = messages.append
    server = job._add("server", "node-1", 3)
    for worker in job.workers:
        job.ends(worker, 0)
    job.ends(server, 5)
    assert messages == ["server on node-1 (process 3) ended with exit code 5, after all workers had finished"]
    job.ends(job.scheduler, 0)
    assert job.outcome.decided == AttemptEnd(0, None, "done")


def test_workers_may_continue_without_their_kv_stores(job: Job) -> None:
    """MXNet stops the servers and the scheduler when a kv-store is freed, at the end of the script or of a function."""
    for process in (job._add("server", "node-1", 3), job.scheduler):
        job.ends(process, 0)
    job.wait(10 * outcome.EARLY_GRACE_S)
    assert job.error is None


def test_a_server_that_ends_early_ends_the_job(job: Job) -> None:
    job.ends(job._add("server", "node-1", 3), 0)
    job.wait(outcome.EARLY_GRACE_S)
    assert job.error == "server on node-1 ended before the workers did"


def test_processes_that_do_not_start_in_time_are_named(timers: Timers) -> None:
    job = Job(timers, workers=5)
    job.outcome.watch_start()
    job.wait(90.0)
    missing = "server on node-0, worker on node-0, 2 workers on node-1"
    assert job.error == f"the job did not start within 60 s: {missing} did not"


def test_a_job_ends_after_its_longest_time(timers: Timers) -> None:
    job = Job(timers, max_duration=60)
    job.outcome.watch_duration(60.0)
    job.wait(60.0)
    assert job.outcome.decided == AttemptEnd(124, "ran longer than max_duration (1m)", "overtime")


def test_a_node_that_sends_no_messages_is_lost(job: Job) -> None:
    for agent, received_at in zip(job.agents.values(), (95.0, 0.0), strict=True):
        agent.received_at = received_at
    job.wait(100.0)
    job.outcome._check_silence()
    assert job.error == "worker on node-1 (process 2): no sign of life from its node for 15 s"
    assert job.outcome.silent_hosts == {"node-1"}


@pytest.mark.parametrize(("code", "state"), [(0, "done"), (3, "failed")])
def test_a_job_that_ends_with_rank_0(timers: Timers, code: int, state: str) -> None:
    """Workers of Ray and Dask wait for ever. One that ends before does not end the job."""
    job = Job(timers, workers=3, servers=0, ends_with="rank 0", launcher="env")
    job._add("worker", "node-1", 3)
    job.workers[0].rank = 0
    job.exits(1, 0)
    assert job.outcome.decided is None
    job.exits(0, code)
    job.wait(outcome.GATHER_S)
    decided: Any = job.outcome.decided
    assert (decided.state, decided.exit_code) == (state, code)
