"""The results of `cluster bench`, as tables and as JSON. Pure."""

import statistics
from typing import Any

from cluster.views.document import pick
from cluster.views.layout import render_table
from train.measure.training import KV_NETWORK, KvResult, Scaling


def render_kvstore(result: KvResult) -> str:
    """Renders a line for each worker."""
    heading = (
        f"kv-store {result.kv_store}, MB/s out of and into each worker: {KV_NETWORK}'s {result.arrays} arrays, "
        f"{result.size_mb:.0f} MB, pushed and pulled; median of {len(result.workers[0].batches_s)} batches"
    )
    rows = [("worker", "node", "MB/s", "s/batch")]
    for worker in result.workers:
        rank = "?" if worker.rank is None else str(worker.rank)
        median = statistics.median(worker.batches_s)
        rows.append((rank, worker.host, _number(result.mb_per_s(worker)), _number(median)))
    rows.append(("all", "", _number(sum(map(result.mb_per_s, result.workers))), ""))
    return f"{heading}\n{render_table(rows, right=rows[0][2:])}"


def kvstore_document(result: KvResult) -> dict[str, Any]:
    """Returns the result for --json."""
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
    return {**pick(result, "job kv_store arrays size_mb"), "network": KV_NETWORK, "workers": workers}


def render_scaling(scaling: Scaling) -> str:
    """Renders a line for each number of workers."""
    workload = scaling.workload
    heading = (
        f"scaling, samples/s of {workload.script} {' '.join(workload.args)}, OMP_NUM_THREADS={workload.threads}: "
        "sum of the workers' median reports"
    )
    rows = [("workers", "kv-store", "samples/s", "speed-up", "efficiency")]
    for run in scaling.runs:
        speed_up, efficiency = f"{scaling.speed_up(run):.2f}", f"{100 * scaling.efficiency(run):.0f} %"
        rows.append((str(run.workers), run.kv_store, _number(run.speed), speed_up, efficiency))
    return f"{heading}\n{render_table(rows, right=rows[0][1:])}"


def scaling_document(scaling: Scaling) -> dict[str, Any]:
    """Returns the result for --json."""
    runs = [
        {
            **pick(run, "job workers kv_store"),
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


def _number(value: float) -> str:
    """Renders a number with three significant digits, or all digits before the point if there are more."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"
