"""Detects that a job makes no progress, finds the cause, tells the user, and ends the job if stall_timeout requires it.

Output of a worker is progress, and so is a progress bar that moves. So is the use of CPU, files or sockets by a worker
or a server: an evaluation or a checkpoint may print nothing for a long time. The CPU of a worker that remains in a
function which waits for others is none: NCCL and MPI wait so, but not ps-lite: a job with servers that uses the CPU
while MXNet's engine is waited for computes. For functions of C, the frames of C tell. While a worker
is silent, the hosts report every few seconds where it is, which resources it and the servers have used, and which
processes are stopped (SIGSTOP): ps-lite waits forever for a process that is stopped or unreachable. Without progress,
the hosts also try to reach each other. A worker that has had fewer batches waits at another line than the others.
Once a worker has ended with exit code 0, only output and reported batches are progress: workers that wait for one that
has ended often poll, and so use the CPU for ever.
[train] stall_timeout: "auto" tells the user; after a number of seconds [train] on_stall follows; "none" disables this.
"""

import asyncio
import re
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from foundation.durations import render_minutes
from node.job.stacks import MOST_LOCATIONS, Location, group_locations, list_findings, list_stacks
from node.protocol import printable
from node.supervisor.processes import JobProcess, Processes
from node.tasks import Tasks
from node.wire import Inspect, PidAndCommand, TakeStack, Used

CHECK_EVERY_S = 10.0
CHECKS = 6  # the minimum number within stall_timeout
ANSWERS_S = 1.0  # for the hosts to answer
REACH_S = 4.5  # for all hosts to try each other; more than the agent takes
REACH_AGAIN_S = 60.0
NATIVE_EVERY_S = 20.0  # one look may show no frames of C
REPORT_AGAIN_S = 120.0  # doubles each time
APART_S, BLOCKED_S, UNEXPLAINED_S = 30.0, 60.0, 1800.0  # without progress, before telling the user
ENDED_S = 40.0  # from the end of the first worker on, before telling the user
PACE = 3.0  # times the longest time without progress so far, until the user is told
# An active process uses at least this, and more than its engine's idle_cpu_share.
LEAST_CPU_S = 0.03
LEAST_BYTES, LEAST_BYTES_PER_S = 4096, 1024
# What a bar shows of how far it is. Its clocks, and a spinner, also change while nothing happens.
BAR_COUNTS = re.compile(r"\d[\d.]*[kMGT]?/\d|\d[\d.]*%|\d+it \[")
BAR_CLOCKS = re.compile(r"\d+:\d\d(?::\d\d)?|\d[\d.]*(?:ms|s|it/s|s/it)\b|[|/\\\u2800-\u28ff-]")
LONGEST_COMMAND = 60  # characters of a command line in a message


def patience_s(found: str | None, pace_s: float, limit_s: float | None) -> float:
    """Returns how many seconds without progress pass before the user is told. Pure.

    found: "stopped", "blocked", None, "apart": workers are at different lines, or "ended": workers have ended, and no
    other has made progress since. pace_s: the job's longest time without progress so far. limit_s: the time without
    progress that ends the job; None: no limit.
    """
    if found == "stopped":
        return 0.0
    least_s = {"apart": APART_S, "blocked": BLOCKED_S}.get(found or "", UNEXPLAINED_S)
    usual_s = ENDED_S if found == "ended" else max(least_s, PACE * pace_s)
    return usual_s if limit_s is None else min(usual_s, limit_s / 2)


def uses_cpu(seconds: float, cpu_s: float, idle_share: float) -> bool:
    """Whether so much is progress: negative after a child has ended. idle_share: that of the engine. Pure."""
    return abs(cpu_s) >= max(LEAST_CPU_S, idle_share * seconds)


def moves_bytes(seconds: float, size_bytes: int) -> bool:
    """The same for what a process reads and writes. Pure."""
    return abs(size_bytes) >= max(LEAST_BYTES, LEAST_BYTES_PER_S * seconds)


def read_position(bar: str) -> str:
    """Returns what a progress bar shows of how far it is; equal for two states if nothing has moved. Pure."""
    return " ".join(BAR_COUNTS.findall(bar)) or BAR_CLOCKS.sub("", bar)


