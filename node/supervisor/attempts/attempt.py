"""One attempt of a job: starts its processes on its hosts, handles their messages, and ends them.

It ends when `outcome` has decided how. The supervisor then decides whether another attempt follows.
"""

import asyncio
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from node import protocol
from node.causes.cause import LONGEST, find_cause
from node.engines.engine import HostLaunch
from node.job.cost import cost_of
from node.protocol import Left
from node.setup import process_tree
from node.supervisor import launching, remains
from node.supervisor.agents import Agents, HostAgent, wait_for
from node.supervisor.attempts import restarts
from node.supervisor.attempts.interruption import Interruption
from node.supervisor.attempts.restarts import AttemptEnd
from node.supervisor.outcome import Outcome
from node.supervisor.processes import DAEMON, JobProcess, Processes
from node.supervisor.stalls import Stalls
from node.tasks import Tasks
from node.wire import (
    Announced,
    Bar,
    End,
    Exited,
    Joined,
    Launch,
    Notice,
    Output,
    Ping,
    Placed,
    Refuse,
    Reported,
    RunProgram,
    Sampled,
    Start,
    Started,
    Used,
    VolumeDead,
)

if TYPE_CHECKING:
    from node.supervisor.supervisor import Supervisor

AGENTS_END_S = 5.0
LAST_OUTPUT_S = 2.0  # from the end of a job's processes on a host to the end of the connection
STOP_COPY_S = 15.0  # of the job's files to S3: less than `cluster stop` waits
ProcessReport = Output | Started | Bar | Joined | Exited | Used | Placed


