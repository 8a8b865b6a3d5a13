"""The job of `cluster bench kvstore`."""

from typing import Any

import pytest

from cluster.commands.job.bench import plan_kv_store
from job_world import CODE_DIR, cpus
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
    job = plan_kv_store(of_user, cpus(2), asked, "auto")
    spec = job.order.spec
    assert (spec.workers, spec.servers, spec.name, spec.output_url) == (2, 2, "bench-kvstore", None)
    assert spec.command[1:] == (f"{CODE_DIR}/node/measure/bench_kvstore.py", store, compression)
    assert job.order.env["A"] == "b"
