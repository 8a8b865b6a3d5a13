"""One attempt of a job: starts its processes on its hosts, handles their messages, and ends them.

It ends when `outcome` has decided how. The supervisor then decides whether another attempt follows.
"""

import time
from collections.abc import Callable
from typing import Optional

from msgspec import Struct
from msgspec.structs import replace

from node import protocol, wire
from node.protocol import Left, Order
from node.supervisor import kv_store, launching, recovery
from node.supervisor.attempts import restarts
from node.supervisor.attempts.interruption import Interruption
from node.supervisor.attempts.restarts import Ending
from node.supervisor.event_loop import Connection, EventLoop
from node.supervisor.job_log import Log
from node.supervisor.outcome import Outcome
from node.supervisor.processes import JobProcess, Processes
from node.supervisor.stalls import Stalls
from node.wire import Command, Message
from train.job.cost import cost_of

ROLES_END_S = 5.0


class JobSide(Struct, frozen=True):
    """The parts of its job that an attempt uses.

    say(text): shows the user a message. warn(about, text): sets the warning about a subject. tell_stall(text, seconds):
    `tell` of Stalls. note_change(): called when the record has changed. note_running(): called when all processes have
    started. step(): handles the next events.
    """

    loop: EventLoop
    log: Log
    say: Callable[[str], None]
    warn: Callable[[str, Optional[str]], None]
    tell_stall: Callable[[str, Optional[float]], None]
    note_change: Callable[[], None]
    note_running: Callable[[], None]
    step: Callable[[], None]


