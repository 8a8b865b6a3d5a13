"""`cluster bench`: the parsed output of jobs, and the tables."""

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from msgspec.structs import replace

from bootstrap.apply import ReadyNode
from cluster.views.bench import (
    kvstore_document,
    render_kvstore,
    render_scaling,
    scaling_document,
)
from foundation.errors import JobError
from job_world import CODE_DIR, node
from node.protocol import JobResult
from project import REPOSITORY
from train.follow.events import Event, Process
from train.job.config import TrainConfig
from train.job.plan import Job
from train.measure.training import (
    KvResult,
    Scaling,
    ScalingRun,
    Workload,
    choose_counts,
    choose_workload,
    measure_kvstore,
    measure_scaling,
)

# -- jobs --------------------------------------------------------------------------------------------------------------

MEASURED = """\
INFO:root:Namespace(network='resnet', gpus='0', num_layers=50, kv_store='dist_sync', num_batches=3)
INFO:root:num of arrays = 55, total size = 102.015648 MB
INFO:root:iter 1, {0} sec, 0.000000 GB/sec per gpu, error 0.000000
INFO:root:iter 2, {1} sec, 0.000000 GB/sec per gpu, error 0.000001
INFO:root:iter 3, {2} sec, 0.000000 GB/sec per gpu, error 0.000000
"""


class FakeRunner:
    """Runs no job. Its workers print the given outputs, in reverse order of their ranks."""

    def __init__(self, *outputs: str, result: JobResult | None = None) -> None:
        self.outputs = outputs
        self.result = result or JobResult(state="done", exit_code=0, error=None, left={})
        self.jobs: list[Job] = []

    def __call__(self, job: Job, take: Callable[[Event], None], /) -> JobResult:
        self.jobs.append(job)
        server = Process(number=99, role="server", host="node-0", rank=0)
        take(Event(kind="process", at=0.0, process=server))
        for rank, output in reversed(list(enumerate(self.outputs))):
            process = Process(number=rank + 1, role="worker", host=f"node-{rank}", rank=rank)
            take(Event(kind="process", at=0.0, process=replace(process, rank=None)))
            take(Event(kind="process", at=0.0, process=process))
            for line in output.splitlines():
                take(Event(kind="line", at=1.0, process=process, text=line))
        take(Event(kind="line", at=1.0, process=server, text="iter 1, 9.0 sec, error 9"))
        take(Event(kind="state", at=2.0, state="ending"))
        return self.result


def measure(run: FakeRunner, **config: Any) -> KvResult:
    nodes = [node(0, gpus=1), node(1, gpus=1)]
    return measure_kvstore(run, nodes, config=TrainConfig(**config), kv_store="dist_sync", batches=3)


def test_the_bandwidth_of_the_kv_store() -> None:
    run = FakeRunner(MEASURED.format(1.0, 2.0, 4.0), MEASURED.format(0.5, 0.5, 0.7))
    result = measure(run, workers=5, args=["--lr", "1"], env={"A": "b"}, hosts=["node-1"])
    assert [worker.host for worker in result.workers] == ["node-0", "node-1"]
    assert [round(result.mb_per_s(worker), 3) for worker in result.workers] == [102.016, 408.063]
    assert result.workers[0].worst_error == 1e-6
    (job,) = run.jobs
    assert (job.order.spec.workers, job.order.spec.servers, job.order.spec.name, job.order.spec.output_url) == (
        2,
        2,
        "bench-kvstore",
        None,
    )
    assert job.order.env["A"] == "b"
    program = f"{CODE_DIR}/node/measure/bench_kvstore.py"
    assert job.order.spec.command[1:] == (
        program, "--kv-store", "dist_sync", "--num-layers", "50", "--num-batches", "3", "--test-results", "1",
        "--gc-type", "none",
    )  # fmt: skip
    assert render_kvstore(result).splitlines() == [
        (
            "kv-store dist_sync, MB/s out of and into each worker: resnet-50's 55 arrays, 102 MB, pushed and pulled; "
            "median of 3 batches"
        ),
        "worker  node    MB/s  s/batch",
        "0       node-0   102        2",
        "1       node-1   408      0.5",
        "all              510",
    ]
    assert kvstore_document(result)["workers"][1]["batches_s"] == [0.5, 0.5, 0.7]


def test_sums_that_must_differ_are_not_compared() -> None:
    run = FakeRunner(MEASURED.format(1, 1, 1))
    for nodes, gc_type, kv_store in (
        ([node(0, gpus=1)], "2bit", "dist_sync"),
        ([node(0, gpus=1)], "none", "dist_async"),
        ([node(0), node(1)], "none", "dist_sync"),
    ):
        config = TrainConfig(gc_type=cast("Any", gc_type))
        result = measure_kvstore(run, nodes, config=config, kv_store=cast("Any", kv_store), batches=3)
        assert not result.checked
        assert kvstore_document(result)["workers"][0]["error"] is None
        assert "--test-results 0" in " ".join(run.jobs[-1].order.spec.command)
    assert run.jobs[1].order.spec.command[-2:] == ("--optimizer", "sgd")


def test_a_job_that_fails_shows_its_last_lines() -> None:
    failed = JobResult(state="failed", exit_code=3, error="worker 0 on node-0 ended with exit code 3", left={})
    with pytest.raises(JobError, match="exit code 3\n") as caught:
        measure(FakeRunner("one\ntwo: libcudart.so.9.0 is missing", result=failed))
    assert "[worker 0 node-0] two: libcudart.so.9.0 is missing" in caught.value.message
    assert caught.value.exit_code == 3


