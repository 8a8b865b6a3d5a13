"""The job of `cluster bench kvstore`."""

from typing import Any

import pytest

from cluster.commands.job.bench import plan_kv_store
from job_world import CODE_DIR, cpus, gpus
from train.job.config import TrainConfig


@pytest.mark.parametrize(
    ("config", "asked", "store", "compression"),
    [
        ({}, None, "dist_sync", "none"),
        ({"kv_store": "local"}, None, "dist_sync", "none"),
        ({"kv_store": "dist_async"}, None, "dist_async", "none"),
        ({"kv_store": "dist_async"}, "dist_sync", "dist_sync", "none"),
        ({"gc_type": "2bit"}, None, "dist_sync", "2bit"),
    ],
)
def test_the_kv_stores_job_uses_all_nodes(config: dict[str, Any], asked: Any, store: str, compression: str) -> None:
    of_user = TrainConfig(workers=5, args=("--lr", "1"), env={"A": "b"}, hosts=("node-1",), **config)
    job = plan_kv_store(of_user, cpus(2), asked, batches=7, mxnet="auto")
    spec = job.order.spec
    assert (spec.workers, spec.servers, spec.name, spec.output_url) == (2, 2, "bench-kvstore", None)
    assert spec.command[1:] == (f"{CODE_DIR}/node/measure/bench_kvstore.py", store, compression, "7", "0")
    assert job.order.env["A"] == "b"


@pytest.mark.parametrize(("counts", "used"), [((4, 4), "4"), ((4, 1), "1"), ((4, 0), "0")])
def test_all_workers_of_the_kv_stores_job_use_as_many_gpus(counts: tuple[int, int], used: str) -> None:
    of_user = TrainConfig(ends_with="rank 0")
    job = plan_kv_store(of_user, gpus(*counts), None, batches=7, mxnet="mxnet-cu112==1.9.1")
    assert (job.order.spec.command[-1], job.order.train.ends_with) == (used, "all")
