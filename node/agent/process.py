"""One process of a job on its node: runs its commands, passes on their output, and ends the processes that they leave.

Its processes have its mark in their environment (MARK), which finds them in any session and under any parent.
"""

import asyncio
import signal
import subprocess
import time
from collections.abc import Iterable, Sequence
from typing import IO, TYPE_CHECKING, Any

from node import children, wire
from node.agent import environment
from node.agent.container import Contained
from node.agent.flight_recorder import Recorder
from node.agent.notice import place_of
from node.agent.output import Item, OutputLines
from node.agent.volumes import AFTER_FAILURE_S, LIMIT_S, find_dead
from node.engines import ENGINES
from node.setup import process_tree
from node.staging.words import replace_urls
from node.wire import Bar, Exited, Joined, Output, Start, Started

if TYPE_CHECKING:
    from node.agent.agent import Agent

MARK = "CLUSTER_PROCESS"
"""The variable in the environment of a process's processes; its value is the job and the process's number."""
PIPE_GRACE_S = 0.5  # after the process's end, for a pipe that is held by a process that does not end
FEW_BYTES = 1 << 12  # larger pieces need no collecting
NOT_STARTED = 125  # the exit code of an engine that cannot start a container
LOOK_FOR_PROGRAM_S = 0.05  # in a container that starts


