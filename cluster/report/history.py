"""What happened in a job, from the lines of its log: the numbers that its ranks reported, its states and its errors.

Examining a line takes up to 0.1 ms, so of a very long log only a part of the lines is examined; `is_sampled` says so.
"""

import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Literal

from msgspec import Struct, field

from cluster.report.curves import Curve
from node.protocol import JobResult, JobState
from node.reports import Report, parse_report
from train.follow.advice import Advisor
from train.follow.events import Event, EventReader, Process

EXACT_LINES = 60_000  # examined one by one
EXACT_REPORTS = 4_000
SAMPLES = 2000  # numbers of all ranks together in the time so far, when there are more
LEAST_SAMPLES = 40  # of each rank
MISSES = 8  # lines without a number, after which a process has had its turn
MOST_CURVES = 16  # of each rank
MOST_MARKS = 200
RECENT = 20_000  # lines in which those before an error are searched
ERROR_LINES = 30
BATCH = 512  # lines that are skipped together
OUTPUT_WITHIN = 80  # bytes, where a line of output says so
LONGEST_LINE = 400  # characters of a line that the report shows
SPEED = "samples/s"
EPOCH_TIME = "epoch time, s"
_OUTPUT = b', "line": "'  # as node/wire.py writes it, after the time and the process
_SECOND = slice(6, 16)  # of the time of a line
_HELD_OUT = (b"alid", b"est set")
MarkKind = Literal["state", "message", "warning", "exit"]


class Mark(Struct, frozen=True, kw_only=True):
    """Something that happened, on the axis of time."""

    at: float
    kind: MarkKind
    text: str


class FirstError(Struct, frozen=True, kw_only=True):
    """The first process that failed, and its last lines."""

    process: Process
    at: float
    lines: tuple[str, ...]


class RankHistory(Struct, kw_only=True):
    """One worker of an attempt. broke: for each metric that became nan or inf, when. counted: see _speed."""

    process: Process
    curves: dict[str, Curve] = field(default_factory=dict)
    broke: dict[str, float] = field(default_factory=dict)
    counted: tuple[float, int] | None = None

    def take(self, report: Report, at: float) -> None:
        """Adds the numbers of a report."""
        self._add(SPEED, self._speed(report, at), at)
        self._add(EPOCH_TIME, report.epoch_s, at)
        for name, value in report.metrics.items():
            self._add(name, value, at)

    def _add(self, name: str, value: float | None, at: float) -> None:
        if value is None or (name not in self.curves and len(self.curves) >= MOST_CURVES):
            return
        curve = self.curves.setdefault(name, Curve())
        if math.isfinite(value):
            curve.add(at, value)
        else:
            self.broke.setdefault(name, at)

    def _speed(self, report: Report, at: float) -> float | None:
        """Samples/s as reported, or the samples since the last report that counts them, over the time since then."""
        if report.samples_per_s is not None or report.samples is None:
            return report.samples_per_s
        before, self.counted = self.counted, (at, report.samples)
        if before is None or report.samples <= before[1] or at <= before[0]:
            return None
        return (report.samples - before[1]) / (at - before[0])


class _Sample(Struct):
    """Which lines of output to examine when there are too many: in each part of the time, one number of each process.

    until: the end of this part, in seconds since the epoch, as the log has it. misses: of each process, the lines
    without a number; MISSES: it has had its turn. left: how many have not.
    """

    until: bytes = b""
    misses: dict[bytes, int] = field(default_factory=dict)
    left: int = 0

    def begin(self, at: float, length: float, processes: int) -> None:
        """Begins another part of the time."""
        self.until, self.left = b"%d" % (at + max(length, 1.0)), processes
        self.misses.clear()

    def note(self, key: bytes, *, has_number: bool, is_due: bool) -> None:
        """Notes that a line was examined."""
        self.misses[key] = MISSES if has_number else self.misses.get(key, 0) + 1
        self.left -= self.misses[key] >= MISSES and is_due


