"""What happened in a job, from the lines of its log: the numbers that its ranks reported, its states and its errors."""

import re
from collections import deque
from collections.abc import Iterable, Mapping
from itertools import chain

from msgspec import Struct, field

from cluster.report.curves import Curve
from node.job.events import Event, EventReader
from node.job.scalars import WORDS, ScalarReader
from node.protocol import JobResult, JobState, Process
from train.follow.advice import Advisor

EXACT_LINES = 10_000  # each takes up to 0.1 ms; of later ones, one of each rank whenever the log has grown by a part
MOST_PARTS = 1000  # divided by the number of ranks
LEAST_PARTS = 30
MOST_COUNTED = 8  # workers whose lines in a batch are counted, which takes longer for more than to examine the lines
MOST_CURVES = 16  # of each rank
LARGEST = 1e100  # number that is drawn: pygal computes with squares
MOST_MARKS = 200
RECENT = 40  # blocks in which the lines before an error are searched
ERROR_LINES = 30
OUTPUT_WITHIN = 80  # bytes, where a line of output says so
LONGEST_LINE = 400  # characters of a line that the report shows
_OUTPUT = b', "line": "'  # as node/wire.py writes it, after the time and the process
_HELD_OUT = re.compile(rb"alid|est set|[Vv]al[ _]|eval")


class FirstError(Struct, frozen=True, kw_only=True):
    """The process whose failure has ended the job, or the attempt before the present one, and its last lines."""

    process: Process
    lines: tuple[str, ...]


class RankHistory(Struct, kw_only=True):
    """One worker, with its newest process."""

    process: Process
    curves: dict[str, Curve] = field(default_factory=dict)

    def take(self, numbers: Mapping[str, float], at: float) -> None:
        """Adds the numbers of a report."""
        for name, value in numbers.items():
            if abs(value) <= LARGEST and (name in self.curves or len(self.curves) < MOST_CURVES):  # nan is not
                self.curves.setdefault(name, Curve()).add(at, value)


