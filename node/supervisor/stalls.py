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
from collections.abc import Callable
from typing import NamedTuple

from msgspec.structs import replace

from foundation.durations import render_minutes
from node.job.stacks import MOST_LOCATIONS, Location, group_locations, list_findings, list_stacks
from node.protocol import Order, printable
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


def is_active(seconds: float, cpu_s: float, size_bytes: int, idle_cpu_share: float) -> bool:
    """Whether a process that has used these resources in so many seconds is active. Pure.

    The use is negative after a child has ended. idle_cpu_share: that of the engine.
    """
    used_cpu = abs(cpu_s) >= max(LEAST_CPU_S, idle_cpu_share * seconds)
    return used_cpu or abs(size_bytes) >= max(LEAST_BYTES, LEAST_BYTES_PER_S * seconds)


def read_position(bar: str) -> str:
    """Returns what a progress bar shows of how far it is; equal for two states if nothing has moved. Pure."""
    return " ".join(BAR_COUNTS.findall(bar)) or BAR_CLOCKS.sub("", bar)


class Seen(NamedTuple):
    """Where a silent worker is, whether it waits for others there, and when it was first and last seen there."""

    text: str
    waits: bool
    first_at: float
    last_at: float

    @property
    def stays(self) -> bool:
        """Whether it has been seen there more than once."""
        return self.first_at < self.last_at


