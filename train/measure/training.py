"""Measures training on the nodes: the kv-store's bandwidth, and samples/s by the number of workers.

Each is a job as `cluster train` runs them: the same launch.py, supervision and choice of settings. They read no data
and leave nothing in S3.
"""

import re
import statistics
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from bootstrap.apply import ReadyNode
from foundation.errors import ClusterError, JobError
from train.follow.events import Event, Process
from train.follow.progress import parse_report
from train.follow.run import check_result
from train.job.config import DataConfig, TrainConfig
from train.job.payload import SCRIPTS_DIR
from train.job.plan import Job, new_job_id, plan_job
from train.job.protocol import JobResult, KvStore
from train.s3.environment import S3Access

LAST_LINES = 10
KV_LAYERS = 50
KV_NETWORK = f"resnet-{KV_LAYERS}"
_SIZE = re.compile(r"num of arrays = (\d+), total size = ([\d.]+) MB")
_BATCH = re.compile(r"iter (\d+), ([\d.]+) sec, .* error (\S+)")


Runner = Callable[[Job, Callable[[Event], None]], JobResult]
"""Runs a job to its end on the cluster, and gives each event away. Raises ClusterError for what is not its failure."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerBandwidth:
    """One worker's batches of measure.py. batches_s: each one's seconds, for pushing and pulling all arrays."""

    rank: int | None
    host: str
    batches_s: tuple[float, ...]
    worst_error: float


@dataclass(frozen=True, kw_only=True, slots=True)
class KvResult:
    """What measure.py said. size_mb: of all arrays, 10^6 bytes; each is pushed once and pulled once in a batch."""

    job: str
    kv_store: str
    arrays: int
    size_mb: float
    checked: bool
    workers: tuple[WorkerBandwidth, ...]

    def mb_per_s(self, worker: WorkerBandwidth) -> float:
        """Bytes sent and received by a worker together, from its median batch."""
        return 2 * self.size_mb / statistics.median(worker.batches_s)


@dataclass(frozen=True, kw_only=True, slots=True)
class Workload:
    """What is trained for the scaling: a shipped script and its arguments, on random images.

    batch_size: of each worker. threads: OMP_NUM_THREADS, the same with any number of workers, so that nothing but their
    number differs.
    """

    script: str
    args: tuple[str, ...]
    batch_size: int
    threads: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ScalingRun:
    """So many workers, one on each node. worker_speeds: the median of each one's reports, in samples/s."""

    job: str
    workers: int
    kv_store: str
    worker_speeds: tuple[float, ...]

    @property
    def speed(self) -> float:
        """Samples/s of all of them."""
        return sum(self.worker_speeds)


@dataclass(frozen=True, kw_only=True, slots=True)
class Scaling:
    """The runs with more and more workers, beginning with one."""

    workload: Workload
    runs: tuple[ScalingRun, ...]

    def speed_up(self, run: ScalingRun) -> float:
        """How many times as fast as one worker alone."""
        return run.speed / self.runs[0].speed

    def efficiency(self, run: ScalingRun) -> float:
        """Speed-up divided by the number of workers."""
        return self.speed_up(run) / run.workers


@dataclass(slots=True)
class _Output:
    """What the workers of a job print, by the number of their process."""

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
        """Each worker and its lines, by rank."""
        ordered = sorted(self.processes.values(), key=lambda process: (process.rank is None, process.rank or 0))
        return [(process, self.lines.get(process.number, [])) for process in ordered]


def run_to_end(run: Runner, job: Job) -> _Output:
    """Run a job; returns what its workers printed. Raises JobError, with the last lines, when it failed."""
    output = _Output()
    result = run(job, output.take)
    try:
        check_result(job.order.job, result)
    except JobError as error:
        said = "\n".join(output.last)
        raise JobError(f"{error.message}\n{said}" if said else error.message, exit_code=error.exit_code) from error
    return output


# -- kv-store ----------------------------------------------------------------------------------------------------------


