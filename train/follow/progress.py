"""The progress of each rank of a job, by the reports in its output (node/reports.py).

A slow worker can be detected only if its speed is independent of the others' (dist_async, uneven data). With dist_sync,
each step waits for the slowest worker, and all workers report its speed.
"""

import math
import statistics
from collections.abc import Mapping

from msgspec import Struct, field

from node.job.scalars import EPOCH_TIME, SPEED, Numbers
from node.protocol import JobResult, JobState
from node.reports import Report, parse_bars, parse_report
from train.follow.events import Event, Process
from train.follow.goals import Goal, describe_goal, parse_epochs

MOST_METRICS = 8
NEW_SHARE = 0.3  # of the newest report in the smoothed speed
SLOW_OF_MEDIAN = 0.8
SLOW_OF_OTHER = 0.7
MOST_BARS = 8  # rows of a worker's bars
LONGEST_BAR = 300  # characters of each


class RankProgress(Struct, kw_only=True):
    """One worker's progress. speed: smoothed samples/s. received_at: time of its last output, seconds since the epoch.

    reported_at: that of its last line with a report. epoch_s: the duration of its last whole epoch. bar: the rows of
    its current progress bar. epochs: how many there will be. first_epoch: the first one that it reported. epoch_at:
    when it first reported the current one. has_ended_epoch: it did so at its end. counts_epochs: as in Report.
    """

    process: Process
    received_at: float
    reported_at: float = 0.0
    epoch: int | None = None
    batch: int | None = None
    speed: float | None = None
    epoch_s: float | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    bar: tuple[str, ...] = ()
    numbers: Numbers = field(default_factory=Numbers)
    epochs: int | None = None
    first_epoch: int = 0
    epoch_at: float = 0.0
    has_ended_epoch: bool = False
    counts_epochs: bool = False

    @property
    def has_ended(self) -> bool:
        """Whether its process has ended."""
        return self.process.exit_code is not None

    @property
    def has_report(self) -> bool:
        """Whether it has reported anything."""
        return self.epoch is not None or self.batch is not None or self.speed is not None or bool(self.metrics)

    def take(self, report: Report) -> None:
        """Updates the progress with a report."""
        same_batch = report.epoch == self.epoch and report.batch is not None and report.batch == self.batch
        self.counts_epochs = self.counts_epochs or report.counts_epochs
        if report.epoch is not None and report.epoch != self.epoch:
            self._take_epoch(report.epoch)
            self.has_ended_epoch = report.is_of_epoch and not self.counts_epochs
        if report.batch is not None:
            self.batch, self.has_ended_epoch = report.batch, False
        numbers = self.numbers.read(report, self.received_at)
        speed, self.epoch_s = numbers.pop(SPEED, None), numbers.pop(EPOCH_TIME, self.epoch_s)
        if speed is not None and not same_batch:
            # Before 1.2, MXNet printed one line for each metric, all with the same speed.
            self.speed = speed if self.speed is None else self.speed + NEW_SHARE * (speed - self.speed)
        for name, value in numbers.items():
            if name in self.metrics or len(self.metrics) < MOST_METRICS:
                self.metrics[name] = value

    def _take_epoch(self, epoch: int) -> None:
        if self.epoch is None:
            self.first_epoch = 0 if self.counts_epochs else epoch
        elif epoch == self.epoch + 1:
            self.epoch_s = self.received_at - self.epoch_at
        self.epoch, self.batch, self.epoch_at = epoch, None, self.received_at

    def find_goal(self, epochs: int | None, *, now: float) -> Goal | None:
        """How far it is; None if nothing says how far it has to go. epochs: of the command line."""
        epochs = epochs or self.epochs
        if epochs is None or self.epoch is None:
            return None
        if self.process.exit_code == 0:
            return Goal(1.0, None)
        elapsed_s = (self.received_at if self.has_ended else now) - self.epoch_at
        epoch = self.epoch + self.has_ended_epoch
        goal = describe_goal(epochs, epoch, first=self.first_epoch, epoch_s=self.epoch_s, elapsed_s=elapsed_s)
        return Goal(goal.share, None) if self.has_ended else goal

    def take_bar(self, text: str, at: float) -> None:
        """Updates the progress with the rows of the current progress bar; "": it has none any longer.

        A bar arrives up to a second late, when the numbers of later lines may be known.
        """
        text = text[: MOST_BARS * LONGEST_BAR]
        self.bar = tuple(row for row in text.split("\n")[:MOST_BARS] if row)
        if self.bar:
            self.received_at = max(self.received_at, at)
            self.epochs = parse_epochs(self.bar[0]) or self.epochs
        for report in parse_bars(text) if at > self.reported_at else ():
            self.take(report)