class Attempt:
    """An attempt. number: 1 for the first. order: the attempt's own, with its hosts. started_at: None before `start`.

    is_over: whether no more of its processes may start.
    """

    def __init__(self, number: int, order: Order, job: JobSide, first_process: int = 0) -> None:
        self.number, self.order, self._job = number, order, job
        loop = job.loop
        self.processes = Processes(order, first_process)
        self.outcome = Outcome(order, self.processes, loop, job.say, job.warn)
        self.stalls = Stalls(order, self.processes, loop, job.tell_stall, self.outcome.end_stalled)
        self.children = launching.Children(order, loop, self.hear_child, self.outcome.look_for_unstarted)
        self.interruption = Interruption(order, self.processes, loop, job.say, self.outcome.interrupt)
        self.started_at: Optional[float] = None
        self.ended_at: Optional[float] = None
        self.lost: tuple[str, ...] = ()
        self.unhealthy: tuple[str, ...] = ()  # those that can be replaced
        self.lost_batches: Optional[int] = None
        self.resumed: Optional[dict[str, int]] = None  # the batch from which it resumes
        self.is_running = self.is_over = False

    def use(self, order: Order) -> None:
        """Runs on the hosts of the job's order, which have changed."""
        ours = restarts.next_order(order, self.number)
        self.order.hosts, self.order.hostfile = ours.hosts, ours.hostfile
        self.processes.use(ours.hosts)

    @property
    def done(self) -> Optional[dict[str, int]]:
        """The last batch that it has finished, as far as that is known."""
        return self.interruption.progress or self.interruption.saved

    def start(self, duration_s: Optional[float]) -> None:
        """Starts the set-up or, if there is none, the job. duration_s: how long it may run. Raises OSError."""
        self.started_at = time.time()
        self.outcome.watch_silence()
        self.outcome.watch_duration(duration_s)
        if self.processes.preparation():
            self.children.start_setups()
        else:
            self.launch()

    def launch(self) -> None:
        """Starts the engine's launcher, or the processes themselves. Raises OSError."""

        def take_in(child: launching.Child) -> JobProcess:
            process = self.processes.add("launcher", self.processes.head)
            process.pid, process.started_at = child.pid, time.time()
            self.take_in(process)
            return process

        self.children.start_launches(take_in)
        self.outcome.watch_start()

    # -- messages ------------------------------------------------------------------------------------------------

    def hear(self, connection: Connection, message: Message) -> None:
        """Handles a message from a program that runs or connects a process."""
        process = connection.owner
        if isinstance(process, JobProcess):
            process.heard_at = time.monotonic()
            if message.line is not None:
                self.hear_line(process, message.line)
            elif not message.alive:
                self.hear_report(process, message)
        elif message.role is not None and message.host is not None:
            self.introduce(connection, message.role, message.host, message)

    def hear_line(self, process: JobProcess, text: str) -> None:
        """Handles a line of a process's output."""
        if process.role == "launcher" and wire.is_waiting(text):
            self.children.reach(text.encode())
        elif process.role == "launcher" and self.is_over:
            pass  # such as torchrun's traceback for the signal that ends it: the user already sees the reason
        else:
            self._job.log.put_line(process.number, text)
            if process.role == "worker":
                self.hear_worker(process, text)

    def hear_worker(self, process: JobProcess, text: str) -> None:
        """Handles a line of a worker's output."""
        self.stalls.hear_line(process, text)
        if self.resumed is None and self.number > 1:
            self.resumed = restarts.parse_resumed(text)
            if self.resumed is not None:
                self._job.note_change()  # the record of the previous attempt contains the number of lost batches
        if kv_store.is_progress(text) and self.outcome.awaits_kv_store():
            self.outcome.note_progress()

    def introduce(self, connection: Connection, role: str, host: str, message: Message) -> None:
        """Adds a new process of the job, and sends it its order."""
        if self.is_over:
            self._job.loop.drop(connection)
            return
        process = self.processes.add(role, host, connection)
        connection.owner, process.by = process, message.by
        launched = message.launched
        if role == "scheduler":  # servers and workers print where they listen
            process.bound = (launched["DMLC_PS_ROOT_URI"], int(launched["DMLC_PS_ROOT_PORT"]))
        if role == "worker":
            process.rank = self.processes.engine.find_rank(launched)
        self.take_in(process)
        connection.put(self.processes.order_of(process, launched, attempt=self.number))
        self.interruption.tell(process)

    def take_in(self, process: JobProcess) -> None:
        """Adds a new process to the log and the record."""
        log = self._job.log
        log.put(p=process.number, role=process.role, host=process.host)
        if process.rank is not None:
            log.put(p=process.number, rank=process.rank)
        if process.pid is not None:
            log.put(p=process.number, pid=process.pid)
        self._job.note_change()

    def hear_report(self, process: JobProcess, message: Message) -> None:
        """Handles a report from a process's program."""
        if message.started is not None:
            process.pid, process.started_at = message.started, time.time()
            self._job.log.put(p=process.number, pid=process.pid)
            if not self.is_running and self.processes.all_started() and not self.is_over:
                self.is_running = True
                self._job.note_running()
                self.outcome.all_started()
                self.stalls.start()
        elif message.rank is not None:
            self.hear_rank(process, message.rank)
        elif message.bound is not None:
            process.bound = message.bound
            self.outcome.check_joined()
        elif message.exit is not None:
            process.note_end(message)
            self.note_exit(process, message.exit, message.signal)
            self.stalls.hear_exit(process)
            self.outcome.note_exit(process)
            if process.role == "setup" and self.processes.is_set_up() and not self.is_over:
                self.launch()
        elif message.lost is not None:
            self.outcome.note_unreachable(process, message.lost)
        elif message.copying:
            self.outcome.note_copying()
        else:
            self.hear_answer(process, message)

    def hear_answer(self, process: JobProcess, message: Message) -> None:
        """Handles an answer from a process's program."""
        if message.blocked is not None:
            process.blocked = message.blocked
        elif message.look is not None:
            self.stalls.hear_look(process, message.look)
        elif message.unread is not None:
            self.outcome.note_unread(process, message.unread)
        elif message.dead is not None:
            self.outcome.fail(f"{process.host}: {message.dead}")
        elif message.boot is not None:
            process.boot = message.boot
        elif message.progress is not None:
            self.interruption.note_progress(message.progress)
            self.stalls.hear_progress()
        elif message.saved is not None:
            self.interruption.note_saved(process, message.saved)
        elif message.notice is not None:
            self.interruption.note_notice(process, message.notice)

    def hear_rank(self, process: JobProcess, rank: int) -> None:
        """Handles the report of a process's rank."""
        if process.rank is not None:
            return
        process.rank = rank
        self._job.log.put(p=process.number, rank=rank)
        self.outcome.check_joined()

    def note_exit(self, process: JobProcess, exit_code: int, number: Optional[int]) -> None:
        """Adds the end of a process to the log and the record."""
        process.exit_code, process.signal, process.ended_at = exit_code, number, time.time()
        self._job.log.end_output(process.number)
        self._job.log.put(p=process.number, exit=exit_code, signal=number)
        self._job.note_change()

    def hear_child(self, process: Optional[JobProcess], text: str) -> None:
        """Handles a line of launch.py, or of ssh_proxy.py, which prints only errors."""
        if self.ended_at is not None:
            pass  # from a program that does not end
        elif process is None:
            self._job.say("connecting to a node: " + text)
        else:
            self._job.log.put_line(process.number, text)

    def hear_end(self, connection: Connection) -> None:
        """Handles the end of a connection."""
        process = connection.owner
        if isinstance(process, JobProcess) and process.exit_code is None:
            self.look_at_children()  # launch.py may have ended, and the programs that it started with it
            self.outcome.note_lost(process)

    def look_at_children(self) -> None:
        """Handles the end of launch.py and of programs that connect to hosts, if any have ended."""
        for child, process, is_launcher in self.children.take_ended():
            code = child.returncode
            if process is not None and not self.is_over:  # else the supervisor has ended it
                self.note_exit(process, code if code >= 0 else 128 - code, -code if code < 0 else None)
            if not self.is_over:
                name = process.short_name if process is not None else ""
                self.outcome.note_child_end(name, child, is_launcher=is_launcher)

    # -- end -----------------------------------------------------------------------------------------------------

    @property
    def ending(self) -> Ending:
        """How it has ended. If the end of a node was announced, this explains all later failures."""
        found = self.outcome.decided or Ending("failed", 1, None, "error")
        if found.reason == "error" and not found.final and self.interruption.hosts:
            return replace(found, reason="notice", lost=self.interruption.hosts)
        return found

    def end(self) -> Left:
        """Ends all processes on all hosts, and finds the lost hosts.

        Returns the processes that did not end, also those on lost hosts.
        """
        job = self._job
        self.is_over = True
        self.children.takes_more = False
        job.loop.cancel_all()
        silent = self.outcome.silent_hosts
        running = [one for one in self.processes.all if one.connection is not None and one.connection.is_open]
        connections = [one.connection for one in running if one.connection is not None]
        for connection in connections:
            connection.put(Command(end=True))
        awaited = [one.connection for one in running if one.heard_at is not None and one.host not in silent]
        give_up_at = time.monotonic() + ROLES_END_S
        while time.monotonic() < give_up_at and any(one is not None and one.is_open for one in awaited):
            job.step()
        self.children.kill_launcher()
        for one in running:
            if one.connection in awaited and one.connection is not None and one.connection.is_open:
                self.outcome.suspects.add(one.host)
        suspects = self.outcome.suspects | {one.host for one in self.processes.all if one.failed}
        if self.number == 1:  # a host that has never answered is not lost, but set up incorrectly
            suspects &= {one.host for one in self.processes.all if one.boot is not None}
        unclean = self.processes.find_unclean() if self.started_at is not None else []
        if self.order.on_node_loss == "requeue":  # a node that goes down may report that its processes have failed
            unclean += [host for host in self.order.hosts if host.name in suspects and host not in unclean]
        boots: dict[str, str] = {}
        left = recovery.end_on(
            self.order.job, unclean, silent, head=self.order.hosts[0], python=self.order.python, boots=boots
        )
        for process in self.processes.all:
            if process.left:
                left.setdefault(process.host, []).extend(process.left)
        job.step()  # for the last messages
        for connection in connections:
            job.loop.drop(connection)
        job.loop.settle()
        job.loop.cancel_all()
        rebooted = [name for name, boot in boots.items() if self.processes.has_rebooted(name, boot)]
        self.lost = restarts.find_lost(self.ending, suspects, left, rebooted)
        self.ended_at = time.time()
        return left

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
        return protocol.Attempt(
            number=self.number,
            nodes=tuple(host.name for host in self.order.hosts),
            instances={host.name: host.instance_id for host in self.order.hosts if host.instance_id},
            started_at=started_at,
            ended_at=self.ended_at,
            exit_code=ending.exit_code if ending is not None else None,
            error=ending.error if ending is not None else None,
            reason=restarts.find_reason(reason, self.lost, self.unhealthy),
            lost=self.lost or self.unhealthy,
            lost_batches=self.lost_batches,
            cost_usd=cost_of(self.order.hosts, (self.ended_at or now) - started_at),
        )