class JobProcess:
    """One process of the job. pid: that of its running command."""

    def __init__(self, start: Start, host: "Agent") -> None:
        self.number, self.order, self._host = start.p, start.order, host
        self._keep = start.keep
        self._job, self._train = host.order.spec.id, host.order.spec.train
        self._volumes = host.order.volumes if start.order.role in ("worker", "setup") else ()
        self._mark = f"{self._job}/{start.p}"
        self._engine = ENGINES[self._train.launcher]
        self._env: dict[str, str] = {}
        self._hides_verbose = False
        self._at = 0
        self._why: str | None = None
        self._end = asyncio.Event()
        self._child: subprocess.Popen[bytes] | None = None
        self._contained: Contained | None = None
        record = f"{place_of(self._job, host.order.attempt)}-record-{start.p}-"
        self.recorder = Recorder(f"{host.pipes}/{start.p}-", record)
        self.looking = asyncio.Lock()  # only one py-spy can stop a program
        self._has_started = False
        self.left: list[process_tree.Process] = []
        self.exit_code: int | None = None
        self.has_ended = asyncio.Event()

    def end(self) -> None:
        """Has it end: `run` then ends its processes."""
        self._end.set()

    async def run(self) -> None:
        """Runs the commands one after another, and reports the end."""
        code, number = await self._run_all()
        if code != 0 and not self._end.is_set() and self._why is None:
            dead = await find_dead(self._volumes, AFTER_FAILURE_S)
            self._why = dead.text if dead is not None else None
        if self._why is not None:
            self.message(self._why)
        self.exit_code = code
        ended = self._end.is_set()
        if number is not None and not ended:
            self._host.data.note_killed()
        self._host.send(Exited(p=self.number, exit_code=code, signal=number, ended=ended, at=self._at, why=self._why))
        if code != 0 and not ended:
            self._host.note_failure()
        self.has_ended.set()

    async def _run_all(self) -> tuple[int, int | None]:
        """Returns the exit code of the last command that ran, and its signal or None."""
        self._why = await self._prepare()
        if self._why is not None:
            return 1, None
        code, number = 0, None
        for at, command in enumerate(self.order.commands):
            self._at = at
            if self._end.is_set():
                return 128 + signal.SIGTERM.value, signal.SIGTERM.value
            if self.order.role == "worker":
                command = replace_urls(command, self._host.data.paths)  # noqa: PLW2901
            code, number = await self._run_one(environment.fill_in(command, self._env))
            if code != 0:
                break
        return code, number

    async def _prepare(self) -> str | None:
        """Makes the environment, and checks what the process needs. Returns why it cannot start, or None."""
        order = self.order
        message = process_tree.raise_open_files(self._train.open_files)
        if message:
            self.message(message)
        try:
            self._env = environment.make(self._host.order, order, self._host.socket)
        except (OSError, ValueError) as error:
            return f"cannot make the job's environment: {error}"
        self._env[MARK] = self._mark
        if order.role == "worker":
            self._env |= self.recorder.variables(self._env)
        self._hides_verbose = self._env.get("PS_VERBOSE") == "1" and "PS_VERBOSE" not in order.env
        unplaced = await self._host.place_files(order.folder)
        if unplaced:
            self._at = -1  # before the first command
            return f"cannot copy the job's files: {unplaced}"
        if order.role == "setup":
            missing = await self._host.data.bring(self._env, self.message)
            if missing is not None:
                self._at = -1
                return missing
        folder = self._host.data.folder or self._env.get("CLUSTER_DATA_URL", "")
        if folder.startswith("/"):
            self._env["CLUSTER_DATA_DIR"] = folder
        if order.role == "worker":
            self._host.data.copy_outputs(self._env, self.message)
        blocked = await asyncio.to_thread(environment.find_blocked, self._engine, order)
        if blocked:
            return blocked
        limit_s = min(LIMIT_S, self._train.silence_timeout_s / 2)
        dead = await find_dead(self._volumes, limit_s)
        return dead.text if dead is not None else None

    async def _run_one(self, command: Sequence[str]) -> tuple[int, int | None]:
        """Runs a command and ends the processes that it leaves. Returns its exit code, and its signal or None."""
        self._has_started = False
        wanted = self.order.container
        try:
            if wanted is not None:
                name, self._why = await self._host.open_container(self.order, wanted, self._env)
                if self._why is not None:
                    return NOT_STARTED, None
                self._contained = Contained(self.order, wanted, name, f"{self.number}-{self._at}")
                child = self._contained.start(command, self._env, MARK)
            else:
                child = process_tree.start(command, self._env, self.order.folder)
        except (OSError, ValueError) as error:  # ValueError: a NUL in a word or a variable
            self._why = f"cannot start {command[0]!r}: {error}"
            return 126 if isinstance(error, PermissionError) else 127, None
        assert child.stdout is not None
        self._child = child
        exited = children.watch(child)
        passing = asyncio.ensure_future(self._pass_on(child.stdout, exited))
        if self._contained is None:
            self._note_start(child.pid)
        looking = asyncio.ensure_future(self._look_for_program(self._contained)) if self._contained else None
        code = await self._wait_for_end(exited)
        if looking is not None:
            looking.cancel()
        await self._finish_output(passing)
        if self._contained is not None:
            return self._read_code(self._contained, code)
        return (128 - code, -code) if code < 0 else (code, None)

    async def _wait_for_end(self, exited: "asyncio.Future[int]") -> int:
        """Waits until the command and its processes have ended. Returns its exit code; negative: the signal."""
        end = asyncio.ensure_future(self._end.wait())
        both: list[asyncio.Future[Any]] = [exited, end]
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        end.cancel()
        if self._end.is_set() or not self._keep:
            self.left = await children.end_processes(self.find, self._spare_engine)
        if self._end.is_set() and not exited.done():  # it may have been left
            await asyncio.wait([exited], timeout=process_tree.CHECK_EVERY_S)
        return exited.result() if exited.done() else -signal.SIGKILL.value

    # -- containers ----------------------------------------------------------------------------------------------

    async def _look_for_program(self, contained: Contained) -> None:
        """Reports the start of a program in a container, which is later than that of the engine's client."""
        while (pid := contained.find_program()) is None:  # noqa: ASYNC110 - the kernel does not tell
            await asyncio.sleep(LOOK_FOR_PROGRAM_S)
        self._note_start(pid)

    def _read_code(self, contained: Contained, ended: int) -> tuple[int, int | None]:
        """Returns _run_one's result once the command's processes in the container have ended."""
        code, number, why = contained.read_code(ended)
        has_ended_itself = not self._end.is_set()
        if why is not None and has_ended_itself:
            self._why = why
        if not self._has_started and why is None and has_ended_itself:
            self._note_start(self._child.pid if self._child is not None else 0)  # it ended before it was seen
        return code, number

    def _spare_engine(self, found: Sequence[process_tree.Process]) -> Iterable[process_tree.Process]:
        """For end_processes: returns the processes that end after the container."""
        return () if self._contained is None else self._contained.spare(found)

    # -- questions about it --------------------------------------------------------------------------------------

    def find(self) -> list[process_tree.Process]:
        """Returns its processes: those with its mark, their descendants, and those in its container."""
        found = set(process_tree.find(self._mark, MARK))
        return sorted(found if self._contained is None else found | set(self._contained.find_inside()))

    def _note_start(self, pid: int) -> None:
        """Reports the start of a command."""
        self._has_started = True
        self._host.send(Started(self.number, pid))

    # -- output --------------------------------------------------------------------------------------------------

    def message(self, line: str) -> None:
        """Sends a message of the agent as a line of output."""
        self._host.send(Output(self.number, (line,)))

    async def _pass_on(self, stream: IO[bytes], exited: "asyncio.Future[int]") -> None:
        """Passes on a command's output as it comes, and lines in quick succession in fewer, larger pieces.

        Collects nothing once the command has ended.
        """
        reader, transport = await children.open_output(stream)
        lines, pace = OutputLines(), wire.Pace()
        data = None
        try:
            while data != b"":
                # A bar, or a line that a bar may still replace, is passed on when it is due.
                due_s = None if lines.due_at is None else max(0.0, lines.due_at - time.monotonic())
                try:
                    data = await asyncio.wait_for(reader.read(1 << 16), due_s)
                except asyncio.TimeoutError:  # noqa: UP041 - another error in Python 3.10
                    data = None
                self._put(lines.feed(data or b"", time.monotonic()))
                await self._host.has_room.wait()
                if data and len(data) < FEW_BYTES:
                    pace.note()
                    if pace.delay_s and not transport.is_closing():
                        transport.pause_reading()
                        await asyncio.wait([exited], timeout=pace.delay_s)
                        transport.resume_reading()
        finally:
            transport.close()
            self._put(lines.flush())

    async def _finish_output(self, passing: "asyncio.Future[None]") -> None:
        """Waits for the end of the output, but only a moment if a process that does not end still holds the pipe."""
        silent_since = time.monotonic()
        while not passing.done() and time.monotonic() < silent_since + PIPE_GRACE_S:
            if not self._host.has_room.is_set():
                silent_since = time.monotonic()
            await asyncio.wait([passing], timeout=PIPE_GRACE_S / 5)
        passing.cancel()
        await asyncio.wait([passing])
        if not passing.cancelled():
            passing.result()

    def _put(self, items: Iterable[Item]) -> None:
        """Passes on lines of output and bars, without the library's reports, unless the user asked for them."""
        lines: list[str] = []
        for text, is_bar in items:
            if is_bar:
                self._send_lines(lines)
                self._host.send(Bar(self.number, text))
                continue
            report = self._engine.read_line(text)
            if report is not None and (report.rank is not None or report.bound is not None):
                self._host.send(Joined(self.number, report.rank, report.bound))
            if not (self._hides_verbose and report is not None and report.is_hidden):
                lines.append(text)
        self._send_lines(lines)

    def _send_lines(self, lines: list[str]) -> None:
        if lines:
            self._host.send(Output(self.number, tuple(lines)))
            lines.clear()