@pytest.mark.parametrize(
    ("most", "counts"),
    [(1, (1,)), (2, (1, 2)), (3, (1, 2, 3)), (4, (1, 2, 4)), (6, (1, 2, 4, 6)), (16, (1, 2, 4, 8, 16))],
)
def test_the_numbers_of_workers(most: int, counts: tuple[int, ...]) -> None:
    assert choose_counts(most) == counts


def speeds(*values: float) -> str:
    lines = [
        f"Epoch[0] Batch [{20 * number}-{20 * number + 20}]\tSpeed: {value:.2f} samples/sec\taccuracy=0.1"
        for number, value in enumerate(values)
    ]
    return "\n".join(["INFO start", *lines])


def run_scaling(count: int, *outputs: str, nodes: Sequence[ReadyNode]) -> tuple[ScalingRun, Job]:
    run = FakeRunner(*outputs)
    workload = choose_workload(nodes, batches=200)
    found = measure_scaling(
        run, nodes, count, config=TrainConfig(gc_type="2bit"), kv_store="dist_sync", workload=workload, batches=200
    )
    return found, run.jobs[0]


def test_a_workers_speed_is_the_median_without_the_first_report() -> None:
    nodes = [node(0), node(1), node(2)]
    found, job = run_scaling(2, speeds(1, 100, 120, 500), speeds(2, 90), nodes=nodes)
    assert found.worker_speeds == (120, 90)
    assert found.speed == 210
    assert [host.name for host in job.order.hosts] == ["node-0", "node-1"]
    assert (job.order.spec.workers, job.order.spec.servers, job.config.kv_store, job.config.gc_type) == (
        2,
        2,
        "dist_sync",
        "2bit",
    )
    assert job.order.spec.command[1] == f"{CODE_DIR}/train/scripts/train_mnist.py"
    words = " ".join(job.order.spec.command)
    assert "--network lenet --benchmark 1" in words
    assert "--batch-size 64 --disp-batches 20 --num-examples 25600 --kv-store dist_sync" in words


def test_one_worker_alone_needs_no_servers() -> None:
    found, job = run_scaling(1, speeds(50), nodes=[node(0), node(1)])
    assert (found.speed, found.kv_store) == (50, "local")  # a single report is better than none
    assert (job.order.spec.workers, job.order.spec.servers, job.config.gc_type) == (1, 0, "none")
    assert job.order.env["OMP_NUM_THREADS"] == "4"  # as with two workers on 8 cores


def test_with_gpus_the_workload_is_larger() -> None:
    found, job = run_scaling(1, speeds(1, 2), nodes=[node(0, gpus=4), node(1, gpus=4)])
    assert found.kv_store == "device"
    assert job.order.spec.command[1] == f"{CODE_DIR}/train/scripts/train_imagenet.py"
    words = " ".join(job.order.spec.command)
    assert "--network resnet --num-layers 50 --benchmark 1 --num-epochs 1 --batch-size 128" in words
    assert "--gpus 0,1,2,3" in words


def test_the_table_of_scaling() -> None:
    runs = [(1, (100.0,)), (2, (80.0, 70.0)), (4, (40.0,) * 4)]
    scaling = Scaling(
        workload=Workload(script="train_mnist.py", args=("--network", "lenet"), batch_size=64, threads=4),
        runs=tuple(
            ScalingRun(job="j", workers=count, kv_store="dist_sync" if count > 1 else "local", worker_speeds=each)
            for count, each in runs
        ),
    )
    assert render_scaling(scaling).splitlines() == [
        ("scaling, samples/s of train_mnist.py --network lenet, OMP_NUM_THREADS=4: sum of the workers' median reports"),
        "workers   kv-store  samples/s  speed-up  efficiency",
        "1            local        100      1.00       100 %",
        "2        dist_sync        150      1.50        75 %",
        "4        dist_sync        160      1.60        40 %",
    ]
    assert [run["efficiency"] for run in scaling_document(scaling)["runs"]] == [1.0, 0.75, 0.4]


def test_bench_kvstore_runs_measure_py_unchanged(tmp_path: Path) -> None:
    """This environment has no MXNet, so the test uses a stand-in with a measure.py and without a GPU."""
    package = tmp_path / "mxnet"
    (package / "tools" / "bandwidth").mkdir(parents=True)
    (package / "__init__.py").write_text(
        "import types\n"
        "context = types.SimpleNamespace(num_gpus=lambda: 0)\n"
        "def cpu(number): return 'cpu(%d)' % number\n"
        "def gpu(number): raise AssertionError\n"
    )
    (package / "tools" / "bandwidth" / "measure.py").write_text(
        "import sys, mxnet, resnet\nprint(__name__, sys.argv[1:], mxnet.gpu(0), resnet.get_symbol.__name__)\n"
    )
    program = REPOSITORY / "node" / "measure" / "bench_kvstore.py"
    words = [sys.executable, str(program), "--num-layers", "50"]
    done = subprocess.run(words, env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert done.stdout == "__main__ ['--num-layers', '50', '--network', 'resnet', '--gpus', '0'] cpu(0) get_symbol\n"
    (package / "tools" / "bandwidth" / "measure.py").unlink()
    done = subprocess.run(words, env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "was not installed from a wheel" in done.stderr
