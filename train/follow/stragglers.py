"""Finds the worker for which the others wait, from the samples of a job's nodes. Pure.

In synchronous training, all workers have the same speed. The slowest one is the one that waits least: its threads
compute, or wait for a CPU, for a clearly larger part of the time than those of the others. With GPUs, whose waiting
keeps a CPU busy too, it is the one whose GPU draws clearly more power.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from node.protocol import Process
from node.samples import GpuSample, ProcessSample, Sample

WINDOW_S = 30.0
COVERED = 0.6  # of the window: a worker with fewer samples does not count
CLEARLY = 1.2  # times as busy as the median of the others; measured: at least 1.23 with 1.5 times the work, even 1.1
LEADS = 0.75  # of the samples in which it has to be busier than this median, as a burst is not
LEAST_BUSY = 0.2  # threads: below that, nothing computes
CROWDED = 0.4  # of its busy time for which it has no CPU


class Straggler(Struct, frozen=True, kw_only=True):
    """The worker for which the others wait. number: its own among the job's processes. why: a sentence."""

    number: int
    node: str
    rank: int | None
    why: str


def find_culprit(
    samples: Sequence[Sample], processes: Sequence[Process], *, window_s: float | None = WINDOW_S
) -> Straggler | None:
    """The worker that all others wait for; None if none clearly does.

    samples: in the order of their times. window_s: only the last ones count; None: all.
    """
    workers = {one.number: one for one in processes if one.role == "worker"}
    series: dict[int, list[tuple[Sample, ProcessSample]]] = {}
    for sample in _choose(samples, window_s):
        known = tuple(process for process in sample.processes if process.p in workers)
        for process in known:
            series.setdefault(process.p, []).append((replace(sample, processes=known), process))
    longest_s = max((_sum(rows, lambda *_: 1.0) for rows in series.values()), default=0.0)
    least_s = COVERED * max(window_s or longest_s, WINDOW_S)  # a job's first seconds are imports, not training
    series = {p: rows for p, rows in series.items() if _sum(rows, lambda *_: 1.0) >= least_s}
    found = _lead(series, _find_busy, LEAST_BUSY)
    what = _describe_busy
    if found is None and all(_find_power(*row) is not None for rows in series.values() for row in rows):
        found, what = _lead(series, lambda *row: _find_power(*row) or 0.0, 1.0), _describe_power
    if found is None:
        return None
    p, most, others = found
    worker = workers[p]
    name = f"worker {'?' if worker.rank is None else worker.rank} on {worker.host}"
    why = f"{name} waits least: {what(series[p], most, others)}"
    return Straggler(number=p, node=worker.host, rank=worker.rank, why=why)


def _choose(samples: Sequence[Sample], window_s: float | None) -> list[Sample]:
    """The last samples of each node, by its own clock."""
    last = {sample.host: sample.t for sample in samples}
    return [one for one in samples if window_s is None or one.t > last[one.host] - window_s]


Rows = Sequence[tuple[Sample, ProcessSample]]


def _lead(
    series: Mapping[int, Rows], value: Callable[[Sample, ProcessSample], float], least: float
) -> tuple[int, float, float] | None:
    """The worker with a clearly larger value than the others: (number, its mean, the median of theirs)."""
    if len(series) < 2:
        return None
    means = {p: _sum(rows, value) / _sum(rows, lambda *_: 1.0) for p, rows in series.items()}
    first = max(means, key=lambda p: means[p])
    others = statistics.median(mean for p, mean in means.items() if p != first)
    leads = [value(*row) > others for row in series[first]]
    if means[first] < max(least, CLEARLY * others) or sum(leads) < LEADS * len(leads):
        return None
    return first, means[first], others


def _sum(rows: Rows, value: Callable[[Sample, ProcessSample], float]) -> float:
    return sum(value(sample, process) * max(sample.over_s, 1e-3) for sample, process in rows)


def _find_busy(_sample: Sample, process: ProcessSample) -> float:
    return process.cpu + process.delayed


def _find_power(sample: Sample, process: ProcessSample) -> float | None:
    """The power of a worker's GPUs; None if they do not report it, or it is unknown which ones it has."""
    powers = [gpu.power_w for gpu in _find_gpus(sample, process)]
    known = [power for power in powers if power is not None]
    return sum(known) if known and len(known) == len(powers) else None


def _find_gpus(sample: Sample, process: ProcessSample) -> Sequence[GpuSample]:
    """The GPUs of a worker: all of its node, or its share, by the order of the workers."""
    numbers = sorted(one.p for one in sample.processes)
    size, rest = divmod(len(sample.gpus), len(numbers))
    at = numbers.index(process.p) * size
    return () if rest else sample.gpus[at : at + size]


def _describe_busy(rows: Rows, most: float, others: float) -> str:
    delayed = _sum(rows, lambda _, process: process.delayed) / max(_sum(rows, _find_busy), 1e-9)
    crowded = f"; for {100 * delayed:.0f} % of that, it has no CPU" if delayed > CROWDED else ""
    if most <= 1:
        return f"it computes {100 * most:.0f} % of the time, the others {100 * others:.0f} %{crowded}"
    return f"{most:.2f} of its threads compute on average, of the others' {others:.2f}{crowded}"


def _describe_power(rows: Rows, most: float, others: float) -> str:
    throttled = sorted({gpu.throttled for sample, process in rows for gpu in _find_gpus(sample, process)} - {""})
    slowed = f"; its clocks are lowered: {', '.join(throttled)}" if throttled else ""
    return f"its GPUs draw {most:.0f} W, those of the others {others:.0f} W{slowed}"
