"""What `cluster bench` found, as tables and as JSON. Pure."""

import statistics
from collections.abc import Sequence
from typing import Any

from cluster.views.terminal import render_table
from train.measure.network import NetworkResult
from train.measure.training import KV_NETWORK, KvResult, Scaling

_MB = 1e6
_MS = 1e3


def render_network(result: NetworkResult) -> str:
    """A matrix where each pair was measured, else a line for each; then least, median and most."""
    over = f"{result.streams} connections at once" if result.streams > 1 else "one connection"
    heading = f"network, MB/s as it arrived: {over} for {result.seconds:g} s, one pair of nodes after another"
    rates = [pair.bytes_per_s / _MB for pair in result.pairs]
    trips = [pair.round_trip_s * _MS for pair in result.pairs]
    table = _render_matrix(result) if result.all_pairs else _render_pairs(result)
    rows = [
        ("", "least", "median", "most"),
        ("MB/s", *map(_number, _spread(rates))),
        ("Gbit/s", *map(_number, (rate * 8 / 1000 for rate in _spread(rates)))),
        ("round trip, ms", *map(_number, _spread(trips))),
    ]
    return "\n\n".join([heading + "\n" + table, render_table(rows, numbers_from=1)])


def _render_matrix(result: NetworkResult) -> str:
    rates = {(pair.source, pair.target): _number(pair.bytes_per_s / _MB) for pair in result.pairs}
    rows = [("from \\ to", *result.nodes)]
    rows += [(source, *(rates.get((source, target), "-") for target in result.nodes)) for source in result.nodes]
    return render_table(rows, numbers_from=1)


def _render_pairs(result: NetworkResult) -> str:
    rows = [("from", "to", "MB/s", "round trip, ms")]
    rows += [
        (pair.source, pair.target, _number(pair.bytes_per_s / _MB), _number(pair.round_trip_s * _MS))
        for pair in result.pairs
    ]
    return render_table(rows, numbers_from=2)


def render_kvstore(result: KvResult) -> str:
    """A line for each worker."""
    batches = len(result.workers[0].batches_s)
    heading = (
        f"kv-store {result.kv_store}, MB/s out of and into each worker: {KV_NETWORK}'s {result.arrays} arrays, "
        f"{result.size_mb:.0f} MB, pushed and pulled; median of {batches} batches"
    )
    rows = [("worker", "node", "MB/s", "s/batch")]
    for worker in result.workers:
        median = statistics.median(worker.batches_s)
        rows.append((_rank(worker.rank), worker.host, _number(result.mb_per_s(worker)), _number(median)))
    rows.append(("all", "", _number(sum(map(result.mb_per_s, result.workers))), ""))
    return heading + "\n" + render_table(rows, numbers_from=2)


def render_scaling(scaling: Scaling) -> str:
    """A line for each number of workers."""
    words = " ".join(scaling.workload.args)
    heading = (
        f"scaling, samples/s of {scaling.workload.script} {words}, OMP_NUM_THREADS={scaling.workload.threads}: "
        "sum of the workers' median reports"
    )
    rows = [("workers", "kv-store", "samples/s", "speed-up", "efficiency")]
    for run in scaling.runs:
        speed_up, efficiency = f"{scaling.speed_up(run):.2f}", f"{100 * scaling.efficiency(run):.0f} %"
        rows.append((str(run.workers), run.kv_store, _number(run.speed), speed_up, efficiency))
    return heading + "\n" + render_table(rows, numbers_from=1)


def network_document(result: NetworkResult) -> dict[str, Any]:
    """For --json; rates in bytes, times in seconds."""
    pairs = [
        {
            "source": pair.source,
            "target": pair.target,
            "bytes_per_s": pair.bytes_per_s,
            "round_trip_s": {
                "min": min(pair.round_trips_s),
                "median": pair.round_trip_s,
                "max": max(pair.round_trips_s),
            },
        }
        for pair in result.pairs
    ]
    return {"seconds": result.seconds, "streams": result.streams, "pairs": pairs}


def kvstore_document(result: KvResult) -> dict[str, Any]:
    """For --json."""
    workers = [
        {
            "rank": worker.rank,
            "node": worker.host,
            "mb_per_s": result.mb_per_s(worker),
            "batches_s": list(worker.batches_s),
            "error": worker.worst_error if result.checked else None,
        }
        for worker in result.workers
    ]
    return {
        "job": result.job,
        "kv_store": result.kv_store,
        "network": KV_NETWORK,
        "arrays": result.arrays,
        "size_mb": result.size_mb,
        "workers": workers,
    }


def scaling_document(scaling: Scaling) -> dict[str, Any]:
    """For --json."""
    runs = [
        {
            "job": run.job,
            "workers": run.workers,
            "kv_store": run.kv_store,
            "samples_per_s": run.speed,
            "worker_samples_per_s": list(run.worker_speeds),
            "speed_up": scaling.speed_up(run),
            "efficiency": scaling.efficiency(run),
        }
        for run in scaling.runs
    ]
    return {
        "script": scaling.workload.script,
        "args": list(scaling.workload.args),
        "omp_num_threads": scaling.workload.threads,
        "runs": runs,
    }


def _spread(values: Sequence[float]) -> tuple[float, float, float]:
    return min(values), statistics.median(values), max(values)


def _number(value: float) -> str:
    """Three digits of it, and all those before the point."""
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.3g}"


def _rank(rank: int | None) -> str:
    return "?" if rank is None else str(rank)