def measure_kvstore(
    run: Runner, nodes: Sequence[ReadyNode], *, config: TrainConfig, kv_store: KvStore, batches: int, **planned: Any
) -> KvResult:
    """Run the wheel's measure.py on all nodes, one worker and one server on each.

    config: [train]. batches: how many are timed, after one that is not. planned: what else plan_job takes.
    Raises JobError, ClusterError.
    """
    # With compression the sums come out different, an asynchronous store has an optimizer, and what measure.py pulls to
    # one processor alone lands in the very gradients that it pushes next: nothing to compare.
    checked = config.gc_type == "none" and "async" not in kv_store and all(node.facts.gpus for node in nodes)
    words = ["--kv-store", kv_store, "--num-layers", str(KV_LAYERS), "--num-batches", str(batches)]
    words += ["--test-results", "1" if checked else "0", "--gc-type", config.gc_type]
    words += ["--optimizer", "sgd"] if "async" in kv_store else []
    program = f"{nodes[0].code_dir}/train/node/bench_kvstore.py"
    changes = {"kv_store": kv_store, "workers": len(nodes), "name": "bench-kvstore"}
    job = _plan(config, changes, nodes, script=program, command=(nodes[0].python, program, *words), **planned)
    return read_bandwidth(run_to_end(run, job).of_workers(), job=job, checked=checked)


def read_bandwidth(output: Sequence[tuple[Process, Sequence[str]]], *, job: Job, checked: bool) -> KvResult:
    """What measure.py printed in each worker. Pure. Raises ClusterError where it is not what it should be."""
    workers = []
    arrays, size_mb = 0, 0.0
    for process, lines in output:
        batches = [match for line in lines if (match := _BATCH.search(line))]
        sizes = [match for line in lines if (match := _SIZE.search(line))]
        if not batches or not sizes:
            raise ClusterError(f"{process.tag}: measure.py printed no result", hint=f"cluster logs {job.order.job}")
        arrays, size_mb = int(sizes[0][1]), float(sizes[0][2])
        worker = WorkerBandwidth(
            rank=process.rank,
            host=process.host,
            batches_s=tuple(float(match[2]) for match in batches),
            worst_error=max(float(match[3]) for match in batches) if checked else 0.0,
        )
        workers.append(worker)
    return KvResult(
        job=job.order.job,
        kv_store=job.config.kv_store,
        arrays=arrays,
        size_mb=size_mb,
        checked=checked,
        workers=tuple(workers),
    )


# -- scaling -----------------------------------------------------------------------------------------------------------


def choose_workload(nodes: Sequence[ReadyNode], *, batches: int) -> Workload:
    """ResNet-50 on large images where all nodes have GPUs, LeNet on small ones otherwise. Pure.

    batches: how many each worker trains on.
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
    """1, 2, 4 ... workers, and as many as there may be. Pure."""
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
    """Train with `count` workers, on the first so many nodes; one alone needs no servers and gets none.

    The other arguments as of measure_kvstore. Raises JobError, ClusterError.
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
        job=job.order.job,
        workers=count,
        kv_store=job.config.kv_store,
        worker_speeds=tuple(read_speed(process, lines, job=job.order.job) for process, lines in output),
    )


def read_speed(process: Process, lines: Sequence[str], *, job: str) -> float:
    """The median of a worker's reports without the first, which includes warming up. Pure. Raises ClusterError."""
    reports = [report for line in lines if (report := parse_report(line)) is not None]
    speeds = [report.samples_per_s for report in reports if report.samples_per_s]
    if not speeds:
        raise ClusterError(f"{process.tag} reported no speed", hint=f"cluster logs {job}")
    return statistics.median(speeds[1:] or speeds)


def _plan(
    config: TrainConfig, changes: dict[str, Any], nodes: Sequence[ReadyNode], *, script: str, **planned: Any
) -> Job:
    """A job of ours: the user's environment and kv-store's settings, one server for each worker."""
    usual = {"args": (), "hosts": (), "servers": "auto", "launcher": "ssh", "gpus": "auto", "sync_dst_dir": ""}
    own = replace(config, **{**usual, "max_duration": "none", "queue": False, **changes})
    access = S3Access(env={}, secrets={})
    return plan_job(own, nodes, job_id=new_job_id(), script=script, data=DataConfig(), access=access, **planned)