class Progress:
    """The progress of all workers of a job. Needs every event of the job's log, in order.

    epochs: how many the command line asks for.
    """

    def __init__(self, *, epochs: int | None = None) -> None:
        self.epochs = epochs
        self._ranks: dict[int, RankProgress] = {}
        self.began_at: float | None = None
        self.ended_at: float | None = None
        self.result: JobResult | None = None
        self.now: float = 0.0
        self.state: JobState = "queued"
        self.warnings: tuple[str, ...] = ()
        self.stalled_since: float | None = None  # when a worker last made progress, if the supervisor reported a stall

    def take(self, event: Event) -> Report | None:
        """Updates the progress with an event; returns the report in its line, if any."""
        self.now = max(self.now, event.at)
        if event.state is not None:
            self._take_state(event.state, event.at)
        if event.stalled_since is not None:
            self.stalled_since = event.stalled_since or None
        if event.kind == "result":
            self.result = event.result
            self.ended_at, self.stalled_since = event.at, None
        if event.kind == "warnings":
            self.warnings = event.warnings
        if event.process is None or event.process.role != "worker":
            return None
        return self._take_output(event, event.process)

    def _take_output(self, event: Event, process: Process) -> Report | None:
        rank = self._ranks.get(process.number)
        if rank is None:
            rank = self._ranks[process.number] = RankProgress(process=process, received_at=event.at)
        rank.process = process
        if rank.has_ended:
            rank.bar = ()
        if event.kind == "bar":
            rank.take_bar(event.text, event.at)
        if event.kind != "line":
            return None
        rank.received_at = event.at
        report = parse_report(event.text)
        if report is not None:
            rank.reported_at = event.at
            rank.take(report)
            rank.epochs = parse_epochs(event.text) or rank.epochs
        return report

    def _take_state(self, state: JobState, at: float) -> None:
        self.state = state
        if state == "starting":  # a later attempt has processes of its own
            self._ranks, self.stalled_since = {}, None
        if state == "running" and self.began_at is None:
            self.began_at = at

    @property
    def ranks(self) -> tuple[RankProgress, ...]:
        """The workers by rank, those without a rank last."""
        return tuple(sorted(self._ranks.values(), key=_order))

    @property
    def speed(self) -> float | None:
        """Samples/s of all workers together, with the last speed of those that have ended; None without reports."""
        speeds = [rank.speed for rank in self._ranks.values() if rank.speed is not None]
        return sum(speeds) if speeds else None

    @property
    def epoch(self) -> int | None:
        """The epoch of the most advanced worker."""
        return max((rank.epoch for rank in self._ranks.values() if rank.epoch is not None), default=None)

    @property
    def stragglers(self) -> frozenset[int]:
        """The process numbers of running workers that are clearly slower than the rest; see the module's docstring."""
        speeds = {
            number: rank.speed for number, rank in self._ranks.items() if rank.speed is not None and not rank.has_ended
        }
        return find_stragglers(speeds)

    @property
    def metrics(self) -> dict[str, float]:
        """Each metric's last value, averaged over the workers, in the order of the reports."""
        values: dict[str, list[float]] = {}
        for rank in self.ranks:
            for name, value in rank.metrics.items():
                values.setdefault(name, []).append(value)
        return {name: sum(each) / len(each) for name, each in values.items()}

    @property
    def duration_s(self) -> float | None:
        """How long the job has run, in seconds by the log's clock; None before its start."""
        if self.began_at is None:
            return None
        return (self.ended_at if self.ended_at is not None else self.now) - self.began_at


def _order(rank: RankProgress) -> tuple[float, int]:
    process = rank.process
    return (math.inf if process.rank is None else process.rank, process.number)


def find_stragglers(speeds: Mapping[int, float]) -> frozenset[int]:
    """The workers slower than 80 % of the median of three or more, or than 70 % of the other of two. Pure."""
    if len(speeds) < 2:
        return frozenset()
    of_two = len(speeds) == 2
    limit = SLOW_OF_OTHER * max(speeds.values()) if of_two else SLOW_OF_MEDIAN * statistics.median(speeds.values())
    return frozenset(number for number, speed in speeds.items() if speed < limit)


def render_rate(rate: float) -> str:
    """A rate with three digits: "6.44", "963", "12.3 k", "1.24 M". Pure."""
    for size, unit in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if rate >= size:
            return f"{_three_digits(rate / size)}{unit}"
    return _three_digits(rate)


def _three_digits(number: float) -> str:
    decimals = 2 if number < 9.995 else 1 if number < 99.95 else 0
    return f"{number:.{decimals}f}"


def render_value(value: float) -> str:
    """A metric with four digits. Pure."""
    return f"{value:.4g}"
