"""What `cluster watch` shows of a job. A thread that follows the job fills it; the screen reads it."""

import math
import re
import threading
import time
from collections import deque

from msgspec import Struct

from cluster.views.terminal import escape_line, escape_plain
from node.job.scalars import SPEED
from node.samples import Sample
from train.follow.advice import Advisor
from train.follow.events import Event, render_line
from train.follow.progress import Progress
from train.follow.stragglers import WINDOW_S, Straggler, find_culprit

MOST_LINES = 10_000
MOST_POINTS = 5000  # of each curve
LONGEST_LINE = 2000


class LeftError(Exception):
    """The user has left; raised in the thread that follows the job."""


class LogRow(Struct, frozen=True):
    """A line of the log as shown. rank: None if it is not from a process with a rank."""

    text: str
    rank: int | None


class JobModel:
    """A job's progress, log and curves. A Sink for its events; hold `lock` to read.

    title: the job's name. head: the supervisor's node. added: how many lines the log has had so far. samples: the
    newest of each node. straggler: the worker for which the others wait, if synchronous. error: why the job could not
    be followed to its end.
    """

    def __init__(self, *, title: str, head: str, epochs: int | None, advisor: Advisor, synchronous: bool) -> None:
        self.title, self._head, self._advisor = escape_line(title), head, advisor
        self._synchronous = synchronous
        self.lock = threading.Lock()
        self.progress = Progress(epochs=epochs)
        self.lines: deque[LogRow] = deque(maxlen=MOST_LINES)
        self.added = 0
        self.curves: dict[str, deque[float]] = {}
        self.samples: dict[str, Sample] = {}
        self._recent: list[Sample] = []  # those that find_culprit takes
        self.straggler: Straggler | None = None
        self.error: BaseException | None = None
        self._leading: int | None = None  # the process at whose reports the curves get their points
        self._received_at = time.monotonic()
        self._left = threading.Event()

    def take(self, event: Event) -> None:
        """Takes the next event of the job."""
        with self.lock:
            warnings = [text for text in event.warnings if text not in self.progress.warnings]
            report = self.progress.take(event)
            self._received_at = time.monotonic()
            line = None if report is not None and report.is_passing else render_line(event, head=self._head)
            texts = [*([] if line is None else [line]), *(f"[cluster] warning: {text}" for text in warnings)]
            advice = self._advisor.take(event)
            for text in [*texts, *([] if advice is None else [f"[cluster] hint: {advice}"])]:
                self._add(text, event.process.rank if event.process is not None else None)
            if event.state == "starting":
                self._leading = None
            if event.process is not None and (report is not None or event.kind == "bar"):
                self._extend_curves(event.process.number)

    def message(self, text: str) -> None:
        """Adds a message of `cluster` itself to the log."""
        with self.lock:
            self._add(f"[cluster] {text}", None)

    def take_samples(self, samples: list[Sample]) -> float:
        """Takes newer samples of nodes; returns the time of the newest one."""
        with self.lock:
            self.samples |= {sample.host: sample for sample in samples}
            newest = max((sample.t for sample in self.samples.values()), default=0.0)
            self._recent = [one for one in (*self._recent, *samples) if one.t > newest - 2 * WINDOW_S]
            if self._synchronous:
                self.straggler = find_culprit(self._recent, [rank.process for rank in self.progress.ranks])
            return newest

    def leave(self) -> None:
        """Ends the thread that follows the job, which calls `refresh` several times a second."""
        self._left.set()

    def refresh(self) -> None:
        """Raises LeftError once the user has left."""
        if self._left.is_set():
            raise LeftError

    def wait(self, seconds: float) -> bool:
        """Waits; returns whether the user has left."""
        return self._left.wait(seconds)

    @property
    def now(self) -> float:
        """The time by the log's clock, in seconds since the epoch."""
        progress = self.progress
        return progress.ended_at or progress.now + (time.monotonic() - self._received_at)

    def _add(self, text: str, rank: int | None) -> None:
        for one in text[: 8 * LONGEST_LINE].split("\n"):
            self.lines.append(LogRow(escape_plain(one)[:LONGEST_LINE], rank))
            self.added += 1

    @property
    def values(self) -> dict[str, float]:
        """What the curves show: the sum of the workers' speeds, and the means of their metrics."""
        speed = self.progress.speed
        named = {**({} if speed is None else {SPEED: speed}), **self.progress.metrics}
        return {escape_line(name): value for name, value in named.items() if math.isfinite(value)}

    def _extend_curves(self, number: int) -> None:
        """Adds a point to each curve at the reports of one worker, from its second one on: all have reported then."""
        if self._leading is None:
            self._leading = number
        elif self._leading == number:
            for name, value in self.values.items():
                self.curves.setdefault(name, deque(maxlen=MOST_POINTS)).append(value)


def find_rows(rows: list[LogRow], words: str) -> list[str]:
    """The lines that a filter selects: a number those of that rank, other words those that have them. Pure."""
    words = words.strip().lower()
    rank = int(words) if re.fullmatch("[0-9]{1,9}", words) else None
    return [row.text for row in rows if (row.rank == rank if rank is not None else words in row.text.lower())]
