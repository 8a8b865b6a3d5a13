"""The numbers that a job's workers report, from the lines of its log: by worker, step and time."""

import math
from collections.abc import Iterable, Iterator, Mapping

from msgspec import Struct

from foundation.decode import decode
from node.protocol import LogLine
from node.reports import Report, parse_report

SPEED = "samples/s"
_WORDS = (b'"role"', b'"rank"', b"poch", b"samples/s", b"oss", b"%|", rb"\u2501", b"/step", b"it [")
"""Other lines tell nothing: of them there may be very many."""


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


class Steps:
    """Counts the steps of one worker, in all attempts: its batches may start again with each epoch."""

    def __init__(self) -> None:
        self._before: dict[int | None, int] = {}  # the steps before each epoch
        self._base = self._last = 0

    def find(self, report: Report) -> int:
        """Returns the step of the worker's next report."""
        at = report.samples if report.batch is None else report.batch
        if at is None:
            return self._base + self._last if self._before else report.epoch or 0
        if report.epoch not in self._before:
            has_restarted = bool(self._before) and at <= self._last
            self._before[report.epoch] = self._base + (self._last + 1 if has_restarted else 0)
        self._base, self._last = self._before[report.epoch], at
        return self._base + at


class ScalarReader:
    """Reads the lines of a log, in order."""

    def __init__(self) -> None:
        self._hosts: dict[int, str] = {}  # of each worker, by its process's number
        self._ranks: dict[int, int] = {}
        self._steps: dict[int, Steps] = {}

    def read(self, lines: Iterable[bytes]) -> Iterator[Row]:
        """Yields the reports in lines, without damaged ones."""
        for line in lines:
            if any(word in line for word in _WORDS):
                try:
                    row = self._read(decode(line, LogLine))
                except ValueError:
                    continue
                if row is not None:
                    yield row

    def _read(self, said: LogLine) -> Row | None:
        if said.p is None:
            return None
        if said.role == "worker" and said.host is not None:
            self._hosts[said.p] = said.host
        if said.rank is not None:
            self._ranks[said.p] = said.rank
        report = parse_report(said.line) if said.line is not None and said.p in self._hosts else None
        if report is None:
            return None
        worker = self._ranks.get(said.p, said.p)
        speed = {} if report.samples_per_s is None else {SPEED: report.samples_per_s}
        return Row(
            at=said.t,
            worker=worker,
            host=self._hosts[said.p],
            step=self._steps.setdefault(worker, Steps()).find(report),
            epoch=report.epoch,
            batch=report.batch,
            numbers={**speed, **{name: value for name, value in report.metrics.items() if math.isfinite(value)}},
        )