class Stalls:
    """Watches one job. report(text, seconds): tells the user. keep(stacks): keeps them. end(error): ends the attempt.

    seconds: the time without progress; None if the job makes progress again.
    """

    def __init__(
        self,
        order: Order,
        processes: Processes,
        tasks: Tasks,
        report: Callable[[str, float | None], None],
        end: Callable[[str], None],
        *,
        keep: Callable[[tuple[str, ...]], None],
    ) -> None:
        self._order, self._processes, self._tasks = order, processes, tasks
        self._report, self._end, self._keep = report, end, keep
        limit = order.train.stall_timeout_s
        self._is_watching = False
        self._limit_s = None if isinstance(limit, str) else limit
        self._has_servers = order.spec.servers > 0
        self._every_s = min(CHECK_EVERY_S, self._limit_s / CHECKS) if self._limit_s else CHECK_EVERY_S
        self._proven_at = self._pace_s = 0.0
        self._cpu_at: dict[int, float] = {}  # when a process last made progress by its use of CPU alone
        self._positions: dict[int, str] = {}  # of the progress bars, by the worker's number
        self._lines_at: dict[int, float] = {}  # the time of its last line, by the worker's number
        # By a process's number: when it was last active, its cpu_s and size_bytes then; its stopped processes now.
        self._used: dict[int, tuple[float, float, int, set[PidAndCommand]]] = {}
        # By a process's number: its stopped processes, if stopped in two looks without progress.
        self._stopped: dict[int, list[PidAndCommand]] = {}
        self._locations: dict[int, Location] = {}  # where workers without progress are, by their numbers
        self._seen: dict[int, Seen] = {}  # where silent workers are
        self._native_at: dict[int, float] = {}  # when their frames of C were last looked at
        self._recorded_at = -1.0  # when their flight recorders were last read: once while there is no progress
        self._is_unclear = False  # whether a process works, or only its flight recorder does
        self._reach_until: float | None = None
        self._reached_at: float | None = None
        self._blocked = ""
        self._finished: list[tuple[float, JobProcess]] = []  # the workers that have succeeded, and when
        # The last message to the user: time, seconds before the next, finding.
        self._reported: tuple[float, float, str] | None = None

    def start(self) -> None:
        """Starts watching, because all processes have started."""
        if self._order.train.stall_timeout_s != "none":
            self._is_watching = True
            self._proven_at = time.monotonic()
            self._tasks.begin(self._watch())

    def on_line(self, process: JobProcess, text: str) -> None:
        """Handles a line of a worker's output."""
        report = self._processes.engine.read_line(text)
        if self._is_watching and not (report is not None and report.is_noise):
            now = time.monotonic()
            self._lines_at[process.number] = now
            self._used.pop(process.number, None)
            self._stopped.pop(process.number, None)
            self._seen.pop(process.number, None)
            self._note_progress(now)

    def on_bar(self, process: JobProcess, text: str) -> None:
        """Handles a worker's progress bar: one that moves counts as a line."""
        position = read_position(text)
        if position != self._positions.get(process.number):
            self._positions[process.number] = position
            self.on_line(process, text)

    def on_use(self, process: JobProcess, use: Used) -> None:
        """Handles a host's report of the resources that a process has used."""
        now = time.monotonic()
        stopped = set(use.stopped)
        known = self._used.get(process.number)
        if known is not None:
            at, cpu_s, size_bytes, stopped_before = known
            idle_share = self._processes.engine.idle_cpu_share
            moves = is_active(now - at, 0.0, use.bytes - size_bytes, idle_share)
            seen = self._seen.get(process.number)
            spins = seen is not None and seen.waits and seen.stays and not self._has_servers
            if not moves and (spins or not is_active(now - at, use.cpu_s - cpu_s, 0, idle_share)):
                self._used[process.number] = (at, cpu_s, size_bytes, stopped)
                self._stopped[process.number] = sorted(stopped & stopped_before)
                return
            self._stopped.pop(process.number, None)
            if use.recorded:  # the first record uses 1.2 s and reads 28 MB, which is no progress
                self._is_unclear = True
            elif process.role != "scheduler" and not self._finished:
                self._note_progress(now, None if moves else process)
        self._used[process.number] = (now, use.cpu_s, use.bytes, stopped)

    def on_location(self, process: JobProcess, location: Location) -> None:
        """Handles a host's report of where a worker is. One that waits there since before has made no progress."""
        number, now = process.number, time.monotonic()
        known = self._seen.get(number)
        before = self._locations.get(number)
        if before is not None and location.collectives is None:
            location = replace(location, collectives=before.collectives)
        location = self._locations[number] = self.complete(process, location)
        first_at = known.first_at if known is not None and known.text == location.text else now
        seen = self._seen[number] = Seen(location.text, location.waits, first_at, now)
        if seen.waits and seen.stays and number in self._cpu_at and not self._has_servers:
            self._cpu_at[number] = min(self._cpu_at[number], seen.first_at)

    def complete(self, process: JobProcess, location: Location) -> Location:
        """Returns the location of a process, with what the frames of C have shown there."""
        known = self._seen.get(process.number)
        waits = known is not None and known.waits and known.text == location.text
        return replace(location, waits=location.waits or waits)

    def _may_spin(self, number: int, now: float) -> bool:
        """Whether a worker uses the CPU at one line of its program, and only the frames of C can tell whether it waits.

        True at most every NATIVE_EVERY_S.
        """
        seen = self._seen.get(number)
        if self._has_servers or seen is None or seen.waits or not seen.stays:
            return False
        if self._cpu_at.get(number, 0.0) < seen.first_at:
            return False
        is_due = now >= self._native_at.get(number, 0.0) + NATIVE_EVERY_S
        if is_due:
            self._native_at[number] = now
        return is_due

    def on_progress(self) -> None:
        """Handles the report of a batch that a worker has finished."""
        self._note_progress(time.monotonic())

    def on_exit(self, process: JobProcess) -> None:
        """Handles the end of a process."""
        if not self._is_watching or process.role != "worker" or process.exit_code != 0:
            return
        now = time.monotonic()
        self._note_progress(now)
        self._finished.append((now, process))
        if len(self._finished) == 1:
            self._tasks.later(patience_s("ended", 0.0, self._limit_s), self._report_ended)

    @property
    def _progress_at(self) -> float:
        """When the job last made progress."""
        return max(self._proven_at, *self._cpu_at.values(), 0.0)

    def _note_progress(self, now: float, by_cpu_of: JobProcess | None = None) -> None:
        if not self._stopped and not self._blocked:  # else the job was not at its own pace
            self._pace_s = max(self._pace_s, now - self._progress_at)
        if by_cpu_of is not None:
            self._cpu_at[by_cpu_of.number] = now
        else:
            self._proven_at = now
        self._locations.clear()

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
        quiet_s = now - self._progress_at
        running = self._running()
        silent = [process for process in running if now >= self._lines_at.get(process.number, 0.0) + self._every_s]
        if any(process.role == "worker" for process in silent):  # other roles never print
            first = next(process for process in silent if process.role == "worker")
            hosts = tuple(host.ip for host in self._order.hosts)
            asks_recorder = quiet_s >= 1.5 * self._every_s and self._recorded_at < self._progress_at
            self._recorded_at = now if asks_recorder else self._recorded_at
            for process in silent:
                process.agent.put(Inspect(process.number, hosts))
                if process.role == "worker":
                    native = self._may_spin(process.number, now)
                    more = {"nccl": process is first, "recorder": asks_recorder}
                    process.agent.put(TakeStack(process.number, native=native, **more))
        is_due = self._reach_until is None and (self._reached_at is None or now >= self._reached_at + REACH_AGAIN_S)
        if is_due and quiet_s >= patience_s("blocked", self._pace_s, self._limit_s):
            self._reach_until = now + REACH_S
            self._processes.have_them_reach(running)

    def _check_answers(self) -> None:
        """Evaluates the hosts' answers."""
        now = time.monotonic()
        quiet_s = now - self._progress_at
        running = self._running()
        if not any(process.role == "worker" for process in running):
            return
        self._stopped = {one.number: self._stopped[one.number] for one in running if self._stopped.get(one.number)}
        if self._reach_until is not None and now >= self._reach_until:
            self._reach_until, self._reached_at = None, now
            self._blocked = self._processes.describe_unreachable()
        if quiet_s < patience_s("blocked", self._pace_s, self._limit_s):
            self._blocked = ""
        if (self._reach_until is None and not self._is_unclear) or self._stopped:
            self._weigh(now, quiet_s)

    def _running(self) -> list[JobProcess]:
        return [process for process in self._processes.of_job() if process.exit_code is None and process.agent.is_open]

    # -- telling -------------------------------------------------------------------------------------------------

    def _weigh(self, now: float, quiet_s: float) -> None:
        kind = self._classify()
        if kind in ("ended", "apart", None) and quiet_s < 2 * self._every_s:
            if self._reported is not None:
                self._reported = None
                self._report("the job makes progress again", None)
            return
        reported, found = self._reported, self._describe(kind)
        news = found if kind in ("stopped", "blocked") else kind or ""  # a program that polls is now here, now there
        is_news = reported is None or news != reported[2] or now >= reported[0] + reported[1]
        if self._limit_s is not None and quiet_s >= self._limit_s and self._order.train.on_stall != "report":
            self._keep(list_stacks(self._find_locations()))
            limit = render_minutes(self._limit_s)
            self._end(f"no worker made progress for {limit} (stall_timeout): {found}")
        elif is_news and quiet_s >= patience_s(kind, self._pace_s, self._limit_s):
            self._reported = (now, REPORT_AGAIN_S if reported is None or news != reported[2] else 2 * reported[1], news)
            explains = kind == "ended" or quiet_s < 2 * self._every_s
            text = found if explains else f"no worker has made progress for {render_minutes(quiet_s)}: {found}"
            self._report(text, quiet_s)
            self._keep(list_stacks(self._find_locations()))

    def _classify(self) -> str | None:
        """Returns what has been found, as in `patience_s`."""
        if self._stopped:
            return "stopped"
        if self._blocked:
            return "blocked"
        if self._is_waiting():
            return "ended"
        return "apart" if len(group_locations(self._find_locations())) > 1 else None

    def _find_locations(self) -> dict[str, Location]:
        """Returns where workers are, as far as they have been looked at, by their names."""
        known = ((one, self._locations.get(one.number)) for one in self._running() if one.role == "worker")
        return {one.short_name: location for one, location in known if location is not None}

    def _is_waiting(self) -> bool:
        """Whether workers have ended, and no other has made progress since."""
        return bool(self._finished) and self._progress_at <= self._finished[-1][0]

    def _report_ended(self) -> None:
        """Tells the user that a worker has ended, while others run."""
        now = time.monotonic()
        if all(process.role != "worker" for process in self._running()):
            return
        if self._is_waiting():
            self._weigh(now, now - self._progress_at)
        elif self._reported is None:
            self._report(self._describe_ended("still runs", "still run"), None)

    def _describe_ended(self, one: str, several: str) -> str:
        """Describes the end of the first worker. one, several: what another one does, or others do."""
        at, process = self._finished[0]
        others = sum(1 for other in self._running() if other.role == "worker")
        rest = f"1 other {one}" if others == 1 else f"{others} others {several}"
        return f"{process.short_name} ended with exit code 0 {render_minutes(time.monotonic() - at)} ago; {rest}"

    def _describe(self, kind: str | None) -> str:
        """The finding as text. kind: as in `_classify`."""
        parts = [self._describe_stopped(process) for process in self._processes.all if process.number in self._stopped]
        if self._blocked:
            parts.append(self._blocked + "; `cluster verify` tries their ports")
        if parts:
            return "; ".join(parts)
        if kind == "ended":
            parts.append(self._describe_ended("has printed nothing since", "have printed nothing since"))
        elif self._finished:
            parts.append(self._describe_ended("still runs", "still run"))
        elif kind is None:
            several = len({process.host for process in self._running()}) > 1
            parts.append(f"none of its processes is stopped{', and its nodes can reach each other' if several else ''}")
        is_kv_store = self._has_servers and self._order.spec.is_synchronous
        parts += list_findings(self._find_locations(), most=MOST_LOCATIONS, is_kv_store=is_kv_store)
        return "; ".join(parts)

    def _describe_stopped(self, process: JobProcess) -> str:
        """Describes which process of a role is stopped, and how to resume it."""
        pid, words = self._stopped[process.number][0]
        who = (
            process.name
            if pid == process.pid
            else f"process {pid} ({printable(words, LONGEST_COMMAND)}) of {process.short_name}"
        )
        pids = " ".join(str(pid) for pid, _ in self._stopped[process.number])
        resume = f"kill -CONT {pids}"
        if self._processes.is_node(process.host):
            resume = f"cluster exec --node {process.host} -- {resume}"
        return f"{who} is stopped, as by SIGSTOP; `{resume}` resumes it"
