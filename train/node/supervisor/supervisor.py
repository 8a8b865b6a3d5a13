"""Runs one job from the head, in a session of its own that outlives its starter, jobs.py.

Reads the order, protocol.Order, as one line from stdin. Prints "ready" once record, lock and socket exist, or one line
with an error. SIGTERM and SIGINT stop the job.

It adds what launch.py and torchrun lack: one failed process ends the job everywhere, with that process's exit code,
and no process is left on any host. It never waits for a single process, host or reader.
"""

import os
import signal
import sys
import time
import traceback
from typing import Optional

from bootstrap.node import process_tree
from foundation.decode import decode
from foundation.file_lock import FileLock
from train.engines.engine import assign_hosts
from train.engines.schedulers import SCHEDULERS
from train.job import protocol
from train.job.protocol import JobHost, JobResult, JobState, Left, Order, Record, Stall
from train.node import instance_credentials, job_folder, wire
from train.node.role import environment
from train.node.supervisor import health, job_log, kv_store, launching, publish, recovery
from train.node.supervisor.allocation import Allocation
from train.node.supervisor.event_loop import Connection, EventLoop
from train.node.supervisor.outcome import Outcome
from train.node.supervisor.processes import JobProcess, Processes
from train.node.supervisor.stalls import Stalls
from train.node.wire import Command, Ended, Message

LOCK_TIMEOUT_S = 5.0
TURN_EVERY_S = 0.2
RECORD_EVERY_S = 0.5
ROLES_END_S = 5.0
COPY_S, LAST_COPY_S = 3.0, 30.0  # to S3: while followers of the job wait, and after that


def main() -> int:
    """Run the job."""
    order = decode(sys.stdin.buffer.readline(), Order)
    leave()
    held = FileLock(job_folder.path(order.job, "lock"))
    has_it = held.take(LOCK_TIMEOUT_S)
    record = job_folder.read_record(order.job)  # now nobody else writes it
    if not has_it or record is None or record.has_ended:
        sys.exit(f"{order.job}: another supervisor runs this job, or has ended it")
    environment.raise_open_files("auto")  # a process of the job needs two
    record.supervisor = protocol.Supervisor(pid=os.getpid(), start_time=process_tree.start_time(os.getpid()))
    try:
        job = Supervisor(order, record)
        job.log.reserve()
        job.save(lasting=True)
    except OSError as error:  # such as a full disk, where no file can hold the error
        sys.stdout.write(job_folder.describe(error) + "\n")
        return 1
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    devnull = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1):
        os.dup2(devnull, descriptor)
    job.run()
    return 0


