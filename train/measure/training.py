"""Measures training on the nodes: the kv-store's bandwidth, and samples/s by the number of workers.

Each measurement is a job like those of `cluster train`, with the same launcher, supervisor and defaults. It reads no
data and writes nothing to S3.
"""

import re
import statistics
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from bootstrap.apply import ReadyNode
from bootstrap.runtime.code import SCRIPTS_DIR
from foundation.errors import ClusterError, JobError
from node.protocol import JobResult
from node.reports import parse_report
from node.train_settings import KvStore
from train.follow.events import Event, Process
from train.follow.run import check_result
from train.job.config import DataConfig, TrainConfig
from train.job.plan import Job, new_job_id, plan_job
from train.s3.environment import S3Access

LAST_LINES = 10
KV_LAYERS = 50
KV_NETWORK = f"resnet-{KV_LAYERS}"
_SIZE = re.compile(r"num of arrays = (\d+), total size = ([\d.]+) MB")
_BATCH = re.compile(r"iter (\d+), ([\d.]+) sec, .* error (\S+)")


Runner = Callable[[Job, Callable[[Event], None]], JobResult]
"""Runs a job on the cluster to its end and passes each event to the callback.

Raises ClusterError, but not for a failed job.
"""


class WorkerBandwidth(Struct, frozen=True, kw_only=True):
    """One worker's batches of measure.py. batches_s: the seconds that each took to push and pull all arrays."""

    rank: int | None
    host: str
    batches_s: tuple[float, ...]
    worst_error: float


class KvResult(Struct, frozen=True, kw_only=True):
    """measure.py's result. size_mb: the size of all arrays in 10^6 bytes; a batch pushes and pulls each array once."""

    job: str
    kv_store: str
    arrays: int
    size_mb: float
    checked: bool
    workers: tuple[WorkerBandwidth, ...]

    def mb_per_s(self, worker: WorkerBandwidth) -> float:
        """The rate of a worker's sent plus received bytes in its median batch, in 10^6 bytes per second."""
        return 2 * self.size_mb / statistics.median(worker.batches_s)


class Workload(Struct, frozen=True, kw_only=True):
    """The training for scaling: a shipped script and its arguments, on generated images.

    batch_size: per worker. threads: OMP_NUM_THREADS, the same for any number of workers, so that the runs differ only
    in that number.
    """

    script: str
    args: tuple[str, ...]
    batch_size: int
    threads: int


class ScalingRun(Struct, frozen=True, kw_only=True):
    """A run with one worker on each node. worker_speeds: the median of each worker's reports, in samples/s."""

    job: str
    workers: int
    kv_store: str
    worker_speeds: tuple[float, ...]

    @property
    def speed(self) -> float:
        """The total speed of all workers, in samples/s."""
        return sum(self.worker_speeds)


class Scaling(Struct, frozen=True, kw_only=True):
    """The runs with increasing numbers of workers, starting with one."""

    workload: Workload
    runs: tuple[ScalingRun, ...]

    def speed_up(self, run: ScalingRun) -> float:
        """The speed relative to one worker."""
        return run.speed / self.runs[0].speed

    def efficiency(self, run: ScalingRun) -> float:
        """Speed-up divided by the number of workers."""
        return self.speed_up(run) / run.workers


class _Output(Struct):
    """The output of a job's workers, by process number."""

    lines: dict[int, list[str]] = field(default_factory=dict)
    processes: dict[int, Process] = field(default_factory=dict)
    last: deque[str] = field(default_factory=lambda: deque(maxlen=LAST_LINES))

    def take(self, event: Event) -> None:
        if event.process is None:
            return
        if event.process.role == "worker":
            self.processes[event.process.number] = event.process
        if event.kind == "line":
            self.last.append(f"  [{event.process.tag}] {event.text}")
            if event.process.role == "worker":
                self.lines.setdefault(event.process.number, []).append(event.text)

    def of_workers(self) -> list[tuple[Process, list[str]]]:
        """Returns (worker, its lines) pairs, ordered by rank."""
        ordered = sorted(self.processes.values(), key=lambda process: (process.rank is None, process.rank or 0))
        return [(process, self.lines.get(process.number, [])) for process in ordered]


def run_to_end(run: Runner, job: Job) -> _Output:
    """Runs a job and returns its workers' output. Raises JobError, with the last lines, if the job failed."""
    output = _Output()
    result = run(job, output.take)
    try:
        check_result(job.order.spec.id, result)
    except JobError as error:
        said = "\n".join(output.last)
        raise JobError(f"{error.message}\n{said}" if said else error.message, exit_code=error.exit_code) from error
    return output


# -- kv-store ----------------------------------------------------------------------------------------------------------


def measure_kvstore(
    run: Runner, nodes: Sequence[ReadyNode], *, config: TrainConfig, kv_store: KvStore, batches: int, **planned: Any
) -> KvResult:
    """Runs the wheel's measure.py on all nodes, one worker and one server on each.

    config: [train]. batches: the number of timed batches, after an untimed one. planned: more arguments for plan_job.
    Raises JobError, ClusterError.
    """
    # Sums cannot be checked with compression, with an asynchronous store, which has an optimizer, or on one CPU, where
    # measure.py pulls into the same gradients that it pushes next.
    checked = config.gc_type == "none" and "async" not in kv_store and all(node.facts.gpus for node in nodes)
    words = ["--kv-store", kv_store, "--num-layers", str(KV_LAYERS), "--num-batches", str(batches)]
    words += ["--test-results", "1" if checked else "0", "--gc-type", config.gc_type]
    words += ["--optimizer", "sgd"] if "async" in kv_store else []
    program = f"{nodes[0].code_dir}/node/measure/bench_kvstore.py"
    changes = {"kv_store": kv_store, "workers": len(nodes), "name": "bench-kvstore"}
    job = _plan(config, changes, nodes, script=program, command=(nodes[0].python, program, *words), **planned)
    return read_bandwidth(run_to_end(run, job).of_workers(), job=job, checked=checked)


