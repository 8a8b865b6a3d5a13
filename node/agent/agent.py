"""Runs all processes of a job on one node: starts them, passes on their output, and ends them.

    agent              reads the order, wire.AgentOrder, as one line from stdin, then messages of the supervisor;
                       writes its own to stdout (wire.py). On the head the supervisor starts it, on others its ssh
    agent end JOB      ends the job's processes and containers on this host; prints those that do not end, wire.Remains

An engine's launcher starts shim.py in place of each process, which announces the process on the agent's socket. All
processes are children of the agent, each in a session of its own. It adopts their orphans, and finds them by their
mark. When the supervisor is lost (end of input, or silence), it ends all of them. If the agent is killed, the kernel
kills its children, and the supervisor has the rest ended by `agent end`.

Secrets come with the orders and go into the processes' environment, never to a command line or a file.
"""

import asyncio
import contextlib
import glob
import importlib
import os
import shutil
import signal
import socket
import sys
import time
from collections.abc import Collection, Mapping
from typing import Any

from msgspec.structs import replace

from foundation.decode import decode
from node import children, job_folder, wire
from node.agent import clues, environment, nccl_ras, stack, traffic, work_folder
from node.agent.container import EnginesLast, find_mounts, remove_all, start_container
from node.agent.data import JobData
from node.agent.notice import PROGRESS, SAVED, NoticeFile, place_of
from node.agent.notice import watch as watch_notices
from node.agent.process import MARK, JobProcess
from node.agent.volumes import watch as watch_volumes
from node.engines import ENGINES
from node.protocol import Container, NewFiles
from node.samples import Sample
from node.setup import process_tree
from node.setup.containers.engine import Mount
from node.tasks import Tasks
from node.wire import (
    AgentOrder,
    Announced,
    Blocked,
    Booted,
    Closed,
    End,
    Inspect,
    Ping,
    Placed,
    Reach,
    Refuse,
    Remains,
    Reported,
    RoleOrder,
    Sampled,
    SaveCheckpoint,
    Start,
    TakeStack,
    ToAgent,
    Used,
    VolumeDead,
)

PING_EVERY_S = 2.0
START_S = 4.0  # of a job's processes, which take all of the CPU: importing psutil would delay them
LOOK_FOR_CHECKPOINT_S = 0.1
PENDING_BYTES = 1 << 17  # then processes whose output cannot be sent have to wait
FLUSH_S = 30.0
LONGEST_LINE = 1 << 20
STACKS_AT_ONCE = 4
TRACKED = 8  # what goes to other hosts counts less than files: trackers go on sending a few kB/s while a job hangs
PIPES = "pipes"
FOLDER = "/tmp/cluster-"  # noqa: S108 - not in the home folder: network file systems may have no sockets


def main() -> int:
    """Runs the subcommand on the command line."""
    if sys.argv[1:2] == ["end"]:
        return end(sys.argv[2])
    try:
        line, rest = wire.read_line(0)
    except ConnectionError:
        return 1  # the supervisor has ended, and nothing was started
    try:
        asyncio.run(serve(decode(line, AgentOrder), rest))
    except OSError as error:  # such as a full disk, before anything was started
        sys.exit(job_folder.describe(error))
    return 0


async def serve(order: AgentOrder, received: bytes) -> None:
    """Runs the agent, and ends this program: a thread that waits for a dead volume would keep it."""
    await Agent(order).run(received)
    os._exit(0)


def end(job: str) -> int:
    """Ends a job's processes and containers on this host."""
    left = asyncio.run(children.end_processes(lambda: process_tree.find(job), process_tree.our_programs_last))
    for folder in glob.glob(f"{FOLDER}{job}-*"):
        shutil.rmtree(folder, ignore_errors=True)  # of a killed agent
    found = [*((pid, words) for pid, _, words in left), *asyncio.run(remove_all(job))]
    wire.write_all(1, wire.encode(Remains(left=found, boot=process_tree.boot())))
    return 0