def leave() -> None:
    """Become a daemon: a session of its own, no terminal, no parent that passes signals on."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    if os.fork():
        os._exit(0)  # the child continues, and runs the exit handlers
    os.setsid()
    os.chdir("/")


def take_credentials(order: Order) -> list[str]:
    """Replace the job's secrets by the instance's credentials, if it uses them; returns messages for the user.

    Raises CredentialsError.
    """
    if not order.nodes_credentials:
        return []
    keys = instance_credentials.wait_for()
    order.secrets = keys.variables
    is_staged = order.env.get("CLUSTER_DATA_MODE") == "stage"  # stage.py renews them
    return [] if is_staged else instance_credentials.render_expiry(keys.expiration)


class Supervisor:
    """One job. record: as it is to be on disk."""

    def __init__(self, order: Order, record: Record) -> None:
        self.order, self.record = order, record
        self.job = order.job
        self.log = job_log.Log(self.job)
        self.processes = Processes(order)
        self.turn = FileLock(os.path.join(job_folder.root(), "lock"))
        self.copying: Optional[publish.Copying] = None  # to S3
        self.allocation: Optional[Allocation] = None  # of a batch scheduler
        self.loop = EventLoop(job_folder.path(self.job, "socket"), self.hear, self.hear_end)
        self.outcome = Outcome(order, self.processes, self.loop, self.say, self.warn)
        self.stalls = Stalls(order, self.processes, self.loop, self.tell_stall, self.outcome.end_stalled)
        self.children = launching.Children(order, self.loop, self.hear_child, self.outcome.look_for_unstarted)
        self.warnings: dict[str, Optional[str]] = {}  # by their subject
        self.watchers: list[Connection] = []
        self.state: Optional[JobState] = None
        self.is_over = False  # no process of the job starts any more
        stop = self.outcome.stop
        self.loop.watch_signals({signal.SIGTERM: stop, signal.SIGINT: stop, signal.SIGCHLD: self.look_at_children})

    def run(self) -> None:
        """Run the job to its end."""
        try:
            self.wait_for_turn()
            self.allocate()
            while self.outcome.decided is None:
                self.step()
        except OSError as error:  # such as a full disk
            self.outcome.fail(f"{self.processes.head}: {job_folder.describe(error)}")
        except Exception as error:  # noqa: BLE001 - a bug here must not leave the job's processes behind
            self.outcome.fail(f"{self.processes.head}: the supervisor failed: {error!r}")
            for line in traceback.format_exc().splitlines():
                self.say(line)
        self.conclude(self.end())

    def step(self) -> None:
        """Handle the next events. Raises OSError."""
        self.loop.step()
        self.pass_on_said()
        self.log.write()

    def pass_on_said(self) -> None:
        """Show the user the messages about copying to S3."""
        for line in self.copying.take_said() if self.copying is not None else ():
            self.say(line)

    def say(self, text: str) -> None:
        """Show the user a message."""
        self.log.put(say=text)

    def warn(self, about: str, text: Optional[str]) -> None:
        """Set the warning about a subject in log and record; None withdraws it."""
        if self.warnings.get(about) == text:
            return
        self.warnings[about] = text
        self.record.warnings = tuple(one for one in self.warnings.values() if one is not None)
        self.log.put(warnings=self.record.warnings)
        self.save_soon()

    def tell_stall(self, text: str, seconds: Optional[float]) -> None:
        """Tell the user that the job has made no progress for `seconds`, and why; None: it does again."""
        since = 0.0 if seconds is None else round(time.time() - seconds, 3)
        self.log.put(say=text, stalled_since=since)
        self.record.stall = Stall(text=text, since=since) if since else None
        self.save_soon()

    # -- start ---------------------------------------------------------------------------------------------------

    def wait_for_turn(self) -> None:
        """Jobs run one at a time, in the order of submission."""
        before = list(self.order.before)
        self.set_state("queued" if before else "starting")
        while self.outcome.decided is None:
            while before and not recovery.is_alive(before[0]):
                recovery.recover(before.pop(0))
            if not before and self.turn.take_now():
                self.set_state("starting")
                return
            self.loop.after("turn", TURN_EVERY_S if before else 0.01, lambda: None)
            self.step()

    def allocate(self) -> None:
        """Start the job, or first request its nodes from the batch scheduler."""
        order = self.order
        if order.scheduler is None or order.request is None:
            self.start()
        elif self.outcome.decided is None:
            self.set_state("pending")
            self.allocation = Allocation(
                SCHEDULERS[order.scheduler],
                order.request,
                order.hosts,
                self.loop,
                note=self.note_pending,
                grant=self.take_granted,
                fail=self.outcome.fail,
                say=self.say,
                setup=order.setup,
            )
            self.allocation.start()

    def note_pending(self, number: str, reason: str) -> None:
        """The batch scheduler has accepted the request, or says why it is pending. Raises OSError."""
        title = SCHEDULERS[self.order.scheduler or ""].title
        if number != self.record.job_number:
            self.say(f"{title} job {number} requests the nodes")
        if reason:
            self.say(f"{title} job {number} is pending: {reason}")
        self.record.job_number, self.record.pending = number, reason or None
        self.save(lasting=True)  # without the number, nobody could give the nodes back

    def take_granted(self, hosts: tuple[JobHost, ...]) -> None:
        """The batch scheduler has assigned these hosts. Raises OSError."""
        assign_hosts(self.order, hosts)
        self.processes.use(self.order.hosts)
        self.record.nodes = self.order.hosts
        self.say(f"{', '.join(host.name for host in hosts)} assigned")
        self.set_state("starting")
        self.start()

    def start(self) -> None:
        """Start the job's set-up, or if there is none the job. Raises OSError."""
        if self.outcome.decided is not None:
            return
        order = self.order
        for line in take_credentials(order):
            self.say(line)
        if order.output_url:
            secrets = None if order.nodes_credentials else order.secrets
            self.copying = publish.Copying(self.job, order.output_url, order.env, secrets)
        self.outcome.watch_silence()
        self.outcome.watch_duration()
        if self.processes.preparation():
            self.children.start_setups()
        else:
            self.launch()

    def launch(self) -> None:
        """Start the engine's launcher, or the processes themselves. Raises OSError."""

        def take_in(child: launching.Child) -> JobProcess:
            process = self.processes.add("launcher", self.processes.head)
            process.pid, process.started_at = child.pid, time.time()
            self.take_in(process)
            return process

        self.children.start_launches(take_in)
        self.outcome.watch_start()

    # -- messages ------------------------------------------------------------------------------------------------

    def hear(self, connection: Connection, line: bytes) -> None:
        """One line over the socket."""
        process = connection.owner
        try:
            message = decode(line, Message)
        except ValueError:  # from a login shell, or a damaged node
            return
        if isinstance(process, JobProcess):
            process.heard_at = time.monotonic()
            if message.line is not None:
                self.hear_line(process, message.line)
            elif not message.alive:
                self.hear_report(process, message)
        elif message.role is not None and message.host is not None:
            self.introduce(connection, message.role, message.host, message)
        if message.watch:
            self.watchers.append(connection)
        if message.stop:
            self.outcome.stop()

    def hear_line(self, process: JobProcess, text: str) -> None:
        """A line of a process's output."""
        if process.role == "launcher" and wire.is_waiting(text):
            self.children.reach(text.encode())
        elif process.role == "launcher" and self.is_over:
            pass  # such as torchrun's traceback for the signal that ends it: the reason is on the screen
        else:
            self.log.put_line(process.number, text)
            if process.role == "worker":
                self.hear_worker(process, text)

    def hear_worker(self, process: JobProcess, text: str) -> None:
        """A line of a worker's output."""
        self.stalls.hear_line(process, text)
        if kv_store.is_progress(text) and self.outcome.awaits_kv_store():
            self.outcome.note_progress()

    def introduce(self, connection: Connection, role: str, host: str, message: Message) -> None:
        """Add a new process of the job, and send it its order."""
        if self.is_over:
            self.loop.drop(connection)
            return
        process = self.processes.add(role, host, connection)
        connection.owner, process.by = process, message.by
        launched = message.launched
        if role == "scheduler":  # servers and workers print where they listen
            process.bound = (launched["DMLC_PS_ROOT_URI"], int(launched["DMLC_PS_ROOT_PORT"]))
        if role == "worker":
            process.rank = self.processes.engine.find_rank(launched)
        self.take_in(process)
        connection.put(self.processes.order_of(process, launched))

    def take_in(self, process: JobProcess) -> None:
        """Add a new process to log and record."""
        self.log.put(p=process.number, role=process.role, host=process.host)
        if process.rank is not None:
            self.log.put(p=process.number, rank=process.rank)
        if process.pid is not None:
            self.log.put(p=process.number, pid=process.pid)
        self.log.open_file(process.number, self.processes.file_name(process))
        self.save_soon()

    def hear_report(self, process: JobProcess, message: Message) -> None:
        """A report from a process's program."""
        if message.started is not None:
            process.pid, process.started_at = message.started, time.time()
            self.log.put(p=process.number, pid=process.pid)
            if self.record.started_at is None and self.processes.all_started() and not self.is_over:
                self.record.started_at = time.time()
                self.set_state("running")
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
            self.outcome.note_exit(process)
            if process.role == "setup" and self.processes.is_set_up() and not self.is_over:
                self.launch()
        elif message.lost is not None:
            self.outcome.note_unreachable(process, message.lost)
        else:
            self.hear_answer(process, message)

    def hear_answer(self, process: JobProcess, message: Message) -> None:
        """An answer from a process's program."""
        if message.blocked is not None:
            process.blocked = message.blocked
        elif message.look is not None:
            self.stalls.hear_look(process, message.look)
        elif message.unread is not None:
            self.outcome.note_unread(process, message.unread)
        elif message.dead is not None:
            self.outcome.fail(f"{process.host}: {message.dead}")

    def hear_rank(self, process: JobProcess, rank: int) -> None:
        """A process has got its rank."""
        if process.rank is not None:
            return
        old = self.processes.file_name(process)
        process.rank = rank
        self.log.put(p=process.number, rank=rank)
        self.log.rename_file(old, self.processes.file_name(process))
        self.outcome.check_joined()

    def note_exit(self, process: JobProcess, exit_code: int, number: Optional[int]) -> None:
        """Note the end of a process in log and record."""
        process.exit_code, process.signal, process.ended_at = exit_code, number, time.time()
        self.log.put(p=process.number, exit=exit_code, signal=number)
        self.save_soon()

    def hear_child(self, process: Optional[JobProcess], text: str) -> None:
        """A line of launch.py, or of ssh_proxy.py, which prints only errors."""
        if process is None:
            self.say("connecting to a node: " + text)
        else:
            self.log.put_line(process.number, text)

    def hear_end(self, connection: Connection) -> None:
        """The end of a connection."""
        process = connection.owner
        if connection in self.watchers:
            self.watchers.remove(connection)
        if isinstance(process, JobProcess) and process.exit_code is None:
            self.look_at_children()  # launch.py may have ended, and with it the programs that it started
            self.outcome.note_lost(process)

    def look_at_children(self) -> None:
        """launch.py, or a program that connects to a host, may have ended."""
        for child, process, is_launcher in self.children.take_ended():
            code = child.returncode
            if process is not None and not self.is_over:  # else the supervisor has ended it
                self.note_exit(process, code if code >= 0 else 128 - code, -code if code < 0 else None)
            if not self.is_over:
                name = process.short_name if process is not None else ""
                self.outcome.note_child_end(name, child, is_launcher=is_launcher)

    # -- record --------------------------------------------------------------------------------------------------

    def set_state(self, state: JobState) -> None:
        """Set the state in log and record."""
        if state != self.state:
            self.state = self.record.state = state
            self.log.put(state=state)
            self.loop.after("record", 0.0, self.save)  # at once, for those who read the record

    def save_soon(self) -> None:
        """Write the record a moment later, together with other changes."""
        if not self.loop.has("record") and not self.is_over:
            self.loop.after("record", RECORD_EVERY_S, self.save)

    def save(self, *, lasting: bool = False) -> None:
        """Write the record now. Raises OSError."""
        self.record.roles = tuple(process.record() for process in self.processes.all)
        job_folder.write_record(self.record, lasting=lasting)

    # -- end -----------------------------------------------------------------------------------------------------

    def end(self) -> Left:
        """End all processes on all hosts; returns those that do not end."""
        self.set_state("ending")
        self.is_over = True
        self.children.takes_more = False
        self.loop.cancel_all()
        silent = self.outcome.silent_hosts
        running = [one for one in self.processes.all if one.connection is not None and one.connection.is_open]
        connections = [one.connection for one in running if one.connection is not None]
        for connection in connections:
            connection.put(Command(end=True))
        awaited = [one.connection for one in running if one.heard_at is not None and one.host not in silent]
        give_up_at = time.monotonic() + ROLES_END_S
        while time.monotonic() < give_up_at and any(one is not None and one.is_open for one in awaited):
            self.step_quietly()
        self.children.kill_launcher()
        unclean = self.processes.find_unclean()
        left = recovery.end_on(self.job, unclean, silent, head=self.order.hosts[0], python=self.order.python)
        for process in self.processes.all:
            if process.left:
                left.setdefault(process.host, []).extend(process.left)
        error = self.allocation.cancel() if self.allocation is not None else None
        if error is not None:
            self.say(error)
        self.step_quietly()  # for the last messages
        for connection in connections:
            self.loop.drop(connection)
        return left

    def look_at_health(self) -> str:
        """The job has failed: which of its nodes are unhealthy, in words; also a warning. "" if none is."""
        order = self.order
        if not self.processes.all:
            return ""  # nothing ran on a node
        try:
            found = health.find_unhealthy(
                order.hosts, self.outcome.silent_hosts, head=order.hosts[0], python=order.python
            )
            health.keep(order.hosts, found)
        except OSError as error:  # such as a full disk
            self.say(f"cannot check the nodes' health: {job_folder.describe(error)}")
            return ""
        text = health.render(found)
        if text:
            self.warn("health", text)
        return text

    def step_quietly(self) -> None:
        """A step that fails the job if the log cannot be written."""
        try:
            self.step()
        except OSError as error:
            self.outcome.fail(f"{self.processes.head}: {job_folder.describe(error)}")

    def conclude(self, left: Left) -> None:
        """Write the result to disk and S3, and send it to everybody who waits for it."""
        state, exit_code, error = self.outcome.decided or ("failed", 1, None)
        if left and state == "done":
            state, exit_code, error = "failed", 1, "the job succeeded, but left processes behind"
        unhealthy = self.look_at_health() if state == "failed" else ""
        error = "\n".join(filter(None, [error, unhealthy])) or None
        result = JobResult(state=state, exit_code=exit_code, error=error, left=left)
        record = self.record
        record.state, record.exit_code, record.error, record.left = state, exit_code, error, left
        record.ended_at, record.stall = time.time(), None
        self.pass_on_said()
        launching.clean_up(self.job)
        self.log.make_room()
        self.log.put(state=state)
        self.log.put(result=result)
        for keep in (self.log.write, lambda: self.save(lasting=True)):
            try:
                keep()
            except OSError:
                pass  # those who wait get the result below; follow.py and recovery.py complete the rest
        self.log.close()
        is_copied = self.copying is None or self.copying.finish(COPY_S)
        job_folder.remove(job_folder.path(self.job, "socket"))
        self.turn.release()
        for watcher in self.watchers:  # later clients read the record
            watcher.put(Ended(result=result))
        self.loop.flush(self.watchers, ROLES_END_S)
        if self.copying is not None and not is_copied:
            self.copying.finish(LAST_COPY_S)
