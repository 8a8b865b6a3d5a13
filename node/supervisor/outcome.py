"""Decides when and how an attempt of a job ends: the first cause counts, and `decided` contains it."""

import asyncio
import signal
import time
from collections.abc import Callable

from foundation.durations import render_duration
from node.causes.cause import is_of_peer
from node.supervisor.agents import HostAgent
from node.supervisor.attempts.restarts import AttemptEnd
from node.supervisor.processes import JobProcess, Processes
from node.tasks import Tasks

SILENCE_EVERY_S = 1.0
UNSTARTED_S = 1.0  # for a process to report an error, after launch.py's command for it has failed
GATHER_S = 0.3  # for others that fail at the same time as the first, and for the end of a program that led to a node
REAP_GRACE_S = 10.0  # for servers and scheduler, after all workers are done
ENDED_GRACE_S = 2.0  # for the cause, after what follows from it; its agent reports it before a launcher hears of it
EARLY_GRACE_S = 5.0  # for workers to report, after launch.py, the scheduler or a server has succeeded
PROBE_S = 4.5  # more than the agents take
STOPPED, OVERTIME = 130, 124
CRASHES = (signal.SIGKILL, signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE)
"""No process is ended by these because another one has ended."""


class Outcome:
    """The outcome of one attempt of a job.

    message: shows the user a message. warn: sets the warning about a subject; None withdraws it.
    """

    def __init__(
        self,
        processes: Processes,
        tasks: Tasks,
        *,
        message: Callable[[str], None],
        warn: Callable[[str, str | None], None],
    ) -> None:
        self._order, self._processes = processes.order, processes
        self._tasks, self._message, self._warn = tasks, message, warn
        self.failed: list[JobProcess] = []
        self.culprit: JobProcess | None = None  # the process whose failure has ended the attempt
        self.decided: AttemptEnd | None = None
        self.is_decided = asyncio.Event()
        self._start_limit: asyncio.TimerHandle | None = None
        self._early: asyncio.TimerHandle | None = None
        self._joining: asyncio.Task[None] | None = None
        self.lost_hosts: dict[str, str] = {}  # why the connection was lost, by the host's name
        self.silent_hosts: set[str] = set()  # those of them that send no messages any longer

    def decide(self, ending: AttemptEnd) -> None:
        """Ends the attempt with this outcome, unless another one has already been decided."""
        known = self.decided
        # The loss of nodes explains errors of processes, and nothing follows a reason of the supervisor's own.
        is_better = (
            known is not None
            and not known.final
            and (ending.final or (ending.reason == "lost" and known.reason == "error"))
        )
        if known is None or is_better:
            self.decided = ending
            self.is_decided.set()

    def fail(self, error: str, *, final: bool = False) -> None:
        """Fails the attempt for a reason other than the exit code of one of its processes. final: see AttemptEnd."""
        self.decide(AttemptEnd(1, error, "error", final=final))

    def stop(self, why: str = "stopped") -> None:
        """Ends the job before its own end."""
        self.decide(AttemptEnd(STOPPED, why, "stopped"))

    def lose(self, host: str, why: str) -> None:
        """Ends the attempt because a node is lost, even if an error of its processes was noticed first."""
        self.lost_hosts[host] = f"it {why}"
        self.decide(AttemptEnd(1, f"{host} {why}", "lost", lost=(host,)))

    # -- start ---------------------------------------------------------------------------------------------------

    async def watch_silence(self) -> None:
        """Treats a process that sends no messages for too long as lost, with its node."""
        while True:
            await asyncio.sleep(SILENCE_EVERY_S)
            self._check_silence()

    def _check_silence(self) -> None:
        silence_s = self._order.train.silence_timeout_s
        for agent in self._processes.agents.values():
            if not agent.is_open:
                continue
            if agent.received_at is None:  # ssh is still connecting, or Python starting
                limit_s, since = max(silence_s, self._order.train.start_timeout_s), agent.introduced_at
            else:
                limit_s, since = silence_s, agent.received_at
            if time.monotonic() > since + limit_s:
                host = agent.host.name
                self.silent_hosts.add(host)
                self.lost_hosts.setdefault(host, f"no sign of life for {limit_s:g} s")
                name = self._processes.name_first_on(host)
                self.fail(f"{name}: no sign of life from its node for {limit_s:g} s")

    def watch_start(self) -> None:
        """Starts the time limit for the start of the launcher's processes."""
        self.all_started()
        self._start_limit = self._tasks.later(self._order.train.start_timeout_s, self._start_timed_out)

    def note_copying(self) -> None:
        """Starts the time limit again, because a node still copies the job's files."""
        if self._start_limit is not None:
            self.watch_start()

    def _start_timed_out(self) -> None:
        missing = ", ".join(self._processes.missing())
        self.fail(f"the job did not start within {self._order.train.start_timeout_s:g} s: {missing} did not")

    def check_unstarted(self) -> None:
        """Handles the failure of a command of launch.py: its process has reported the reason, or has never started."""
        self._tasks.later(UNSTARTED_S, self._check_unstarted)

    def _check_unstarted(self) -> None:
        missing = self._processes.unknown()
        if missing:
            self.fail(f"the job cannot start: {self._processes.engine.program} failed to start {', '.join(missing)}")

    def all_started(self) -> None:
        """Cancels the time limit of the start, because all processes have started."""
        if self._start_limit is not None:
            self._start_limit.cancel()
            self._start_limit = None

    def watch_duration(self, duration_s: float | None) -> None:
        """Starts the limit of the job's duration, which includes its set-up. duration_s: the remaining seconds."""
        error = f"ran longer than max_duration ({render_duration(self._order.train.max_duration_s or 0.0)})"
        if duration_s is not None:
            self._tasks.later(duration_s, lambda: self.expire(error))

    def expire(self, error: str, *, final: bool = False) -> None:
        """Ends the job because its time is over: max_duration, or the walltime of a batch scheduler."""
        self.decide(AttemptEnd(OVERTIME, error, "overtime", final=final))

    def end_stalled(self, error: str) -> None:
        """Ends the attempt because no worker has made progress for stall_timeout."""
        is_loss = self._order.train.on_stall == "requeue"
        self.decide(AttemptEnd(OVERTIME, error, "stalled" if is_loss else "error"))

    # -- kv-store ------------------------------------------------------------------------------------------------

    def note_joined(self) -> None:
        """Handles that a process has bound its port or has a rank."""
        if self._processes.uses_kv_store():  # which a program that first trains without it does late
            self._warn("kv-store", None)
        if self._processes.unjoined():
            self._joining = self._joining or self._tasks.begin(self._watch_joining())
        elif self._joining is not None:
            self._joining.cancel()
            self._joining = None

    async def _watch_joining(self) -> None:
        """Fails the attempt if its processes, which all wait for each other, do not find each other in time."""
        start_timeout_s = self._order.train.start_timeout_s
        await asyncio.sleep(start_timeout_s)
        self._processes.have_them_reach(self._processes.of("server") + self._processes.of("worker"))
        await asyncio.sleep(PROBE_S)
        names = ", ".join(process.name for process in self._processes.unjoined())
        blocked = self._processes.describe_unreachable()
        if blocked:
            blocked = f"; {blocked}; does the security group allow all traffic between its members?"
        self.fail(f"started, but not joined within {start_timeout_s:g} s: {names}{blocked}")

    def note_line(self, text: str) -> None:
        """Warns of a worker that trains while none has created a kv-store: it would have printed its port first."""
        if not self._lacks_kv_store() or not any(server.bound for server in self._processes.of("server")):
            return
        from node.reports import parse_report  # noqa: PLC0415 - its patterns would delay each job

        if parse_report(text) is not None:
            self._warn_of_kv_store()

    def _lacks_kv_store(self) -> bool:
        spec = self._order.spec
        return spec.servers > 0 and spec.workers > 1 and not self._processes.uses_kv_store()

    def _warn_of_kv_store(self) -> None:
        count = self._order.spec.workers
        self._warn(
            "kv-store",
            f"{count} workers trained {count} separate models: the script did not use a dist kv-store. "
            f"Pass --kv-store {self._order.train.kv_store} (some scripts call it --kvstore), which it must give to "
            "mx.kv.create or its trainer",
        )

    # -- ends ----------------------------------------------------------------------------------------------------

    def note_exit(self, process: JobProcess) -> None:
        """Handles the end of a process."""
        if process.is_daemon and not process.failed:
            return
        workers = self._processes.of("worker")
        is_done = sum(1 for one in workers if one.succeeded) == self._order.spec.workers
        if process.failed and is_done:
            self._message(self._processes.describe_exit(process) + ", after all workers had finished")
        elif process.failed:
            self.failed.append(process)
            have_ended = bool(workers) and all(one.exit_code is not None for one in workers)
            is_consequence = is_of_peer(process.last_lines) or (process.is_daemon and process.signal not in CRASHES)
            delay_s = 0.0 if have_ended else ENDED_GRACE_S if is_consequence else GATHER_S
            self._tasks.later(delay_s, self._fail_with_all)
        elif process.was_ended and not is_done:  # launch.py goes on when its mpirun fails
            self._tasks.later(ENDED_GRACE_S, lambda: self._fail_by_launcher(process))
        elif process.role == "launcher" and self._processes.all_ended_on(process.host):
            pass
        elif process.role in ("scheduler", "server", "launcher") and not is_done:
            if self._early is not None:
                self._early.cancel()
            if not self._are_dismissed():  # at the end of a successful job it can be a moment ahead of the others
                error = f"{process.short_name} ended before the workers did"
                self._early = self._tasks.later(EARLY_GRACE_S, lambda: self.fail(error))
        self._check_workers(process, is_done=is_done)

    def _fail_by_launcher(self, process: JobProcess) -> None:
        """Fails the attempt because its launcher has ended a process: as when another one dies before it starts."""
        unknown = ", ".join(self._processes.unknown())
        more = f"; never started: {unknown}" if unknown else ""
        self.fail(f"{process.name} was ended by the program that started it{more}")

    def _check_workers(self, process: JobProcess, *, is_done: bool) -> None:
        """Ends the attempt if this was the last process that counts."""
        is_last = self._order.train.ends_with == "rank 0" and process.role == "worker" and process.rank == 0
        if (is_last and process.succeeded) or (is_done and self._processes.all_ended()):
            self.decide(AttemptEnd(0, None, "done"))
        elif is_done:
            if self._early is not None:
                self._early.cancel()
            self._early = self._tasks.later(REAP_GRACE_S, self._end_without_servers)

    def _end_without_servers(self) -> None:
        """Ends the attempt: all workers are done, but none has told the servers to stop."""
        if self._lacks_kv_store():
            self._warn_of_kv_store()
        self.decide(AttemptEnd(0, None, "done"))

    def _are_dismissed(self) -> bool:
        """Whether the workers have freed their kv-stores, as at the end of a function that created one.

        Servers and scheduler then succeed, and the scripts may continue for any length of time.
        """
        ended = [
            process.role
            for process in self._processes.of("server") + self._processes.of("scheduler")
            if process.exit_code == 0
        ]
        return ended.count("server") == self._order.spec.servers > 0 and "scheduler" in ended

    def note_lost(self, agent: HostAgent, why: str) -> None:
        """Handles an agent whose connection has ended before the attempt."""
        host = agent.host.name
        self.lost_hosts.setdefault(host, why)
        self.fail(f"{self._processes.name_first_on(host)} was lost: {why}")

    def _fail_with_all(self) -> None:
        # A launcher fails because of its processes.
        failed = [process for process in self.failed if process.role != "launcher"] or self.failed
        # The other nodes' reports may be faster, and a process whose peer is gone is not the first.
        failed.sort(key=lambda process: (process.signal not in CRASHES, is_of_peer(process.last_lines)))
        if self.decided is None:
            self.culprit = failed[0]
        self.decide(AttemptEnd(failed[0].exit_code or 1, self._processes.describe_failures(failed), "error"))