class Agent(asyncio.Protocol):
    """The agent of one job on this host, which speaks with the supervisor over stdin and stdout.

    socket: the path to which shims connect. pipes: the folder of those of flight_recorder.py.
    """

    def __init__(self, order: AgentOrder) -> None:
        self.order = order
        folder = make_folder(order.spec.id, order.number)
        self.socket, self.pipes = os.path.join(folder, "socket"), os.path.join(folder, PIPES)
        self.has_room = asyncio.Event()  # for output
        self.has_room.set()
        self._loop = asyncio.get_running_loop()
        self._tasks = Tasks(self._loop, self._fail)
        self._processes: dict[int, JobProcess] = {}
        self._shims: list[asyncio.Future[Start | None]] = []  # the answers to their announcements
        self._is_over = asyncio.Event()
        self._is_lost = self._is_closed = self._is_noticed = self._is_ending = False
        self._received_at = time.monotonic()
        self._placing = asyncio.Lock()
        self._looking = asyncio.Semaphore(STACKS_AT_ONCE)
        self.data = JobData(order.spec.id, self._tasks)
        self._containers: dict[tuple[Mount, ...], tuple[str, asyncio.Future[str | None]]] = {}  # by their mounts
        self._clues = clues.Watch()
        self._finding: asyncio.Task[None] | None = None  # the clues to a failure
        self._notice_file = NoticeFile(place_of(order.spec.id, order.attempt))
        self._input = wire.LineBuffer(limit=LONGEST_LINE)

    async def run(self, received: bytes) -> None:
        """Serves the supervisor until it has ended the job, or is lost. received: bytes after the order."""
        children.adopt_orphans()
        process_tree.raise_open_files("auto")  # a process needs one, and a shim another
        self._server = await asyncio.start_unix_server(self._serve_shim, self.socket, limit=LONGEST_LINE)
        await self._connect()
        for number in (signal.SIGTERM, signal.SIGHUP):
            self._loop.add_signal_handler(number, self._lose)
        self.send(Booted(process_tree.boot()))
        if self.order.volumes:
            self._tasks.begin(watch_volumes(self.order.volumes, lambda text: self.send(VolumeDead(text))))
        if self.order.metadata is not None:
            self._tasks.begin(watch_notices(self.send, self.order.metadata))
        self.data_received(received)
        self._tasks.begin(self._ping())
        self._tasks.begin(self._watch_samples())
        await self._is_over.wait()

    # -- messages ------------------------------------------------------------------------------------------------

    async def _connect(self) -> None:
        """Opens stdin and stdout: two pipes, or one socket, as from sshd."""
        if os.path.samestat(os.fstat(0), os.fstat(1)):
            await self._loop.connect_accepted_socket(lambda: self, socket.socket(fileno=os.dup(0)))
        else:
            await self._loop.connect_write_pipe(lambda: self, os.fdopen(1, "wb", buffering=0, closefd=False))
            await self._loop.connect_read_pipe(lambda: self, os.fdopen(0, "rb", buffering=0, closefd=False))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Handles the beginning of the connection."""
        if isinstance(transport, asyncio.WriteTransport):
            self._output = transport
            transport.set_write_buffer_limits(PENDING_BYTES)

    def send(self, message: Any) -> None:
        """Sends a message to the supervisor."""
        if not self._output.is_closing():
            self._output.write(wire.encode(message))

    def pause_writing(self) -> None:
        """Has processes wait whose output cannot be sent."""
        self.has_room.clear()

    def resume_writing(self) -> None:
        """Lets them go on."""
        self.has_room.set()

    def connection_lost(self, _error: Exception | None) -> None:
        """Handles the end of the connection."""
        if self._is_closed:
            self._is_over.set()
        else:
            self._lose()

    def data_received(self, data: bytes) -> None:
        """Handles messages of the supervisor."""
        self._received_at = time.monotonic()
        for line in self._input.feed(data):
            self._receive(decode(line, ToAgent))  # type: ignore[arg-type] # a union

    def _receive(self, message: Any) -> None:
        """Carries out a message of the supervisor."""
        if isinstance(message, Start) and message.shim is None:
            self._start(message)
        elif isinstance(message, Start | Refuse) and message.shim is not None:
            self._shims[message.shim].set_result(message if isinstance(message, Start) else None)
        elif isinstance(message, Reach):
            self._tasks.begin(self._reach(message))
        elif isinstance(message, Inspect) and message.p in self._processes:
            self._tasks.begin(self._describe_use(self._processes[message.p], message.hosts))
        elif isinstance(message, TakeStack) and message.p in self._processes:
            self._tasks.begin(self._take_stack(self._processes[message.p], message))
        elif isinstance(message, SaveCheckpoint):
            self._save_checkpoint()
        elif isinstance(message, End):
            self._end(message.copy_s)

    def _fail(self, error: BaseException) -> None:
        """Ends the agent because of an error, which is a bug, with a traceback."""
        self._loop.call_exception_handler({"message": "the agent failed", "exception": error})
        self._lose()

    async def _ping(self) -> None:
        """Tells the supervisor every few seconds that this host is alive, and what the job's program reports."""
        while True:
            pause_s = LOOK_FOR_CHECKPOINT_S if self._is_noticed else PING_EVERY_S
            await asyncio.sleep(pause_s)
            self._report_files()
            if not self._output.get_write_buffer_size():
                is_placing = self._placing.locked() and not self._is_ending
                self.send(Ping(is_copying=self.data.is_finishing or is_placing))
            patience_s = self.order.patience_s
            if patience_s is not None and time.monotonic() > self._received_at + patience_s:
                self._lose()  # the supervisor should notice first

    async def _watch_samples(self) -> None:
        await asyncio.sleep(START_S)
        sampler = await asyncio.to_thread(importlib.import_module, "node.agent.sampler")
        await sampler.watch(self.order.spec.id, self.order.host, MARK, self._send_sample)

    def _send_sample(self, sample: Sample) -> None:
        if not self._output.get_write_buffer_size():  # otherwise the supervisor has enough to read
            self.send(Sampled(sample))

    # -- processes -----------------------------------------------------------------------------------------------

    def _start(self, start: Start) -> tuple[JobProcess, "asyncio.Task[None]"]:
        """Starts a process. Returns it, and the task that runs it."""
        process = self._processes[start.p] = JobProcess(start, self)
        return process, self._tasks.begin(process.run())

    def note_failure(self) -> None:
        """Has the clues to the first failure of a process found and sent."""
        if self._finding is None:
            self._finding = self._tasks.begin(self._clues.send_to(self.send))

    async def _serve_shim(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Starts a process that its shim announces, and passes its exit code on.

        The shim may be in a container, with any program in its place. If it ends first, as when torchrun ends its
        ranks, the process is ended.
        """
        try:
            launched = decode(await reader.readline(), dict[str, str])
        except (ValueError, ConnectionError):
            writer.close()
            return
        answer: asyncio.Future[Start | None] = self._loop.create_future()
        self._shims.append(answer)
        self.send(Announced(len(self._shims) - 1, select_own(launched, self.order.spec.train.launcher)))
        start = await answer
        if start is not None:
            process, running = self._start(start)
            gone = asyncio.ensure_future(reader.read(1))
            await asyncio.wait([running, gone], return_when=asyncio.FIRST_COMPLETED)
            if not running.done():
                await self.data.note_open()
            process.end()
            await running
            writer.write(b"%d\n" % (process.exit_code or 0))
        writer.close()

    async def place_files(self, folder: str) -> str | None:
        """Makes the job's working folder, once, and the folder of a process. Returns why that failed, or None."""
        async with self._placing:
            return await asyncio.to_thread(self._place_files, folder)

    def _place_files(self, folder: str) -> str | None:
        order = self.order
        try:
            work_folder.place(order.spec.id, order.cwd, order.tree, attempt=order.attempt)
            os.makedirs(folder, exist_ok=True)  # without files, [train] cwd is not in the copy
        except OSError as error:
            return job_folder.describe(error)
        return None

    async def open_container(
        self, order: RoleOrder, wanted: Container, env: Mapping[str, str]
    ) -> tuple[str, str | None]:
        """Starts the container of the job's processes, once. Returns its name, and why it does not run, or None.

        A process that needs another mount, such as Open MPI's folders, gets another container. Raises OSError.
        """
        own = os.path.dirname(self.socket)  # for the ranks that a launcher announces
        mounts = [(own, own, True), (self.pipes, self.pipes, False), *find_mounts(self.order, order, wanted, env)]
        key = tuple(mounts)
        if key not in self._containers:
            name = f"{process_tree.container_prefix(self.order.spec.id)}{os.getpid()}-{len(self._containers)}"
            opening = start_container(self.order.spec.id, wanted, name, mounts)
            self._containers[key] = (name, asyncio.ensure_future(opening))
        name, opened = self._containers[key]
        return name, await asyncio.shield(opened)

    async def _describe_use(self, process: JobProcess, hosts: Collection[str]) -> None:
        pids = [pid for pid, _, _ in process.find()]
        cpu_s, size_bytes, stopped = process_tree.describe_use(pids)
        recorded = process.recorder.was_written()
        tracked = await traffic.count_bytes(pids, hosts)
        self.send(Used(process.number, cpu_s, size_bytes + tracked // TRACKED, stopped, recorded))

    async def _take_stack(self, process: JobProcess, wanted: TakeStack) -> None:
        pids = {pid for pid, _, _ in process_tree.find(self.order.spec.id)} if wanted.nccl else set()
        nccl = asyncio.ensure_future(nccl_ras.ask(pids))
        recorded = asyncio.ensure_future(process.recorder.read()) if wanted.recorder else None
        async with process.looking, self._looking:  # not all at once, beside the processes that train
            location = await stack.take(process.find(), native=wanted.native, whole=wanted.whole)
        location = replace(location, nccl=await nccl, collectives=await recorded if recorded else None)
        self.send(Placed(process.number, location, wanted.asked))

    async def _reach(self, message: Reach) -> None:
        found = await asyncio.to_thread(environment.find_unreachable, message.addresses)
        self.send(Blocked(tuple(found)))

    # -- notices -------------------------------------------------------------------------------------------------

    def _save_checkpoint(self) -> None:
        """Tells the job's program to save a checkpoint."""
        if self._is_noticed:
            return
        self._is_noticed = True
        for process in self._workers():
            try:
                self._notice_file.announce(process.find())
            except OSError as error:  # such as a full disk
                process.message(f"the program cannot be told to save a checkpoint: {job_folder.describe(error)}")

    def _workers(self) -> list[JobProcess]:
        return [one for one in self._processes.values() if one.order.role in ("worker", "server")]

    def _report_files(self) -> None:
        """Reports the numbers that the program has written next to its notice file."""
        if not self._workers():
            return
        saved = self._notice_file.read_new(SAVED)
        progress = self._notice_file.read_new(PROGRESS)  # not older than the checkpoint
        if progress or saved is not None:
            self.send(Reported(progress or None, saved))

    # -- end -----------------------------------------------------------------------------------------------------

    def _end(self, copy_s: float | None) -> None:
        """Ends the job's processes and this program. Of a second call, only the time counts."""
        self.data.limit_copy(copy_s)
        if not self._is_ending:
            self._is_ending = True
            self._tasks.begin(self._close())

    async def _close(self) -> None:
        """Ends all processes, and reports what they leave."""
        self.data.stop()
        await self.data.note_open()
        for process in self._processes.values():
            process.end()
        await asyncio.gather(*(process.has_ended.wait() for process in self._processes.values()))
        if self.data.begin_to_finish():
            self.send(Ping(is_copying=True))  # the end of containers takes longer than the supervisor waits
        if self._finding is not None:
            await asyncio.wait([self._finding])
        if self._containers:  # their first programs
            await children.end_processes(process_tree.find_descendants, EnginesLast())
        remaining = await remove_all(self.order.spec.id) if self._containers else []
        left = await children.end_processes(process_tree.find_descendants, process_tree.our_programs_last)
        left = sorted(
            {
                *left,
                *(one for process in self._processes.values() for one in process.left if process_tree.is_alive(one)),
            }
        )
        self._report_files()
        if not left:
            await self.data.finish()
        await self.data.close()
        self._server.close()
        shutil.rmtree(os.path.dirname(self.socket), ignore_errors=True)
        files = await asyncio.to_thread(self._count_files)
        self.send(Closed((*((pid, words) for pid, _, words in left), *remaining), files))
        self._is_closed = True
        self._output.close()
        self._loop.call_later(FLUSH_S, self._is_over.set)  # for a supervisor that reads no more

    def _count_files(self) -> NewFiles | None:
        if not self._processes:
            return None
        found = work_folder.count_new(self.order.spec.id, self.order.host, self.data.is_copied)
        if not found.count and not found.copied and not found.is_part:
            return None
        with contextlib.suppress(OSError):  # a full disk
            open(job_folder.path(self.order.spec.id, job_folder.FILES), "w").close()
        return replace(found, is_left=self.data.is_left)

    def _lose(self) -> None:
        """Ends all processes of the job on this host, and then this program, because the supervisor is lost."""
        if self._is_lost:
            return
        self._is_lost = True
        self._output.abort()
        self.has_room.set()
        self._tasks.begin(self._end_all())

    async def _end_all(self) -> None:
        """Ends its processes. On the head, the supervisor has the job's id too, and may live."""
        try:
            await children.end_processes(self._find_all, process_tree.our_programs_last)
            await remove_all(self.order.spec.id)  # otherwise the engine lists them for ever
            shutil.rmtree(os.path.dirname(self.socket), ignore_errors=True)
        finally:
            self._is_over.set()

    def _find_all(self) -> list[process_tree.Process]:
        """Returns its descendants, and its processes in containers, which may have other parents."""
        contained = (process for process in self._processes.values() if process.order.container is not None)
        return sorted({*process_tree.find_descendants(), *(one for process in contained for one in process.find())})


def make_folder(job: str, number: int) -> str:
    """Makes the folder of an agent's socket and pipes, also for containers. Raises OSError if another user has it."""
    folder = f"{FOLDER}{job}-{number}"
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(folder)  # of an agent that was killed
    os.mkdir(folder, mode=0o700)
    os.mkdir(os.path.join(folder, PIPES), mode=0o700)
    return folder


def select_own(launched: dict[str, str], launcher: str) -> dict[str, str]:
    """Returns the variables that identify a process: a program in the launcher's container may announce others. Pure.

    Others could mount any folder of the host in the process's container, such as CLUSTER_DATA_CACHE_DIR.
    """
    return {name: value for name, value in launched.items() if name.startswith(tuple(ENGINES[launcher].variables))}