class History:
    """Reads a job's log, line by line, in order. advisor: gives the hints."""

    def __init__(self, advisor: Advisor | None = None) -> None:
        self.events = EventReader()
        self.ranks: dict[int, RankHistory] = {}
        self.states: list[tuple[float, JobState]] = []
        self.marks: list[Mark] = []
        self.hints: list[tuple[str, str]] = []  # whose, and the hint
        self.first_error: FirstError | None = None
        self.result: JobResult | None = None
        self.began_at = self.now = 0.0
        self.lines = self.examined = self._reports = 0
        self._advisor = advisor or Advisor()
        self._recent: deque[bytes] = deque(maxlen=RECENT)
        self._sample = _Sample()

    @property
    def is_sampled(self) -> bool:
        """Whether only a part of the lines was examined."""
        return self.examined < self.lines

    def read(self, lines: Iterable[bytes]) -> None:
        """Reads lines of the log, up to the job's result."""
        rest = iter(lines)
        while self.result is None and self.lines < EXACT_LINES and self._reports < EXACT_REPORTS:
            line = next(rest, None)
            if line is None:
                return
            self._recent.append(line)
            self.lines += line.find(_OUTPUT, 0, OUTPUT_WITHIN) >= 0
            self._take(line)
        while self.result is None and (batch := list(islice(rest, BATCH))):
            self._recent.extend(batch)
            if self._can_skip(batch):
                self.lines += len(batch)
            else:
                self._read_batch(batch)

    def _can_skip(self, batch: Sequence[bytes]) -> bool:
        """Whether there is nothing to examine in these lines. A search in all of them together is the fastest."""
        if self._sample.left > 0 or batch[-1][_SECOND] >= self._sample.until:
            return False
        joined = b"\n".join(batch)
        # The result of a validation is rarer than other numbers.
        return joined.count(_OUTPUT) == len(batch) and not any(word in joined for word in _HELD_OUT)

    def _read_batch(self, batch: Sequence[bytes]) -> None:
        for line in batch:
            end = line.find(_OUTPUT, 0, OUTPUT_WITHIN)
            if end < 0:
                self._take(line)
                if self.result is not None:
                    return
            else:
                self.lines += 1
                self._take_sample(line, end)

    def _take_sample(self, line: bytes, end: int) -> None:
        """Examines a line of output unless its process has had its turn."""
        sample = self._sample
        comma = line.find(b",", 0, end)
        if line[_SECOND] >= sample.until:
            at = float(line[6:comma])
            each = max(SAMPLES // max(len(self.ranks), 1), LEAST_SAMPLES)
            sample.begin(at, (at - self.began_at) / each, len(self.ranks))
        key = line[comma:end]
        is_held_out = any(word in line for word in _HELD_OUT)
        if is_held_out:
            key += b"v"
        if sample.misses.get(key, 0) < MISSES:
            sample.note(key, has_number=self._take(line), is_due=not is_held_out)

    def _take(self, line: bytes) -> bool:
        """Examines a line; whether it had a number."""
        event = self.events.read(line)
        if event is None:
            return False
        self.began_at = self.began_at or event.at
        self.now = max(self.now, event.at)
        hint = self._advisor.take(event)
        if hint is not None:
            self.hints.append((event.process.tag if event.process else "", hint))
        if event.kind == "line":
            self.examined += 1
            return self._take_output(event)
        self._note(event)
        return False

    def _take_output(self, event: Event) -> bool:
        if event.process is None or event.process.role != "worker":
            return False
        rank = self._rank(event.process)
        report = parse_report(event.text)
        if report is not None:
            self._reports += 1
            rank.take(report, event.at)
        return report is not None

    def _rank(self, process: Process) -> RankHistory:
        rank = self.ranks.setdefault(process.number, RankHistory(process=process))
        rank.process = process
        return rank

    def _note(self, event: Event) -> None:
        """Takes what is not output of a process."""
        if event.state is not None and (not self.states or self.states[-1][1] != event.state):
            self.states.append((event.at, event.state))
            self._mark(event.at, "state", event.state)
        if event.result is not None:
            self.result = event.result
        if event.kind in ("say", "damaged"):
            self._mark(event.at, "message", event.text)
        for text in event.warnings:
            self._mark(event.at, "warning", text)
        if event.kind == "process" and event.process is not None:
            self._note_process(event.process, event.at)

    def _note_process(self, process: Process, at: float) -> None:
        if process.role == "worker":
            self._rank(process)
        if not process.exit_code and process.signal is None:
            return
        is_ending = self.events.state == "ending"
        if process.signal is None or not is_ending:  # otherwise the supervisor has ended it
            how = f"exit code {process.exit_code}" if process.signal is None else f"signal {process.signal}"
            self._mark(at, "exit", f"{process.tag}: {how}")
        if self.first_error is None and not is_ending:
            self.first_error = FirstError(process=process, at=at, lines=self._find_last_lines(process.number))

    def _find_last_lines(self, number: int) -> tuple[str, ...]:
        mark, found = b'"p": %d, "line":' % number, deque[str]()
        for line in reversed(self._recent):
            if mark in line[:80]:
                event = self.events.read(line)
                if event is not None:
                    found.appendleft(event.text[:LONGEST_LINE])
                    self._give_hint(event)
            if len(found) == ERROR_LINES:
                break
        return tuple(found)

    def _give_hint(self, event: Event) -> None:
        """A hint for a line that may have been skipped; the advisor gives each one once."""
        hint = self._advisor.take(event)
        if hint is not None and event.process is not None:
            self.hints.append((event.process.tag, hint))

    def _mark(self, at: float, kind: MarkKind, text: str) -> None:
        known = any(mark.kind == "warning" and mark.text == text for mark in self.marks) if kind == "warning" else False
        if len(self.marks) < MOST_MARKS and not known:
            self.marks.append(Mark(at=at, kind=kind, text=text[:LONGEST_LINE]))


def group_by_rank(ranks: Iterable[RankHistory]) -> dict[str, RankHistory]:
    """The workers of all attempts by their label, "rank 3"; a rank has one curve over all of its attempts. Pure."""
    found: dict[str, RankHistory] = {}
    for one in sorted(ranks, key=_order):
        rank = one.process.rank
        label = f"{one.process.tag} ({one.process.number})" if rank is None else f"rank {rank}"
        known = found.setdefault(label, RankHistory(process=one.process))
        known.process = one.process
        known.broke = one.broke | known.broke
        for name, curve in one.curves.items():
            before = known.curves[name].points if name in known.curves else []
            known.curves[name] = Curve([*before, *curve.points])
    return found


def _order(one: RankHistory) -> tuple[float, int]:
    return (math.inf if one.process.rank is None else one.process.rank, one.process.number)


def find_names(ranks: Iterable[RankHistory]) -> tuple[str, ...]:
    """The names of the numbers that ranks reported, in the order in which they appear. Pure."""
    return tuple(dict.fromkeys(name for one in ranks for name, curve in one.curves.items() if curve.points))


def mean(values: Iterable[float]) -> float:
    """The mean of some values. Pure."""
    listed = list(values)
    return sum(listed) / len(listed)


def find_how(name: str) -> Callable[[Iterable[float]], float]:
    """How a number of all ranks together is computed: speeds add up. Pure."""
    return sum if name == SPEED else mean
