"""`cluster bench` on two sandbox nodes, with the real MXNet."""

import json

import pytest

from project import Project

pytestmark = pytest.mark.sandbox


def test_while_a_job_runs_nothing_is_measured(two_nodes: Project) -> None:
    job = two_nodes.run("train", "--detach", "--name", "other", "--", "sleep", "600").stdout.strip()
    try:
        done = two_nodes.run("bench", code=1)
        assert done.stdout == ""
        assert f"job {job} (other) is " in done.stderr
        assert f"cluster stop {job}" in done.stderr
    finally:
        two_nodes.run("stop", job)


@pytest.mark.slow
def test_the_kv_store_and_the_scaling_of_training(two_nodes: Project) -> None:
    done = two_nodes.run("bench", "kvstore", "scaling", "--batches", "20", "--json", timeout_s=300)
    found = json.loads(done.stdout)
    kvstore, scaling = found["kvstore"], found["scaling"]
    assert kvstore["kv_store"] == "dist_sync"
    assert 100 < kvstore["size_mb"] < 105  # ResNet-50
    assert [worker["rank"] for worker in kvstore["workers"]] == [0, 1]
    assert {worker["node"] for worker in kvstore["workers"]} == {"node-0", "node-1"}
    assert all(len(worker["batches_s"]) == 20 and worker["mb_per_s"] > 0 for worker in kvstore["workers"])
    assert [(run["workers"], run["kv_store"]) for run in scaling["runs"]] == [(1, "local"), (2, "dist_sync")]
    assert all(len(run["worker_samples_per_s"]) == run["workers"] for run in scaling["runs"])
    assert scaling["runs"][0]["speed_up"] == 1.0
    assert all(run["samples_per_s"] > 0 for run in scaling["runs"])
    names = [job["name"] for job in json.loads(two_nodes.run("jobs", "--json").stdout)[:3]]
    assert sorted(names) == ["bench-kvstore", "bench-scaling-1", "bench-scaling-2"]
