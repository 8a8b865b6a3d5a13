"""The numbers that a job's workers report, from the lines of its log: by worker, step and time."""

import json
import math
from collections.abc import Iterable, Iterator, Mapping

from msgspec import Struct
from msgspec.structs import replace

from node import reports
from node.job.events import Event, EventReader
from node.reports import Report, parse_report

SPEED = "samples/s"
EPOCH_TIME = "epoch time, s"
WORDS = tuple(json.dumps(word)[1:-1].encode() for word in reports.WORDS)
"""A line of the log without any of them has no number: of such lines there may be very many."""
_PROCESSES = (b'"role"', b'"rank"')


class Row(Struct, frozen=True, kw_only=True):
    """One report. at: seconds since the epoch. worker: its rank, or its number if it has none. numbers: by their names.

    step: that of the training, which also counts the batches of the epochs before; without batches, the epoch.
    """

    at: float
    worker: int
    host: str
    step: int
    epoch: int | None
    batch: int | None
    numbers: Mapping[str, float]


class Numbers:
    """Names the numbers in the reports of one worker. Its speed may be that of the samples that it counts."""

    def __init__(self) -> None:
        self._counted: tuple[float, int] | None = None  # the time of its last report with samples, and how many

    def read(self, report: Report, at: float) -> dict[str, float]:
        """Returns the numbers of the next report, some of which may be nan or infinite. at: seconds since the epoch."""
        found = {SPEED: self._find_speed(report, at), EPOCH_TIME: report.epoch_s, **report.metrics}
        return {name: value for name, value in found.items() if value is not None}

    def _find_speed(self, report: Report, at: float) -> float | None:
        """Samples/s as reported, or the samples since the last report that counts them, over the time since then."""
        if report.samples_per_s is not None or report.samples is None:
            return report.samples_per_s
        before, self._counted = self._counted, (at, report.samples)
        if before is None or report.samples <= before[1] or at <= before[0]:
            return None
        return (report.samples - before[1]) / (at - before[0])


class Steps:
    """Counts the steps of one worker, in all attempts: its batches may start again with each epoch.

    A report without an epoch, as of Keras' bars, belongs to the one that was reported last.
    """

    def __init__(self) -> None:
        self._before: dict[int | None, int] = {}  # the steps before each epoch
        self._base = self._last = 0
        self._gap: int | None = None  # between the last two reports, if both are of one epoch
        self._epoch: int | None = None

    def find(self, report: Report) -> int:
        """Returns the step of the worker's next report."""
        at = report.samples if report.batch is None else report.batch
        self._epoch = self._epoch if report.epoch is None else report.epoch
        if at is None:
            return self._base + self._last if self._before else self._epoch or 0
        gap: int | None = at - self._last
        if self._epoch not in self._before:
            has_restarted = bool(self._before) and at <= self._last
            # The reports stay as far apart: of 20 batches, a loop may print 10, 15, then 0. A bar shows all of them.
            after = 1 if self._gap is None else max(self._gap - at, 0)
            self._before[self._epoch] = self._base + (self._last + after if has_restarted else 0)
            gap = None
        self._base, self._last, self._gap = self._before[self._epoch], at, 0 if report.is_bar else gap
        return self._base + at


class ScalarReader:
    """Reads the numbers in the events of a log, in order."""

    def __init__(self) -> None:
        self.events = EventReader()
        self._numbers: dict[int, Numbers] = {}  # by the number of the process
        self._steps: dict[int, Steps] = {}  # by worker

    def read(self, lines: Iterable[bytes]) -> Iterator[Row]:
        """Yields the reports in lines, without damaged ones, and without numbers that are nan or infinite."""
        for line in lines:
            if any(word in line for word in (*WORDS, *_PROCESSES)):
                event = self.events.read(line)
                row = self.take(event) if event is not None else None
                if row is not None:
                    yield replace(row, numbers={name: one for name, one in row.numbers.items() if math.isfinite(one)})

    def take(self, event: Event) -> Row | None:
        """Returns the report in an event, if it is a worker's line with one; its numbers as Numbers.read."""
        process = event.process
        if event.kind != "line" or process is None or process.role != "worker":
            return None
        report = parse_report(event.text)
        if report is None or (report.is_bar and not report.metrics and report.samples_per_s is None):
            return None  # a bar without numbers may count batches of an evaluation
        worker = process.number if process.rank is None else process.rank
        return Row(
            at=event.at,
            worker=worker,
            host=process.host,
            step=self._steps.setdefault(worker, Steps()).find(report),
            epoch=report.epoch,
            batch=report.batch,
            numbers=self._numbers.setdefault(process.number, Numbers()).read(report, event.at),
        )