def read_bandwidth(output: Sequence[tuple[Process, Sequence[str]]], *, job: Job, checked: bool) -> KvResult:
    """Parses measure.py's output in each worker. Pure. Raises ClusterError for a worker without a result."""
    workers = []
    arrays, size_mb = 0, 0.0
    for process, lines in output:
        batches = [match for line in lines if (match := _BATCH.search(line))]
        sizes = [match for line in lines if (match := _SIZE.search(line))]
        if not batches or not sizes:
            raise ClusterError(f"{process.tag}: measure.py printed no result", hint=f"cluster logs {job.order.spec.id}")
        arrays, size_mb = int(sizes[0][1]), float(sizes[0][2])
        worker = WorkerBandwidth(
            rank=process.rank,
            host=process.host,
            batches_s=tuple(float(match[2]) for match in batches),
            worst_error=max(float(match[3]) for match in batches) if checked else 0.0,
        )
        workers.append(worker)
    return KvResult(
        job=job.order.spec.id,
        kv_store=job.config.kv_store,
        arrays=arrays,
        size_mb=size_mb,
        checked=checked,
        workers=tuple(workers),
    )


# -- scaling -----------------------------------------------------------------------------------------------------------


def choose_workload(nodes: Sequence[ReadyNode], *, batches: int) -> Workload:
    """Chooses ResNet-50 on large images if all nodes have GPUs, else LeNet on small images. Pure.

    batches: the number of batches per worker.
    """
    gpus = min(len(node.facts.gpus) for node in nodes)
    if gpus:
        size, script, network = 32 * gpus, "train_imagenet.py", ["--network", "resnet", "--num-layers", "50"]
    else:
        size, script, network = 64, "train_mnist.py", ["--network", "lenet"]
    words = [*network, "--benchmark", "1", "--num-epochs", "1", "--batch-size", str(size)]
    processes = 2 if len(nodes) > 1 else 1  # a worker and a server
    return Workload(
        script=script,
        args=(*words, "--disp-batches", str(max(1, batches // 10))),
        batch_size=size,
        threads=max(1, min(node.facts.cores for node in nodes) // processes),
    )


def choose_counts(most: int) -> tuple[int, ...]:
    """Returns the numbers of workers to measure: 1, 2, 4 ... and `most`. Pure."""
    counts = [1]
    while counts[-1] * 2 < most:
        counts.append(counts[-1] * 2)
    return (*counts, most) if most > 1 else (1,)


def measure_scaling(
    run: Runner,
    nodes: Sequence[ReadyNode],
    count: int,
    *,
    config: TrainConfig,
    kv_store: KvStore,
    workload: Workload,
    batches: int,
    **planned: Any,
) -> ScalingRun:
    """Trains with `count` workers on the first `count` nodes; a single worker gets no servers.

    The other arguments are those of measure_kvstore. Raises JobError, ClusterError.
    """
    alone: KvStore = "device" if nodes[0].facts.gpus else "local"
    examples = str(batches * count * workload.batch_size)
    changes: dict[str, Any] = {
        "script": workload.script,
        "args": (*workload.args, "--num-examples", examples),
        "name": f"bench-scaling-{count}",
        "workers": count,
        "hosts": tuple(node.host.name for node in nodes[:count]),
        "kv_store": kv_store if count > 1 else alone,
        "env": {"OMP_NUM_THREADS": str(workload.threads), **config.env},
    }
    if count == 1:
        changes |= {"gc_type": "none", "p3": False}
    job = _plan(config, changes, nodes, script=f"{nodes[0].code_dir}/{SCRIPTS_DIR}/{workload.script}", **planned)
    output = run_to_end(run, job).of_workers()
    return ScalingRun(
        job=job.order.spec.id,
        workers=count,
        kv_store=job.config.kv_store,
        worker_speeds=tuple(read_speed(process, lines, job=job.order.spec.id) for process, lines in output),
    )


def read_speed(process: Process, lines: Sequence[str], *, job: str) -> float:
    """Returns the median of a worker's reports without the first, which includes warm-up. Pure.

    Raises ClusterError if the worker reported no speed.
    """
    reports = [report for line in lines if (report := parse_report(line)) is not None]
    speeds = [report.samples_per_s for report in reports if report.samples_per_s]
    if not speeds:
        raise ClusterError(f"{process.tag} reported no speed", hint=f"cluster logs {job}")
    return statistics.median(speeds[1:] or speeds)


def _plan(
    config: TrainConfig, changes: dict[str, Any], nodes: Sequence[ReadyNode], *, script: str, **planned: Any
) -> Job:
    """Plans a measurement's job with the user's environment and kv-store settings, and one server per worker."""
    usual = {"args": (), "hosts": (), "servers": "auto", "launcher": "ssh", "gpus": "auto", "sync_dst_dir": ""}
    own = replace(config, **{**usual, "max_duration": "none", "queue": False, **changes})
    access = S3Access(env={}, secrets={})
    return plan_job(own, nodes, job_id=new_job_id(), script=script, data=DataConfig(), access=access, **planned)
