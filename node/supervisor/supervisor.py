"""Runs one job from the head: one attempt after another, until one of them is the last.

SIGINT stops the job, and so does SIGTERM, unless it can continue on another head (leave_host).

It adds two features that launch.py and torchrun lack: one failed process ends the job everywhere, with that process's
exit code, and no process is left on any host. It never waits for a single process, host or reader without a limit.
"""

import asyncio
import os
import signal
import time
import traceback
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, NoReturn

from msgspec.structs import replace

from node import job_folder, wire
from node.engines.engine import assign_hosts
from node.engines.scheduler import Scheduler
from node.engines.schedulers import SCHEDULERS
from node.job.cost import find_cost
from node.job.samples import SampleFile
from node.protocol import AllocationRequest, JobState, Left, Order, Record, Stall, printable
from node.supervisor import job_log, launching, publish, recovery, unhealthy_nodes
from node.supervisor.allocation import Allocation, Client
from node.supervisor.attempts import restarts
from node.supervisor.attempts.attempt import RunningAttempt
from node.supervisor.attempts.new_nodes import Replacement
from node.supervisor.attempts.stacks import take_stacks
from node.supervisor.clients import Clients
from node.supervisor.notifier import Notifier
from node.supervisor.processes import LONGEST_LINE
from node.tasks import Tasks
from node.wire import Launch, Message, NotStarted, Refusal, Replace, Reply, RunProgram, TakeStacks

TURN_EVERY_S = 0.2
RECORD_EVERY_S = 0.5
COPY_S, LAST_COPY_S = 3.0, 30.0  # to S3: while followers of the job wait, and after that


