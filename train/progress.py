"""How far each rank of a job is, from what its lines report (train/report.py).

What can be seen in it: with one worker's pace independent of the others' (dist_async, data read unevenly), a worker
that is slower than the rest. With dist_sync each step waits for the slowest worker, so all of them report its speed,
and who holds the others up cannot be told from these lines.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from train.events import Event, JobState, Process
from train.report import Report, parse_report

MOST_METRICS = 8
NEW_SHARE = 0.3  # of the newest report in the smoothed speed
SLOW_OF_MEDIAN = 0.8
SLOW_OF_OTHER = 0.7


@dataclass(kw_only=True, slots=True)
class RankProgress:
    """How far one worker is. speed: smoothed samples/s; heard_at: when it last said something, seconds since the epoch.

    epoch_s: how long its last whole epoch took.
    """

    process: Process
    heard_at: float
    epoch: int | None = None
    batch: int | None = None
    speed: float | None = None
    epoch_s: float | None = None
    metrics: dict[str, float] = field(default_factory=dict)

    @property
    def has_ended(self) -> bool:
        """Whether its process is gone."""
        return self.process.exit_code is not None

    def take(self, report: Report) -> None:
        """Note what it reports."""
        same_batch = report.epoch == self.epoch and report.batch is not None and report.batch == self.batch
        if report.epoch is not None and report.epoch != self.epoch:
            self.epoch, self.batch = report.epoch, None
        if report.batch is not None:
            self.batch = report.batch
        if report.samples_per_s is not None and not same_batch:
            # Before MXNet 1.2 there was one line for each metric, all with the same speed.
            self.speed = smooth(self.speed, report.samples_per_s)
        if report.epoch_s is not None:
            self.epoch_s = report.epoch_s
        for name, value in report.metrics.items():
            if name in self.metrics or len(self.metrics) < MOST_METRICS:
                self.metrics[name] = value


class Progress:
    """All workers of a job. Give it every event of the job's log, in order."""

    def __init__(self) -> None:
        self._ranks: dict[int, RankProgress] = {}
        self.began_at: float | None = None
        self.ended_at: float | None = None
        self.now: float = 0.0
        self.state: JobState = "queued"
        self.warnings: tuple[str, ...] = ()
        self.stalled_since: float | None = None  # since when no worker has made progress, where that was told

    def take(self, event: Event) -> Report | None:
        """Note an event; what its line reports, where it reports something."""
        self.now = max(self.now, event.at)
        if event.state is not None:
            self.state = event.state
            if event.state == "running" and self.began_at is None:
                self.began_at = event.at
        if event.stalled_since is not None:
            self.stalled_since = event.stalled_since or None
        if event.kind == "result":
            self.ended_at, self.stalled_since = event.at, None
        if event.kind == "warnings":
            self.warnings = event.warnings
        if event.process is None or event.process.role != "worker":
            return None
        rank = self._ranks.get(event.process.number)
        if rank is None:
            rank = self._ranks[event.process.number] = RankProgress(process=event.process, heard_at=event.at)
        rank.process = event.process
        if event.kind != "line":
            return None
        rank.heard_at = event.at
        report = parse_report(event.text)
        if report is not None:
            rank.take(report)
        return report

    @property
    def ranks(self) -> tuple[RankProgress, ...]:
        """The workers by rank, those without one yet at the end."""
        return tuple(sorted(self._ranks.values(), key=_order))

    @property
    def reporting(self) -> tuple[RankProgress, ...]:
        """The workers that have reported a speed, by rank."""
        return tuple(rank for rank in self.ranks if rank.speed is not None)

    @property
    def speed(self) -> float | None:
        """Samples/s of all workers together; of those that have ended, what they did at last. None: none reported."""
        speeds = [rank.speed for rank in self._ranks.values() if rank.speed is not None]
        return sum(speeds) if speeds else None

    @property
    def epoch(self) -> int | None:
        """The epoch that the first of the workers is in."""
        return max((rank.epoch for rank in self._ranks.values() if rank.epoch is not None), default=None)

    @property
    def stragglers(self) -> frozenset[int]:
        """The process numbers of those that run and are clearly slower than the rest; see the module's text."""
        speeds = {
            number: rank.speed for number, rank in self._ranks.items() if rank.speed is not None and not rank.has_ended
        }
        return find_stragglers(speeds)

    @property
    def metrics(self) -> dict[str, float]:
        """The mean over the workers of each metric's last value, in the order in which they were reported."""
        values: dict[str, list[float]] = {}
        for rank in self.ranks:
            for name, value in rank.metrics.items():
                values.setdefault(name, []).append(value)
        return {name: sum(each) / len(each) for name, each in values.items()}

    @property
    def duration_s(self) -> float | None:
        """How long the job has been running, or was, in seconds by the log's clock; None before that."""
        if self.began_at is None:
            return None
        return (self.ended_at if self.ended_at is not None else self.now) - self.began_at

    def render_summary(self) -> str | None:
        """The job in a line: "12.3 k samples/s over 4 workers, epoch 9, accuracy 0.98, 2 min 3 s". None: no reports."""
        reporting, speed = self.reporting, self.speed
        if speed is None:
            return None
        workers = "1 worker" if len(reporting) == 1 else f"{len(reporting)} workers"
        words = [f"{render_rate(speed)} samples/s over {workers}"]
        if self.epoch is not None:
            words.append(f"epoch {self.epoch}")
        words += [f"{name} {render_value(value)}" for name, value in list(self.metrics.items())[:3]]
        if self.duration_s is not None:
            words.append(render_duration(self.duration_s))
        return ", ".join(words)


def _order(rank: RankProgress) -> tuple[float, int]:
    process = rank.process
    return (math.inf if process.rank is None else process.rank, process.number)


def smooth(before: float | None, now: float) -> float:
    """A speed that does not jump with each report. Pure."""
    return now if before is None else before + NEW_SHARE * (now - before)


def find_stragglers(speeds: Mapping[int, float]) -> frozenset[int]:
    """Whose speed is under 80 % of the median of three or more, or under 70 % of the other of two. Pure."""
    if len(speeds) < 2:
        return frozenset()
    of_two = len(speeds) == 2
    limit = SLOW_OF_OTHER * max(speeds.values()) if of_two else SLOW_OF_MEDIAN * median(speeds.values())
    return frozenset(number for number, speed in speeds.items() if speed < limit)


def median(values: Iterable[float]) -> float:
    """The middle one of the values, or the mean of the middle two. Pure."""
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def render_rate(rate: float) -> str:
    """A number of samples/s, three digits of it: "6.44", "963", "12.3 k", "1.24 M". Pure."""
    for size, unit in ((1e6, " M"), (1e3, " k")):
        if rate >= size:
            return f"{_three_digits(rate / size)}{unit}"
    return _three_digits(rate)


def _three_digits(number: float) -> str:
    decimals = 2 if number < 9.995 else 1 if number < 99.95 else 0
    return f"{number:.{decimals}f}"


def render_value(value: float) -> str:
    """A metric, four digits of it. Pure."""
    return f"{value:.4g}"


def render_duration(seconds: float) -> str:
    """A time as people say it: "45 s", "2 min 3 s", "1 h 20 min". Pure."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