@dataclass(slots=True)
class _Watched:
    """What is known of a process. Times are monotonic; 0.0: never."""

    progress_at: float = 0.0  # when it last made progress by its use of the CPU alone
    pace_s: float = 0.0  # the longest time without progress that this has ended
    line_at: float = 0.0  # of its last line
    position: str = ""  # of its progress bar
    used_at: float = 0.0  # when it was last active,
    used: Used | None = None  # and what it had used then; its stopped processes now
    stopped: list[PidAndCommand] = field(default_factory=list)  # in two looks without progress
    location: Location | None = None  # where it was, without a line since
    seen_at: float = 0.0  # there, for the last time,
    first_seen_at: float = 0.0  # and for the first,
    first_pace_s: float = 0.0  # with this pace
    native_at: float = 0.0  # when its frames of C were last looked at

    @property
    def stays(self) -> bool:
        """Whether it has been seen there more than once."""
        return self.location is not None and self.first_seen_at < self.seen_at

    @property
    def waits(self) -> bool:
        """Whether it waits for others there."""
        return self.location is not None and self.location.waits


class Stalls:
    """Watches one job. report(text, seconds): tells the user. keep(stacks): keeps them. end(error): ends the attempt.

    seconds: the time without progress; None if the job makes progress again.
    """

    def __init__(
        self,
        processes: Processes,
        tasks: Tasks,
        report: Callable[[str, float | None], None],
        end: Callable[[str], None],
        *,
        keep: Callable[[tuple[str, ...]], None],
    ) -> None:
        self._processes, self._tasks = processes, tasks
        self._report, self._end, self._keep = report, end, keep
        self._train, self._spec = processes.order.train, processes.order.spec
        limit = self._train.stall_timeout_s
        self._is_watching = False
        self._limit_s = None if isinstance(limit, str) else limit
        self._every_s = min(CHECK_EVERY_S, self._limit_s / CHECKS) if self._limit_s else CHECK_EVERY_S
        self._job = _Watched()  # its progress: output, batches, and what processes have read and written
        self._watched: defaultdict[int, _Watched] = defaultdict(_Watched)  # by the process's number
        self._recorded_at = -1.0  # when their flight recorders were last read: once while there is no progress
        self._is_unclear = False  # whether a process works, or only its flight recorder does
        self._is_reaching = False  # whether the hosts try to reach each other
        self._reached_at = -REACH_AGAIN_S  # when they last did
        self._blocked = ""
        self._finished: list[tuple[float, JobProcess]] = []  # the workers that have succeeded, and when
        # The last message to the user: time, seconds before the next, finding.
        self._reported: tuple[float, float, str] | None = None

    def start(self) -> None:
        """Starts watching, because all processes have started."""
        if self._train.stall_timeout_s != "none":
            self._is_watching = True
            self._job.progress_at = time.monotonic()
            self._tasks.begin(self._watch())

    def on_line(self, process: JobProcess, text: str) -> None:
        """Handles a line of a worker's output."""
        report = self._processes.engine.read_line(text)
        if self._is_watching and not (report is not None and report.is_noise):
            watched, now = self._watched[process.number], time.monotonic()
            watched.line_at, watched.used, watched.stopped, watched.location = now, None, [], None
            self._note_progress(now, self._job)

    def on_bar(self, process: JobProcess, text: str) -> None:
        """Handles a worker's progress bar: one that moves counts as a line."""
        watched, position = self._watched[process.number], read_position(text)
        if position != watched.position:
            watched.position = position
            self.on_line(process, text)

    def on_use(self, process: JobProcess, use: Used) -> None:
        """Handles a host's report of the resources that a process has used."""
        watched, now = self._watched[process.number], time.monotonic()
        before = watched.used
        if before is not None:
            seconds = now - watched.used_at
            moves = moves_bytes(seconds, use.bytes - before.bytes)
            share = self._processes.engine.idle_cpu_share
            if not moves and (self._spins(watched) or not uses_cpu(seconds, use.cpu_s - before.cpu_s, share)):
                watched.stopped = sorted({*use.stopped} & {*before.stopped})
                watched.used = replace(before, stopped=use.stopped)
                return
            watched.stopped = []
            if use.recorded:  # the first record uses 1.2 s and reads 28 MB, which is no progress
                self._is_unclear = True
            elif process.role != "scheduler" and not self._finished:
                self._note_progress(now, self._job if moves else watched)
        watched.used, watched.used_at = use, now

    def on_location(self, process: JobProcess, location: Location) -> None:
        """Handles a host's report of where a worker is. One that waits there since before has made no progress."""
        watched, now = self._watched[process.number], time.monotonic()
        before, location = watched.location, self.complete(process, location)
        if before is not None and location.collectives is None and watched.seen_at >= self._progress_at:
            location = replace(location, collectives=before.collectives)
        if before is None or before.text != location.text:
            watched.first_seen_at, watched.first_pace_s = now, watched.pace_s
        watched.location, watched.seen_at = location, now
        if self._spins(watched) and watched.progress_at > watched.first_seen_at:
            watched.progress_at, watched.pace_s = watched.first_seen_at, watched.first_pace_s

    def _spins(self, watched: _Watched) -> bool:
        """Whether the use of the CPU is only that of waiting. With servers, MXNet's engine may compute meanwhile."""
        return watched.waits and watched.stays and not self._spec.servers

    def complete(self, process: JobProcess, location: Location) -> Location:
        """Returns the location of a process, with what the frames of C have shown there."""
        known = self._watched[process.number].location
        return replace(location, waits=True) if known and known.waits and known.text == location.text else location

    def on_progress(self) -> None:
        """Handles the report of a batch that a worker has finished."""
        self._note_progress(time.monotonic(), self._job)

    def on_exit(self, process: JobProcess) -> None:
        """Handles the end of a process."""
        self._watched[process.number].stopped = []
        if not self._is_watching or process.role != "worker" or process.exit_code != 0:
            return
        now = time.monotonic()
        self._note_progress(now, self._job)
        self._finished.append((now, process))

    @property
    def _progress_at(self) -> float:
        """When the job last made progress."""
        return max(one.progress_at for one in (self._job, *self._watched.values()))

    @property
    def _pace_s(self) -> float:
        """The longest time without progress so far."""
        return max(one.pace_s for one in (self._job, *self._watched.values()))

    def _note_progress(self, now: float, of: _Watched) -> None:
        if not self._blocked and not any(one.stopped for one in self._watched.values()):  # else it was not its own pace
            of.pace_s = max(of.pace_s, now - self._progress_at)
        of.progress_at = now

    # -- looking -------------------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        answers_s = min(ANSWERS_S, self._every_s / 2)
        await asyncio.sleep(answers_s)
        while True:
            await asyncio.sleep(self._every_s - answers_s)
            self._check()
            await asyncio.sleep(answers_s)
            self._check_answers()

    def _check(self) -> None:
        """Asks the hosts about silent processes."""
        now, self._is_unclear = time.monotonic(), False
        quiet_s, running = now - self._progress_at, self._running()
        silent = [one for one in running if now >= self._watched[one.number].line_at + self._every_s]
        workers = [one for one in silent if one.role == "worker"]
        asks_recorder = bool(workers) and quiet_s >= 1.5 * self._every_s and self._recorded_at < self._progress_at
        self._recorded_at = now if asks_recorder else self._recorded_at
        hosts = tuple(host.ip for host in self._processes.order.hosts)
        for process in silent if workers else ():  # other roles never print
            process.agent.put(Inspect(process.number, hosts))
            if process.role == "worker":
                native = self._may_spin(self._watched[process.number], now)
                more = {"nccl": process is workers[0], "recorder": asks_recorder}
                process.agent.put(TakeStack(process.number, native=native, **more))
        is_due = self._reached_at < max(self._progress_at, now - REACH_AGAIN_S)
        if is_due and not self._is_reaching and quiet_s >= patience_s("blocked", self._pace_s, self._limit_s):
            self._is_reaching = True
            self._tasks.begin(self._reach(running))

    def _may_spin(self, worker: _Watched, now: float) -> bool:
        """Whether a worker uses the CPU at one line of its program, and only the frames of C can tell whether it waits.

        True at most every NATIVE_EVERY_S.
        """
        computes = worker.stays and not worker.waits and worker.progress_at >= worker.first_seen_at
        is_due = computes and not self._spec.servers and now >= worker.native_at + NATIVE_EVERY_S
        worker.native_at = now if is_due else worker.native_at
        return is_due

    async def _reach(self, running: Sequence[JobProcess]) -> None:
        """Has the hosts try to reach each other."""
        self._processes.have_them_reach(running)
        await asyncio.sleep(REACH_S)
        self._blocked, self._is_reaching = self._processes.describe_unreachable(), False
        self._reached_at = time.monotonic()

    def _check_answers(self) -> None:
        """Evaluates the hosts' answers."""
        now = time.monotonic()
        quiet_s = now - self._progress_at
        if quiet_s < patience_s("blocked", self._pace_s, self._limit_s):
            self._blocked = ""
        is_known = not self._is_reaching and not self._is_unclear
        if self._workers() and (is_known or self._find_stopped()):
            self._weigh(now, quiet_s)

    def _running(self) -> list[JobProcess]:
        return [process for process in self._processes.of_job() if process.exit_code is None and process.agent.is_open]

    def _workers(self) -> list[JobProcess]:
        return [process for process in self._running() if process.role == "worker"]

    def _find_stopped(self) -> list[tuple[JobProcess, list[PidAndCommand]]]:
        """The processes of the job of which some are stopped, and these."""
        found = ((process, self._watched[process.number].stopped) for process in self._running())
        return [(process, stopped) for process, stopped in found if stopped]

    # -- telling -------------------------------------------------------------------------------------------------

    def _weigh(self, now: float, quiet_s: float) -> None:
        kind = self._classify()
        if kind in ("ended", "apart", None) and quiet_s < 2 * self._every_s:
            if self._reported is not None:
                self._reported = None
                self._report("the job makes progress again", None)
            return
        reported, found = self._reported, self._describe(kind)
        news = "; ".join(self._list_faults()) or kind or ""  # a program that polls is now here, now there
        is_news = reported is None or news != reported[2] or now >= reported[0] + reported[1]
        if self._limit_s is not None and quiet_s >= self._limit_s and self._train.on_stall != "report":
            self._keep(list_stacks(self._find_locations()))
            limit = render_minutes(self._limit_s)
            self._end(f"no worker made progress for {limit} (stall_timeout): {found}")
        elif is_news and quiet_s >= patience_s(kind, self._pace_s, self._limit_s):
            self._reported = (now, REPORT_AGAIN_S if reported is None or news != reported[2] else 2 * reported[1], news)
            explains = quiet_s < 2 * self._every_s
            text = found if explains else f"no worker has made progress for {render_minutes(quiet_s)}: {found}"
            self._report(text, quiet_s)
            self._keep(list_stacks(self._find_locations()))

    def _classify(self) -> str | None:
        """Returns what has been found, as in `patience_s`."""
        if self._find_stopped():
            return "stopped"
        if self._blocked:
            return "blocked"
        if self._is_waiting():
            return "ended"
        return "apart" if len(group_locations(self._find_locations())) > 1 else None

    def _find_locations(self) -> dict[str, Location]:
        """Returns where workers are, by their names, as far as they have been looked at since the last progress."""
        progress_at, workers = self._progress_at, self._workers()
        found = ((one.short_name, self._watched[one.number]) for one in workers)
        return {name: one.location for name, one in found if one.location is not None and one.seen_at >= progress_at}

    def _is_waiting(self) -> bool:
        """Whether workers have ended, and no other has made progress since."""
        return bool(self._finished) and self._progress_at <= self._finished[-1][0]

    def _describe_ended(self) -> str:
        """Describes the end of the first worker."""
        at, process = self._finished[0]
        others, ago = len(self._workers()), render_minutes(time.monotonic() - at)
        runs = "1 other runs" if others == 1 else f"{others} others run"
        return f"{process.short_name} ended with exit code 0 {ago} ago, and {runs}"

    def _describe(self, kind: str | None) -> str:
        """The finding as text. kind: as in `_classify`."""
        parts = self._list_faults()
        if not parts and self._finished:
            parts.append(self._describe_ended())
        elif kind is None:
            several = len({process.host for process in self._running()}) > 1
            parts.append(f"none of its processes is stopped{', and its nodes can reach each other' if several else ''}")
        is_kv_store = self._spec.servers > 0 and self._spec.is_synchronous
        parts += list_findings(self._find_locations(), most=MOST_LOCATIONS, is_kv_store=is_kv_store)
        return "; ".join(parts)

    def _list_faults(self) -> list[str]:
        """Describes what keeps the job from progress whatever its program does: stopped processes, lost connections."""
        stopped = [self._describe_stopped(process, stopped) for process, stopped in self._find_stopped()]
        return stopped + ([f"{self._blocked}; `cluster verify` tries their ports"] if self._blocked else [])

    def _describe_stopped(self, process: JobProcess, stopped: Sequence[PidAndCommand]) -> str:
        """Describes which process of a role is stopped, and how to resume it."""
        pid, words = stopped[0]
        child = f"process {pid} ({printable(words, LONGEST_COMMAND)}) of {process.short_name}"
        resume = f"kill -CONT {' '.join(str(pid) for pid, _ in stopped)}"
        if self._processes.is_node(process.host):
            resume = f"cluster exec --node {process.host} -- {resume}"
        return f"{process.name if pid == process.pid else child} is stopped, as by SIGSTOP; `{resume}` resumes it"
