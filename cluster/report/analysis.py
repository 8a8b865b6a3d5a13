"""The numbers of a job's ranks and nodes, and which rank is the slowest. Pure."""

import statistics
from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

from cluster.report.curves import Curve, Point, Summary, combine
from cluster.report.job import JobData
from node.job.scalars import EPOCH_TIME, SPEED
from node.samples import Sample
from train.follow.progress import find_stragglers, render_rate
from train.follow.stragglers import find_culprit


class Metric(Struct, frozen=True, kw_only=True):
    """A number that ranks reported. together, summary: speeds add up, other numbers have a mean. ranks: by label."""

    name: str
    together: tuple[Point, ...]
    summary: Summary
    ranks: Mapping[str, Curve]


GIB = 1 << 30
NodeNumber = Callable[[Sample], float | None]
"""Finds a number of a node in one of its samples; None if the node does not have it."""


def _of_gpus(field: str, of: Callable[[list[float]], float], scale: float = 1) -> NodeNumber:
    """One number of those of a node's GPUs. scale: what one of its unit is in the samples' unit."""

    def find(node: Sample) -> float | None:
        values = [value for gpu in node.gpus if (value := getattr(gpu, field)) is not None]
        return of(values) / scale if values else None

    return find


NODE_NUMBERS: Mapping[str, NodeNumber] = {
    "CPU, % of all cores": lambda node: node.cpu,
    "Memory, GiB": lambda node: node.memory / GIB,
    "GPU use, %, mean of its GPUs": _of_gpus("use", statistics.fmean),
    "GPU memory, GiB, all of its GPUs": _of_gpus("memory", sum, GIB),
    "GPU power, W, all of its GPUs": _of_gpus("power_w", sum),
    "GPU temperature, °C, hottest": _of_gpus("temperature", max),
    "GPU memory errors since the boot, all of its GPUs": _of_gpus("errors", sum),
    "Network received, MB/s": lambda node: node.received / 1e6,
    "Network sent, MB/s": lambda node: node.sent / 1e6,
    "Shared memory (/dev/shm), GiB": lambda node: node.shm / GIB,
    "Disk with the jobs, GiB": lambda node: node.disk / GIB,
    "Disk read, MB/s": lambda node: node.read / 1e6,
    "Disk written, MB/s": lambda node: node.written / 1e6,
}


def find_metrics(data: JobData) -> tuple[Metric, ...]:
    """Everything that the job's ranks reported, speed first."""
    found: dict[str, dict[str, Curve]] = {}
    for label, one in data.history.ranks.items():
        for name, curve in one.curves.items():
            if curve.points:
                found.setdefault(name, {})[label] = curve
    names = sorted(found, key=lambda name: (name != SPEED, name == EPOCH_TIME))
    return tuple(combine_ranks(name, found[name], data, sum if name == SPEED else statistics.fmean) for name in names)


def combine_ranks(name: str, ranks: Mapping[str, Curve], data: JobData, how: Callable[..., float]) -> Metric:
    """A number of these ranks, and of all of them together: their sum or their mean."""
    together = combine(list(ranks.values()), *data.span, how)
    first, last, least, greatest, mean = zip(*(curve.summary for curve in ranks.values()), strict=True)
    low, high = Curve(together).summary[2:4] if how is sum else (min(least), max(greatest))
    summary = Summary(how(first), how(last), low, high, how(mean))
    return Metric(name=name, together=together, ranks=ranks, summary=summary)


def find_slowest(metrics: Sequence[Metric], data: JobData) -> tuple[str, str] | None:
    """The label of the slowest rank, and why it is thought to be: it waits least, or reports clearly less; or None."""
    if data.record.spec.is_synchronous:
        processes = [one.process for one in data.history.ranks.values()]
        found = find_culprit(data.samples, processes, window_s=None)
        if found is not None:
            return data.history.labels[found.number], found.why
    return _find_slowest_reported(metrics)


def _find_slowest_reported(metrics: Sequence[Metric]) -> tuple[str, str] | None:
    ranks = next((metric.ranks for metric in metrics if metric.name == SPEED), {})
    means = {label: curve.mean for label, curve in ranks.items()}
    slow = find_stragglers(dict(enumerate(means.values())))
    if not slow:
        return None
    slowest = min(means, key=lambda label: means[label])
    typical, mine = statistics.median_high(means.values()), means[slowest]
    less = f"{1 - mine / typical:.0%} less than others ({render_rate(typical)})"
    return slowest, f"it reports {render_rate(mine)} samples/s on average, {less}"


def find_process_curves(data: JobData) -> Mapping[str, Curve]:
    """The cores that each rank used, from the samples; {} without samples."""
    curves = {label: Curve() for label in data.history.ranks}
    for sample in data.samples:
        for process in sample.processes:
            if process.p in data.history.labels:
                curves[data.history.labels[process.p]].add(sample.t, process.cpu)
    return {label: curve for label, curve in curves.items() if curve.points}


def find_node_curves(samples: Sequence[Sample], find: NodeNumber) -> dict[str, Curve]:
    """A number of each node over time; {} if no node has it."""
    curves: dict[str, Curve] = {}
    for sample in samples:
        value = find(sample)
        if value is not None:
            curves.setdefault(sample.host, Curve()).add(sample.t, value)
    return curves if any(point.high for curve in curves.values() for point in curve.points) else {}


def find_traffic(samples: Sequence[Sample]) -> Mapping[str, float]:
    """The bytes that all nodes together have received, sent, read and written."""
    names = ("received", "sent", "read", "written")
    return {name: sum(getattr(one, name) * one.over_s for one in samples) for name in names} if samples else {}