class Supervisor:
    """One job. record: the content for the disk. attempt: the current one, or the next one, which waits to start.

    first_process: the number of the first process that starts, after those in the log.
    """

    def __init__(self, order: Order, record: Record, first_process: int = 0) -> None:
        self.order, self.record = order, record
        self.job = order.spec.id
        self.loop = asyncio.get_running_loop()
        self.tasks = Tasks(self.loop, self.fail)
        self.log = job_log.Log(self.job, self.write_log_soon)
        self.samples = SampleFile(self.job, len(order.hosts))
        self.copying: publish.Copying | None = None  # to S3
        self.allocation: Allocation | None = None  # of a batch scheduler
        self.replacement: Replacement | None = None  # while the job waits for nodes
        self.notifier = Notifier(order.notify, record)
        self.warnings: dict[str, str | None] = {}  # by their subject
        self.clients = Clients(self.answer, self.fail)
        self.saving: asyncio.TimerHandle | None = None
        self.is_stopped = False  # the job was stopped by a request
        self.is_leaving = False  # this host shuts down, and another head continues the job
        self.unhealthy: dict[str, list[str]] = {}  # nodes of the current attempt, once it has failed, and the reasons
        self.ended = list(order.attempts)  # the attempts before the current one
        self.done: dict[str, int] | None = None  # the last batch that they have finished
        self.attempt = RunningAttempt(len(self.ended) + 1, self, first_process)

    async def open(self) -> None:
        """Opens the socket. Raises OSError."""
        self.loop.add_signal_handler(signal.SIGTERM, self.leave_host)
        self.loop.add_signal_handler(signal.SIGINT, self.stop)
        await self.clients.open(job_folder.path(self.job, "socket"))

    async def run(self) -> None:
        """Runs the job to its end: one attempt after another."""
        self.log.put(state=self.record.state)
        self.tasks.begin(recovery.show_life(self.job))
        await self.attend(self.begin())
        while True:
            left = await self.end()
            if not await self.continues(left):
                break
            await self.attend(self.start_again())
        await self.conclude(left)

    async def attend(self, start: Coroutine[Any, Any, None]) -> None:
        """Starts the current attempt, and waits until its end is decided. An error ends the job."""
        starting = self.tasks.begin(start)
        await self.attempt.outcome.is_decided.wait()
        starting.cancel()
        await asyncio.wait([starting])

    def fail(self, error: BaseException) -> None:
        """Ends the job because of an error."""
        if isinstance(error, OSError):  # such as a full disk
            self.attempt.outcome.fail(f"{self.head}: {job_folder.describe(error)}", final=True)
            return
        self.attempt.outcome.fail(f"{self.head}: the supervisor failed: {error!r}", final=True)
        for line in "".join(traceback.format_exception(type(error), error, error.__traceback__)).splitlines():
            self.message(line)

    async def begin(self) -> None:
        """Waits for the job's turn and, with a batch scheduler, for its nodes; then starts it. Raises OSError."""
        order = self.order
        if order.before:
            self.start_copying()  # the queue must survive the loss of this head
        if order.within is not None:
            client = Client(SCHEDULERS[order.within.scheduler], order.spec.setup)
            self.tasks.begin(self.watch_allocation(Allocation(client, self.message, order.within.number)))
        await self.wait_in_queue()
        if order.spec.scheduler is not None and order.request is not None:
            try:
                await self.allocate(SCHEDULERS[order.spec.scheduler], order.request)
            except ValueError as error:
                self.attempt.outcome.fail(str(error))
                return
        await self.start()

    @property
    def head(self) -> str:
        """The name of this host."""
        return self.order.hosts[0].name

    def stop(self, why: str = "stopped") -> None:
        """Ends the job at the user's request, or that of this host."""
        self.is_stopped = True
        self.attempt.stop(why)

    def leave_host(self) -> None:
        """Handles SIGTERM, such as when this host shuts down: a job whose record is in S3 waits for another head."""
        order = self.order
        continues = order.train.on_node_loss == "requeue" or self.record.state == "queued"
        if self.copying is None or not continues or order.hosts[0].own_host is not None:
            self.stop(f"SIGTERM on {self.head}: it shuts down, or ends programs at logout (logind's KillUserProcesses)")
            return
        self.is_leaving = True
        if self.attempt.started_at is not None:
            self.attempt.outcome.lose(self.head, "shuts down")
        else:  # it waits already
            self.tasks.begin(self.leave())

    async def leave(self) -> NoReturn:
        """Ends this program but not the job: systemd waits 90 s for the programs of a host that shuts down."""
        self.write_all()
        if self.copying is not None:
            self.copying.finish(LAST_COPY_S)  # blocks, so that a queued job takes no turn meanwhile
        with suppress(asyncio.TimeoutError):  # in Python 3.10, it is no TimeoutError
            await asyncio.wait_for(self.notifier.finish(), LAST_COPY_S)
        os._exit(0)

    def write_log_soon(self) -> None:
        """Writes the new lines of the log, once what has arrived is handled."""
        self.loop.call_soon(self.tasks.call, self.log.write)

    def message(self, text: str) -> None:
        """Shows the user a message."""
        self.log.put(message=text)

    def warn(self, about: str, text: str | None) -> None:
        """Sets the warning about a subject in log and record; None withdraws it."""
        if self.warnings.get(about) == text:
            return
        self.warnings[about] = text
        self.record.warnings = tuple(one for one in self.warnings.values() if one is not None)
        self.log.put(warnings=self.record.warnings)
        self.save_soon()

    def report_stall(self, text: str, seconds: float | None) -> None:
        """Tells the user that the job has made no progress for `seconds`, and why; None: it makes progress again."""
        since = 0.0 if seconds is None else round(time.time() - seconds, 3)
        self.log.put(message=text, stalled_since=since)
        self.record.stall = Stall(text=text, since=since) if since else None
        self.record.stacks = self.record.stacks if since else ()
        self.save_soon()

    def keep_stacks(self, stacks: tuple[str, ...]) -> None:
        """Adds the stacks of a job without progress to log and record."""
        for text in stacks if stacks != self.record.stacks else ():
            self.message(f"stack of {text}")
        self.record.stacks = stacks

    # -- start ---------------------------------------------------------------------------------------------------

    async def wait_in_queue(self) -> None:
        """Waits for the end of the jobs before this one."""
        for job in self.order.before:
            while recovery.is_alive(job):  # noqa: ASYNC110 - another program, whose files alone show it
                await asyncio.sleep(TURN_EVERY_S)
            await recovery.complete(job)
        self.set_state("starting")

    async def allocate(self, scheduler: Scheduler, request: AllocationRequest) -> None:
        """Requests the job's nodes from a batch scheduler, and waits for them. Raises ValueError, OSError."""
        self.set_state("pending")
        order, title = self.order, scheduler.title

        def note(number: str, reason: str) -> None:
            if number != self.record.job_number:
                self.message(f"{title} job {number} requests the nodes")
            if reason:
                self.message(f"{title} job {number} is pending: {reason}")
            self.record.job_number, self.record.pending = number, printable(reason, LONGEST_LINE) or None
            self.save(lasting=True)  # without the number, the nodes could not be released

        self.allocation = Allocation(Client(scheduler, order.spec.setup), self.message)
        hosts = await self.allocation.wait(request, order.hosts, note)
        assign_hosts(order, hosts)
        self.record.nodes = order.hosts
        self.message(f"{', '.join(host.name for host in hosts)} assigned")
        self.set_state("starting")
        self.tasks.begin(self.watch_allocation(self.allocation))

    async def watch_allocation(self, allocation: Allocation) -> None:
        """Ends the job when the batch scheduler takes its nodes back."""
        error, is_walltime = await allocation.watch()
        outcome = self.attempt.outcome
        if outcome.decided is None or outcome.decided.state == "failed":  # its processes may have been ended first
            (outcome.expire if is_walltime else outcome.fail)(error, final=True)

    async def start(self) -> None:
        """Starts the current attempt. Raises OSError."""
        attempt, order = self.attempt, self.order
        self.record.held_at = self.record.held_at or time.time()
        launching.take_credentials(order)
        if self.copying is None:
            self.start_copying()
        else:  # in the last copy, the job is queued or waits
            self.save()
            self.copying.hurry()
        ran_s = sum((one.ended_at or one.started_at) - one.started_at for one in self.ended)
        duration_s = None if not order.train.max_duration_s else max(1.0, order.train.max_duration_s - ran_s)
        await attempt.start(duration_s)
        self.save_soon()

    def start_copying(self) -> None:
        """Starts to copy the record and the log to [data] results, if set."""
        order = self.order
        if order.spec.output_url:
            secrets = None if order.spec.nodes_credentials else order.secrets

            def message(text: str) -> None:
                self.loop.call_soon_threadsafe(self.message, text)

            self.copying = publish.Copying(self.job, order.spec.output_url, order.env, secrets, message)

    # -- the next attempt ----------------------------------------------------------------------------------------

    async def continues(self, left: Left) -> bool:
        """Returns whether another attempt follows the one that has ended. Creates it, and tells the user why."""
        attempt, order = self.attempt, self.order
        if attempt.ending.state == "failed":
            await self.check_health()
        ending, replaced = attempt.ending, attempt.lost or attempt.unhealthy
        follows = restarts.plan_next(order, ending, replaced, left, self.ended)
        if follows == "end":
            return False
        self.note_ended(attempt)
        self.attempt = RunningAttempt(attempt.number + 1, self, attempt.processes.first + len(attempt.processes.all))
        self.message(f"attempt {attempt.number} has ended: {ending.error}")
        if follows == "wait":
            self.record.waiting_for = replaced
        if self.is_stopped:  # while the attempt was being ended
            self.attempt.outcome.stop()
        return True

    def note_ended(self, attempt: RunningAttempt) -> None:
        """Adds an attempt that has ended to the record, before the next one."""
        self.ended.append(attempt.record())
        self.done = attempt.done or attempt.resumed or self.done
        self.record.stall, self.record.stacks = None, ()

    async def start_again(self) -> None:
        """Waits for the replacement of lost nodes, if there are any, and starts the next attempt. Raises OSError."""
        replaced, unhealthy, self.unhealthy = self.record.waiting_for, self.unhealthy, {}
        if replaced:
            await self.wait_for_nodes()
            left = {name: reasons for name, reasons in unhealthy.items() if name not in replaced}
            self.warn("health", unhealthy_nodes.render(left) or None)
        self.record.waiting_for = ()
        self.set_state("starting")
        self.message(f"starting attempt {self.attempt.number}")
        await self.start()

    async def wait_for_nodes(self) -> None:
        """Waits until all lost nodes are replaced. Raises OSError."""
        self.set_state("waiting")
        self.record.head_replaces = bool(self.order.replace_command) and self.head not in self.record.waiting_for
        self.save(lasting=True)
        if self.is_leaving and not self.is_stopped:
            await self.leave()
        if self.copying is not None:
            self.copying.hurry()  # if this node is lost next, only the record is left
        self.replacement = Replacement(self)
        try:
            await self.replacement.wait()
        finally:
            self.replacement, self.record.head_replaces = None, False
        self.record.nodes = self.order.hosts

    async def answer(self, message: Any) -> bytes | None:
        """Carries out a client's request. Returns the answer; b"" for none; None to refuse it."""
        answer: Any = Reply()
        if isinstance(message, Launch | RunProgram):
            answer = await self.attempt.start_for(message)
        elif isinstance(message, Replace):
            waiting = self.replacement
            answer = Refusal("it does not wait for nodes") if waiting is None else waiting.take(message.hosts)
        elif isinstance(message, TakeStacks):
            answer = await take_stacks(self.attempt.processes, self.attempt.stalls, message)
        elif isinstance(message, Message):
            self.message(message.text)
        elif isinstance(message, NotStarted):
            self.attempt.outcome.check_unstarted()
        else:
            self.stop()
            return b""
        return None if answer is None else wire.encode(answer)

    def note_running(self) -> None:
        """Records that all processes of the current attempt have started."""
        self.record.started_at = self.record.started_at or time.time()
        self.set_state("running")

    # -- record --------------------------------------------------------------------------------------------------

    def set_state(self, state: JobState) -> None:
        """Sets the state in the log and the record."""
        if state != self.record.state:
            self.record.state = state
            self.log.put(state=state)
            self.tasks.later(0.0, self.save)  # at once, for those who read the record

    def save_soon(self) -> None:
        """Writes the record a moment later, together with other changes."""
        self.saving = self.saving or self.tasks.later(RECORD_EVERY_S, self.save)

    def save(self, *, lasting: bool = False) -> None:
        """Writes the record now. Raises OSError."""
        if self.saving is not None:
            self.saving.cancel()
            self.saving = None
        self.complete_record()
        job_folder.write_record(self.record, lasting=lasting)

    def write_all(self) -> None:
        """Writes the log and the record now. On a full disk, follow.py and recovery.py complete the rest."""
        for keep in (self.log.write, lambda: self.save(lasting=True)):
            with suppress(OSError):
                keep()

    def complete_record(self) -> None:
        """Updates the record's processes, attempts and cost."""
        attempt = self.attempt
        if attempt.started_at is not None or not self.ended:
            self.record.roles = tuple(process.record() for process in attempt.processes.all)
        if attempt.started_at is not None:
            self.note_lost_batches(attempt)
            self.record.attempts = (*self.ended, attempt.record())
        else:
            self.record.attempts = tuple(self.ended)
        self.record.cost_usd = find_cost(self.record, time.time())

    def note_lost_batches(self, attempt: RunningAttempt) -> None:
        """Completes the record of the previous attempt, once it is known where this one resumes."""
        if self.ended and self.ended[-1].lost_batches is None and attempt.resumed is not None:
            lost = restarts.count_lost_batches(self.done, attempt.resumed)
            self.ended[-1] = replace(self.ended[-1], lost_batches=lost)

    # -- end -----------------------------------------------------------------------------------------------------

    async def end(self) -> Left:
        """Ends all processes of the current attempt on all hosts. Returns those that do not end."""
        self.set_state("ending")
        left = await self.attempt.end()
        self.record.files = self.attempt.find_files(self.record.files)
        for host, why in self.attempt.describe_lost().items():
            text = f"job {self.job} ({self.order.spec.name}) has lost {host}: {why}"
            self.notifier.send("node-lost", text, node=host)
        return left

    async def check_health(self) -> None:
        """Finds out which nodes of a failed attempt are unhealthy, and warns the user."""
        order, attempt = self.order, self.attempt
        if not attempt.processes.all:
            return  # nothing ran on a node
        silent = {*attempt.outcome.silent_hosts, *attempt.lost}
        try:
            found = await unhealthy_nodes.find_unhealthy(order.hosts, silent)
            unhealthy_nodes.keep(order.hosts, found)
        except OSError as error:  # such as a full disk
            self.message(f"cannot check the nodes' health: {job_folder.describe(error)}")
            return
        self.unhealthy = found
        self.warn("health", unhealthy_nodes.render(found) or None)
        for name, reasons in found.items():
            self.notifier.send("unhealthy", unhealthy_nodes.render({name: reasons}), node=name)
        attempt.unhealthy = restarts.find_replaceable(order, found)

    async def conclude(self, left: Left) -> None:
        """Gives nodes back, writes the result to disk and S3, and tells the clients that wait for it."""
        ending = self.attempt.ending  # read before `watch_allocation` sees that the nodes are given back
        refusal = await self.allocation.cancel() if self.allocation is not None else None
        if refusal is not None:
            self.message(refusal)
        await asyncio.sleep(0)  # for messages about copying to S3
        self.tasks.end()
        state, exit_code, error = ending.state, ending.exit_code, ending.error
        if self.attempt.lost and self.order.train.on_node_loss == "requeue":
            error = f"{error}; {restarts.explain_end(self.attempt.lost, self.ended)}"
        if left and state == "done":
            state, exit_code, error = "failed", 1, "the job succeeded, but left processes behind"
        if state == "failed":
            error = "\n".join(filter(None, [error, unhealthy_nodes.render(self.unhealthy)])) or None
        record = self.record
        record.end(state, exit_code, error, left, at=time.time())
        self.complete_record()
        result = record.result
        launching.clean_up(self.job)
        self.log.make_room()
        self.log.put(state=state)
        self.log.put(result=result, files=record.files)
        self.report_end()
        self.write_all()
        self.log.close()
        is_copied = self.copying is None or await asyncio.to_thread(self.copying.finish, COPY_S)
        job_folder.remove(job_folder.path(self.job, "socket"))
        await self.clients.finish()
        await self.note_unsent()
        if self.copying is not None and not is_copied:
            await asyncio.to_thread(self.copying.finish, LAST_COPY_S)

    def report_end(self) -> None:
        """Reports the end of the job to [notify]."""
        record, name = self.record, f"job {self.job} ({self.order.spec.name})"
        ended = f"{name} is {record.state}" + (f": {record.error}" if record.error else "")
        cost = "" if record.cost_usd is None else f"; its nodes cost ${record.cost_usd:.2f}"
        self.notifier.send("job-ended", ended + cost)

    async def note_unsent(self) -> None:
        """Adds the events that could not be sent to the record's warnings."""
        errors = await self.notifier.finish()
        if errors:
            self.record.warnings = (*self.record.warnings, *errors)
            with suppress(OSError):  # as above
                self.save(lasting=True)