class History:
    """Reads a job's log, line by line, in order. advisor: gives the hints."""

    def __init__(self, advisor: Advisor | None = None) -> None:
        self.events = EventReader()
        self.labels: dict[int, str] = {}  # of workers, "rank 3", by the number of the process
        self._ranks: dict[str, RankHistory] = {}
        self.states: list[tuple[float, JobState]] = []
        self.marks: deque[tuple[float, str, str]] = deque(maxlen=MOST_MARKS)  # time, kind and text of the newest ones
        self.broken: dict[str, str] = {}  # a warning for each number that became nan or too large to draw
        self.hints: list[tuple[str, str]] = []  # whose, and the hint
        self.first_error: FirstError | None = None
        self.result: JobResult | None = None
        self.began_at = self.now = 0.0
        self.lines = self.examined = 0
        self._due: dict[bytes, int] = {}  # by the process, as lines have it: at how many lines the next is examined
        self._advisor = advisor or Advisor()
        self._numbers = ScalarReader()
        self._recent: deque[bytes] = deque(maxlen=RECENT)

    def read(self, blocks: Iterable[bytes]) -> None:
        """Reads blocks of whole lines of the log, up to the job's result.

        There may be millions of lines: most of them are only counted.
        """
        for block in blocks:
            if self.result is not None:
                return
            self._recent.append(block)
            count = block.count(b"\n")
            if self._is_examined(block, count):
                for line in _lines_of(block):
                    self._read_line(line)
            else:
                self.lines += count

    def _is_examined(self, block: bytes, count: int) -> bool:
        """Whether there may be more in these lines than output of workers of which none is due, without validation."""
        later = [process for process, due in self._due.items() if due >= self.lines + count]
        are_all = len(later) == len(self._due)
        if self.lines <= EXACT_LINES or not later or (len(later) > MOST_COUNTED and not are_all):
            return True
        outputs = [_OUTPUT] if are_all else [process + _OUTPUT for process in later]
        return sum(map(block.count, outputs)) < count or b"al" in block or b"est set" in block

    def _read_line(self, line: bytes) -> None:
        end = line.find(_OUTPUT, 0, OUTPUT_WITHIN)
        if end < 0:
            self._take(line)
        elif self.result is None:
            self.lines += 1
            process = line[line.find(b",", 0, end) : end]
            is_due = self.lines > self._due.get(process, EXACT_LINES)
            if self.lines <= EXACT_LINES or is_due or b"al" in line or b"est set" in line:
                self._read_output(line, process, is_due=is_due)

    def _read_output(self, line: bytes, process: bytes, *, is_due: bool) -> None:
        """Takes a line of output: of a long log, results of a validation, which are rare, and a few of the others."""
        if self.lines > EXACT_LINES and not is_due and not _HELD_OUT.search(line):
            return
        if is_due:
            if not any(word in line for word in WORDS):
                return
            parts = max(MOST_PARTS // max(len(self._ranks), 1), LEAST_PARTS)
            self._due[process] = self.lines + self.lines // parts
        self._take(line)

    def _take(self, line: bytes) -> None:
        """Examines a line, unless it is after the result."""
        event = self.events.read(line) if self.result is None else None
        if event is None:
            return
        self.began_at = self.began_at or event.at
        self.now = max(self.now, event.at)
        self._give_hint(event)
        if event.kind != "line":
            self._note(event)
            return
        self.examined += 1
        row = self._numbers.take(event)
        if row is not None and event.process is not None:
            self._rank(event.process).take(row.numbers, event.at)
            for name, value in row.numbers.items():
                if not abs(value) <= LARGEST and name not in self.broken:  # nan is not
                    self.broken[name] = f"{name} became nan, inf or over {LARGEST:g}, first on {event.process.tag}"
                    self._mark(event.at, "warning", self.broken[name])

    @property
    def ranks(self) -> dict[str, RankHistory]:
        """The workers by label, in the order of their ranks."""
        return dict(sorted(self._ranks.items(), key=lambda item: (item[1].process.rank is None, item[1].process.rank)))

    def _rank(self, process: Process) -> RankHistory:
        """The worker of a process. A rank is one worker in all attempts."""
        label = f"{process.tag} ({process.number})" if process.rank is None else f"rank {process.rank}"
        before, self.labels[process.number] = self.labels.get(process.number, label), label
        if before != label and before in self._ranks:  # its rank has become known
            self._ranks.setdefault(label, self._ranks.pop(before))
        rank = self._ranks.setdefault(label, RankHistory(process=process))
        rank.process = process
        return rank

    def _note(self, event: Event) -> None:
        """Takes what is not output of a process."""
        if event.state is not None and (not self.states or self.states[-1][1] != event.state):
            self.states.append((event.at, event.state))
            self._mark(event.at, "state", event.state)
        if event.result is not None:
            self.result = event.result
            self.note_culprit(self.result.culprit)
        if event.kind in ("message", "damaged"):
            self._mark(event.at, "message", event.text)
        for text in event.warnings:
            if not any(text[:LONGEST_LINE] == known for *_, known in self.marks):
                self._mark(event.at, "warning", text)
        if event.kind == "process" and event.process is not None:
            self._note_process(event.process, event.at)

    def _note_process(self, process: Process, at: float) -> None:
        if process.role == "worker":
            self._rank(process)
            number = b', "p": %d' % process.number
            if process.exit_code is None:
                self._due.setdefault(number, EXACT_LINES)
            else:
                self._due.pop(number, None)
        if (process.exit_code or process.signal is not None) and self.events.state != "ending":
            how = f"exit code {process.exit_code}" if process.signal is None else f"signal {process.signal}"
            self._mark(at, "exit", f"{process.tag}: {how}")

    def note_culprit(self, number: int | None) -> None:
        """Takes the process whose failure has ended the job, or an attempt of it; None: there is none."""
        culprit = self.events.processes.get(number) if number is not None else None
        if culprit is not None:
            self.first_error = FirstError(process=culprit, lines=self._find_last_lines(culprit.number))

    def _find_last_lines(self, number: int) -> tuple[str, ...]:
        mark, found = b'"p": %d, "line":' % number, deque[str]()
        for line in chain.from_iterable(reversed(_lines_of(block)) for block in reversed(self._recent)):
            if mark in line[:80]:
                event = self.events.read(line)
                if event is not None:
                    found.appendleft(event.text[:LONGEST_LINE])
                    self._give_hint(event)
            if len(found) == ERROR_LINES:
                break
        return tuple(found)

    def _give_hint(self, event: Event) -> None:
        hint = self._advisor.take(event)  # it gives each one once
        if hint is not None:
            self.hints.append((event.process.tag if event.process else "", hint))

    def _mark(self, at: float, kind: str, text: str) -> None:
        self.marks.append((at, kind, text[:LONGEST_LINE]))


def _lines_of(block: bytes) -> list[bytes]:
    return block.removesuffix(b"\n").split(b"\n")
