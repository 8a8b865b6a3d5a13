"""What `cluster watch` shows of a job. Threads that follow the job fill it; the screen reads it."""

import math
import re
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress

from msgspec import Struct

from cluster.app import App
from cluster.jobs import JobSources, end_job, open_head
from cluster.views.live import find_program, make_advisor
from cluster.views.terminal import escape_line, escape_plain
from foundation.errors import ClusterError
from node.job.scalars import SPEED
from node.protocol import JobResult, NewFiles
from node.samples import Sample
from train.follow.events import Event, EventReader, render_line
from train.follow.goals import find_epochs
from train.follow.progress import Progress
from train.follow.records import JobRecord
from train.follow.run import pass_on
from train.follow.samples import read_samples
from train.follow.stragglers import WINDOW_S, Straggler, find_culprit

MOST_LINES = 10_000
MOST_POINTS = 5000  # of each curve
LONGEST_LINE = 2000
SAMPLE_EVERY_S = 5.0


class LeftError(Exception):
    """The user has left."""


class LogRow(Struct, frozen=True):
    """A line of the log as shown. rank: None if it is not from a process with a rank."""

    text: str
    rank: int | None


class WatchedJob:
    """A job's progress, log and curves; hold `lock` to read. The screen runs `follow`, `sample` and `stop` in threads.

    left: set when the user leaves. added: how many lines the log has had so far. samples: the newest of each node.
    straggler: the worker for which the others wait, if synchronous. result, files: once has_ended.
    """

    def __init__(self, app: App, sources: JobSources, record: JobRecord) -> None:
        self._app, self._sources, self._record = app, sources, record
        self.title = escape_line(f"job {record.name}")
        self._head = next((node.name for node in record.nodes), "node-0")
        self._advisor = make_advisor(app, record.spec)
        self.lock, self.left = threading.Lock(), threading.Event()
        self.progress = Progress(epochs=find_epochs(find_program(record.spec)))
        self.lines: deque[LogRow] = deque(maxlen=MOST_LINES)
        self.added = 0
        self.curves: dict[str, deque[float]] = {}
        self.samples: dict[str, Sample] = {}
        self._recent: list[Sample] = []  # those that find_culprit takes
        self.straggler: Straggler | None = None
        self._leading: int | None = None  # the process at whose reports the curves get their points
        self._received_at = time.monotonic()
        self.result: JobResult | None = None
        self.files: Sequence[NewFiles] = ()
        self.has_ended = False

    def follow(self) -> None:
        """Follows the job until it ends or the user leaves. Raises ClusterError or a subclass."""
        reader = EventReader()
        log = self._sources.open_log(
            self._record, reader.learn, message=self.message, check=self._check_left, wait=True
        )
        with suppress(LeftError), log as lines:
            self.result = pass_on(lines, reader, self.take)
            self.files, self.has_ended = reader.files, True

    def _check_left(self) -> None:
        if self.left.is_set():
            raise LeftError

    def sample(self) -> None:
        """Fetches the nodes' samples until the job ends or the user leaves. Without them, the screen has no nodes."""
        nodes = self._sources.nodes
        if nodes is None:
            return
        config, since = self._app.config, 0.0
        results, region = config.data.s3_results, config.provision.region
        with suppress(ClusterError), open_head(self._app, nodes) as head:
            while not self.left.is_set():
                with suppress(ClusterError):  # the thread that follows the job says so
                    found = read_samples(self._record, head, results=results, region=region, since=since)
                    since = self.take_samples(found)
                if self.has_ended:
                    return
                self.left.wait(SAMPLE_EVERY_S)

    def stop(self) -> None:
        """Stops the job. The log shows an error."""
        nodes = self._sources.nodes
        if nodes is None:
            raise AssertionError  # without them, no job is found
        self.message(f"stopping job {self._record.id}")
        try:
            with open_head(self._app, nodes) as head:
                end_job(self._app, head, self._record.id, message=self.message)
        except ClusterError as error:
            self.message(f"{error.message} ({error.hint})" if error.hint else error.message)

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
            if self._record.spec.is_synchronous:
                self.straggler = find_culprit(self._recent, [rank.process for rank in self.progress.ranks])
            return newest

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