class RunningAttempt:
    """An attempt, on the hosts of the job's order. number: 1 for the first. started_at: None before `start`.

    is_over: whether no more of its processes may start.
    """

    def __init__(self, number: int, job: "Supervisor", first_process: int = 0) -> None:
        order = job.order
        self.number, self.order, self._job = number, order, job
        tasks = self._tasks = Tasks(asyncio.get_running_loop(), job.fail)
        self.agents = Agents(self.on_message, self.lose, job.fail)
        hosts = self.agents.by_host
        self.processes = Processes(order, hosts, first_process)
        self.outcome = Outcome(self.processes, tasks, message=job.message, warn=job.warn)
        self.stalls = Stalls(self.processes, tasks, job.report_stall, self.outcome.end_stalled, keep=job.keep_stacks)
        self.interruption = Interruption(order, hosts, tasks, job.message, self.outcome.decide)
        self.started_at: float | None = None
        self.ended_at: float | None = None
        self.lost: tuple[str, ...] = ()
        self.unhealthy: tuple[str, ...] = ()  # those that can be replaced
        self.resumed: dict[str, int] | None = None  # the batch from which it resumes
        self.is_running = self.is_over = False

    @property
    def done(self) -> dict[str, int] | None:
        """The last batch that it has finished, as far as that is known."""
        return self.interruption.progress or self.interruption.saved

    async def start(self, duration_s: float | None) -> None:
        """Starts the set-up or, if there is none, the job. duration_s: how long it may run. Raises OSError."""
        self.started_at = time.time()
        self._tasks.begin(self.outcome.watch_silence())
        self.outcome.watch_duration(duration_s)
        await self.agents.start(self.order, self.number)
        if self.processes.preparation():
            for host in self.order.hosts:
                self.start_process(self.processes.add("setup", host.name), {})
        else:
            self.launch()

    def launch(self) -> None:
        """Starts the engine's launcher, or the processes themselves. Raises OSError."""
        order = self.order
        head = launching.prepare(order)
        for launch in self.processes.engine.plan_launches(order, head):
            if isinstance(launch, HostLaunch):
                self.start_process(self.processes.add(launch.role, launch.address), dict(launch.launched))
            else:
                process = self.processes.add("launcher", order.hosts[0].name, title=launch.program)
                role = self.processes.order_of_head(launch, launching.environment(order))
                self.register(process)
                process.agent.put(Start(process.number, role))
        self.outcome.watch_start()

    def start_process(self, process: JobProcess, launched: dict[str, str], shim: int | None = None) -> None:
        """Has the agent of its host start a process. shim: the agent's number of the shim that announced it."""
        if process.role == "scheduler":  # servers and workers print where they listen
            process.bound = (launched["DMLC_PS_ROOT_URI"], int(launched["DMLC_PS_ROOT_PORT"]))
        if process.role == "worker":
            process.rank = self.processes.engine.find_rank(launched)
        self.register(process)
        process.agent.put(Start(process.number, self.processes.order_of(process, launched), shim))

    # -- messages ------------------------------------------------------------------------------------------------

    def on_message(self, agent: HostAgent, message: Any) -> None:
        """Handles a message of an agent."""
        if isinstance(message, Announced):
            self.announce(agent, message)
        elif isinstance(message, ProcessReport):
            process = self.processes.by_number(message.p)
            if process is not None:
                self.on_report(process, message)
        elif isinstance(message, Ping) and message.is_copying:
            self.outcome.note_copying()
        elif isinstance(message, VolumeDead):
            self.outcome.fail(f"{agent.host.name}: {message.text}")
        elif isinstance(message, Notice):
            self.interruption.note_notice(agent, message)
        elif isinstance(message, Reported):
            self.on_numbers(agent, message)
        elif isinstance(message, Sampled):
            self._job.samples.put(replace(message.sample, host=agent.host.name))

    def on_output(self, process: JobProcess, lines: Iterable[str]) -> None:
        """Handles lines of a process's output."""
        if process.role == "launcher" and (self.is_over or self.outcome.failed):
            return  # such as torchrun's own traceback: the user already sees the reason
        for text in lines:
            self._job.log.put_line(process.number, text)
            process.last_line = text.strip() or process.last_line
            process.last_lines.append(text[:LONGEST])
            if process.role == "worker":
                self.on_worker(process, text)

    def on_bar(self, process: JobProcess, text: str) -> None:
        """Handles the current progress bar of a process."""
        self._job.clients.put_bar(process.number, text)
        if process.role == "worker" and text:
            self.stalls.on_bar(process, text)

    def end_output(self, process: JobProcess) -> None:
        """Writes the end of a process's output to the log: with its bar, if it is lost and could not end its line."""
        for row in self._job.clients.end_bar(process.number):
            self._job.log.put_line(process.number, row)
        self._job.log.end_output(process.number, process.last_lines)

    def on_worker(self, process: JobProcess, text: str) -> None:
        """Handles a line of a worker's output."""
        self.stalls.on_line(process, text)
        if self.resumed is None and self.number > 1:
            self.resumed = restarts.parse_resumed(text)
            if self.resumed is not None:
                self._job.save_soon()  # the record of the previous attempt contains the number of lost batches
        self.outcome.note_line(text)

    def announce(self, agent: HostAgent, message: Announced) -> None:
        """Starts a process that a launcher on a host has announced, if the job has one more there."""
        role = message.launched.get("DMLC_ROLE", "worker")
        if self.is_over or not self.processes.lacks(role, agent.host.name):
            agent.put(Refuse(message.shim))
        else:
            self.start_process(self.processes.add(role, agent.host.name), message.launched, message.shim)

    async def start_for(self, message: Launch | RunProgram) -> int | None:
        """Starts a process for launch.py, or one of mpirun's daemons. Returns its exit code at its end.

        Returns None if the job has no such process, or no such host.
        """
        host = self.processes.find_host(message.host)
        if self.is_over or host is None:
            return None
        if isinstance(message, RunProgram):
            process = self.processes.add("launcher", host.name, title=DAEMON)
            self.register(process)
            process.agent.put(Start(process.number, self.processes.order_of_program(message.text), keep=True))
        else:
            role = message.launched.get("DMLC_ROLE", "worker")
            if not self.processes.lacks(role, host.name):
                return None
            process = self.processes.add(role, host.name)
            self.start_process(process, message.launched)
        await process.has_ended.wait()
        return process.exit_code

    def register(self, process: JobProcess) -> None:
        """Adds a new process to the log and the record."""
        log = self._job.log
        log.put(p=process.number, role=process.role, host=process.host)
        if process.rank is not None:
            log.put(p=process.number, rank=process.rank)
        self._job.save_soon()

    def on_report(self, process: JobProcess, message: ProcessReport) -> None:
        """Handles a report about a process."""
        if isinstance(message, Output):
            self.on_output(process, message.lines)
        elif isinstance(message, Started):
            self.note_start(process, message.pid)
        elif isinstance(message, Bar):
            self.on_bar(process, message.text)
        elif isinstance(message, Joined):
            self.note_joined(process, message)
        elif isinstance(message, Exited):
            self.note_exit(process, message)
        elif isinstance(message, Used):
            self.stalls.on_use(process, message)
        elif not message.asked:
            self.stalls.on_location(process, message.location)

    def on_numbers(self, agent: HostAgent, message: Reported) -> None:
        """Handles the numbers that the job's program on a host has written."""
        if message.progress is not None:
            self.interruption.note_progress(message.progress)
            self.stalls.on_progress()
        if message.saved is not None:
            first = next((one for one in self.processes.of("worker") if one.agent is agent), None)
            self.interruption.note_saved(first.short_name if first is not None else agent.host.name, message.saved)

    def note_start(self, process: JobProcess, pid: int) -> None:
        """Handles the start of a process."""
        process.pid, process.started_at = pid, time.time()
        self._job.log.put(p=process.number, pid=pid)
        if not self.is_running and not self.processes.missing() and not self.is_over:
            self.is_running = True
            self._job.note_running()
            self.outcome.all_started()
            self.stalls.start()

    def note_joined(self, process: JobProcess, message: Joined) -> None:
        """Handles ps-lite's report of a process's rank, or of the port where it listens."""
        if message.rank is not None and process.rank is None:
            process.rank = message.rank
            self._job.log.put(p=process.number, rank=message.rank)
            self._job.save_soon()
        process.bound = message.bound or process.bound
        self.outcome.note_joined()

    def note_exit(self, process: JobProcess, message: Exited) -> None:
        """Handles the end of a process."""
        process.note_end(message)
        self.end_output(process)
        self._job.log.put(p=process.number, exit=message.exit_code, signal=message.signal)
        self._job.save_soon()
        if self.is_over:
            return
        self.stalls.on_exit(process)
        self.outcome.note_exit(process)
        set_up = [one for one in self.processes.of("setup") if one.exit_code == 0]
        if process in set_up and len(set_up) == len(self.order.hosts):
            self.launch()

    def lose(self, agent: HostAgent, why: str) -> None:
        """Handles the loss of an agent."""
        if not self.is_over:
            self.outcome.note_lost(agent, why)

    # -- end -----------------------------------------------------------------------------------------------------

    @property
    def ending(self) -> AttemptEnd:
        """How it has ended. If the end of a node was announced, this explains all later failures."""
        found = self.outcome.decided or AttemptEnd(1, None, "error")
        if found.reason == "error" and not found.final and self.interruption.hosts:
            return replace(found, reason="notice", lost=self.interruption.hosts)
        return found

    def stop(self, why: str) -> None:
        """Ends it before its own end. If it is ending already, this shortens the copy of its files."""
        self.outcome.stop(why)
        for agent in self.agents.by_host.values() if self.is_over else ():
            agent.put(End(STOP_COPY_S))

    async def end(self) -> Left:
        """Ends all processes on all hosts, and finds the lost hosts.

        Returns the processes that did not end, also those on lost hosts.
        """
        self.is_over = True
        self._tasks.end()
        silent = self.outcome.silent_hosts
        agents = list(self.agents.by_host.values())
        copy_s = STOP_COPY_S if self.ending.reason == "stopped" else None
        for agent in agents:
            agent.put(End(copy_s))
        awaited = [one for one in agents if one.received_at is not None and one.host.name not in silent]
        copying = awaited
        while copying:
            await wait_for([asyncio.ensure_future(one.is_done.wait()) for one in copying], AGENTS_END_S)
            since = time.monotonic() - AGENTS_END_S
            copying = [one for one in copying if not one.is_done.is_set() and (one.copying_at or 0.0) > since]
        unclosed = {one.host.name for one in awaited if one.closed is None}
        suspects = {*self.outcome.lost_hosts, *unclosed, *(one.host for one in self.processes.all if one.failed)}
        if self.number == 1:  # a host that has never answered is not lost, but set up incorrectly
            suspects &= {one.host.name for one in agents if one.boot is not None}
        unclean = [one.host for one in agents if one.closed is None]
        # A node that goes down may report that its processes have failed.
        if self.order.train.on_node_loss == "requeue":
            unclean += [host for host in self.order.hosts if host.name in suspects and host not in unclean]
        left, boots = await remains.end_on(self.order.spec.id, unclean, silent, head=self.order.hosts[0])
        for agent in agents:
            if agent.closed is not None and agent.closed.left:
                left.setdefault(agent.host.name, []).extend(agent.closed.left)
        last = [one for one in awaited if not one.is_done.is_set() and one.host.name not in left]
        await wait_for([asyncio.ensure_future(one.is_done.wait()) for one in last], LAST_OUTPUT_S)
        for process in self.processes.all:
            self.end_output(process)
        await self.agents.end()
        for process in self.processes.all:  # for the launchers that wait for them
            process.has_ended.set()
        before = {one.host.name: one.boot for one in agents}
        rebooted = [name for name, boot in boots.items() if process_tree.is_other_boot(before.get(name) or "", boot)]
        self.lost = restarts.find_lost(self.ending, suspects, left, rebooted)
        self.ended_at = time.time()
        return left

    def find_files(self, before: Iterable[protocol.NewFiles]) -> tuple[protocol.NewFiles, ...]:
        """Returns the job's new files on each host, as its agent has counted them at its end. before: the last ones."""
        return restarts.merge_files(before, {host: agent.closed for host, agent in self.agents.by_host.items()})

    def find_cause(self, culprit: JobProcess) -> str | None:
        """Returns why its first process failed, if that is known."""
        code, clues = culprit.exit_code or 1, culprit.agent.clues
        return find_cause(list(culprit.last_lines), code, clues, contained=culprit.is_contained)

    def describe_lost(self) -> dict[str, str]:
        """Returns the reasons why it has lost nodes, by name."""
        is_noticed = self.ending.reason == "notice"
        why = "EC2 has announced its end (spot notice)" if is_noticed else "it does not answer, or has booted again"
        return {**dict.fromkeys(self.lost, why), **self.outcome.lost_hosts}

    def record(self) -> protocol.Attempt:
        """Returns the attempt in the form of the job's record."""
        now = time.time()
        started_at = self.started_at or now
        ending = self.ending if self.ended_at is not None else None
        reason = ending.reason if ending is not None else None
        culprit = self.outcome.culprit if reason == "error" else None
        return protocol.Attempt(
            number=self.number,
            nodes=tuple(host.name for host in self.order.hosts),
            instances={host.name: host.instance_id for host in self.order.hosts if host.instance_id},
            started_at=started_at,
            ended_at=self.ended_at,
            exit_code=ending.exit_code if ending is not None else None,
            error=ending.error if ending is not None else None,
            cause=self.find_cause(culprit) if culprit is not None else None,
            culprit=culprit.number if culprit is not None else None,
            reason=restarts.find_reason(reason, self.lost, self.unhealthy),
            lost=self.lost or self.unhealthy,
            cost_usd=cost_of(self.order.hosts, (self.ended_at or now) - started_at),
        )
