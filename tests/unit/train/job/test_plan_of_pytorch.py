"""Plans of jobs without MXNet's kv-store: processes per node, GPUs and arguments; and nodes from a batch scheduler."""

from typing import Any

import pytest

from foundation.decode import decode
from foundation.errors import ConfigError
from job_world import gpus, plan
from node.protocol import Order
from node.wire import encode
from train.job.checks import check_framework
from train.job.config import QueueConfig, TrainConfig
from train.job.defaults import render_settings
from train.job.job_plan import Job


def plan_torch(config: TrainConfig, nodes: Any = 2, **more: Any) -> Job:
    return plan(config, nodes, framework="pytorch", **more)


def workers_of(job: Job) -> dict[str, int]:
    return {host.name: host.workers for host in job.order.hosts}


@pytest.mark.parametrize(
    ("config", "nodes", "workers"),
    [
        (TrainConfig(), 2, {"node-0": 1, "node-1": 1}),
        (TrainConfig(), gpus(8, 4), {"node-0": 8, "node-1": 4}),
        (TrainConfig(gpus="none"), gpus(4, 4), {"node-0": 1, "node-1": 1}),
        (TrainConfig(processes=3), 2, {"node-0": 3, "node-1": 3}),
        (TrainConfig(workers=2), gpus(4, 4), {"node-0": 1, "node-1": 1}),
        (TrainConfig(hosts=("node-1", "node-1", "node-0")), gpus(4, 4), {"node-0": 1, "node-1": 2}),
        (TrainConfig(hosts=("node-1",)), 2, {"node-0": 0, "node-1": 1}),  # the head runs the supervisor
    ],
)
def test_processes_per_node(config: TrainConfig, nodes: Any, workers: dict[str, int]) -> None:
    order = plan_torch(config, nodes).order
    assert {host.name: host.workers for host in order.hosts} == workers
    assert (order.spec.workers, order.spec.servers, order.train.launcher) == (sum(workers.values()), 0, "torchrun")
    assert encode(decode(encode(order), Order)) == encode(order)  # the head accepts it


@pytest.mark.parametrize(("chosen", "visible"), [((1, 3), "1,3"), ("none", ""), ("auto", None)])
@pytest.mark.parametrize("launcher", ["auto", "mpi"])
def test_chosen_gpus_are_the_only_visible_ones(launcher: str, chosen: Any, visible: str | None) -> None:
    """Without a kv-store, a program chooses among them by its local rank, with mpi as with torchrun."""
    job = plan_torch(TrainConfig(gpus=chosen, launcher=launcher, kv_store="none"), gpus(4, 4), command=("python", "x"))
    assert job.order.env.get("CUDA_VISIBLE_DEVICES") == visible
    assert (job.order.gpus_per_worker, job.gpus, job.warnings) == ((), None, ())


@pytest.mark.parametrize(
    ("launcher", "framework", "engine"),
    [
        ("auto", "mxnet", "ssh"),
        ("auto", "pytorch", "torchrun"),
        ("auto", "none", "env"),
        ("env", "mxnet", "env"),
        ("slurm", "pytorch", "torchrun"),
    ],
)
def test_the_engine_follows_from_launcher_and_framework(launcher: str, framework: Any, engine: str) -> None:
    assert plan(TrainConfig(launcher=launcher), 2, framework=framework).order.train.launcher == engine


@pytest.mark.parametrize(
    ("launcher", "framework"), [("ssh", "pytorch"), ("local", "none"), ("torchrun", "mxnet"), ("torchrun", "none")]
)
def test_a_launcher_that_does_not_fit_the_framework_is_refused(launcher: str, framework: Any) -> None:
    with pytest.raises(ConfigError, match=f'"{launcher}" does not start programs of .*"{framework}"') as caught:
        check_framework(launcher, framework)
    assert "cluster train --launcher auto (or " in str(caught.value.hint)
    if framework == "none":
        check_framework(launcher, "none", has_image=True)  # the image may have it


def test_mxnets_launch_py_needs_a_kv_store() -> None:
    with pytest.raises(ConfigError, match='kv_store = "none"'):
        plan(TrainConfig(kv_store="none"), 2)
    assert plan(TrainConfig(kv_store="none", launcher="mpi"), 2).order.spec.servers == 0


def test_a_scheduler_chooses_among_all_nodes() -> None:
    queue = QueueConfig(name="gpu", account="lab", slots_per_node=4, options=("--x",))
    config = TrainConfig(launcher="slurm", hosts=("node-1", "node-2"), nodes=2, max_duration="90m")
    job = plan_torch(config, 4, queue=queue)
    assert workers_of(job) == {"node-0": 0, "node-1": 1, "node-2": 1, "node-3": 0}
    request = job.order.request
    assert (job.order.spec.scheduler, request.nodes, request.queue, request.account) == ("slurm", 2, "gpu", "lab")
    assert (request.slots_per_node, request.walltime_s, request.options) == (4, 5400, ("--x",))
    assert job.order.env["OMP_NUM_THREADS"] == "4"  # of 8 cores
    assert "on nodes from Slurm" in render_settings(job)[0]
    assert '  nodes = "2": those that Slurm assigns' in render_settings(job)


@pytest.mark.parametrize(
    ("more", "warned"),
    [
        ({}, True),
        ({"config": TrainConfig(workers=1)}, False),
        ({"config": TrainConfig(args=("--seed", "$CLUSTER_RANK"))}, False),
        ({"config": TrainConfig(launcher="env")}, True),
        ({"framework": "mxnet"}, False),
    ],
)
def test_ranks_that_join_no_process_group(more: dict[str, Any], *, warned: bool) -> None:
    """Each rank would train a model of its own, and the job end with 0."""
    given = {"config": TrainConfig(), "framework": "pytorch", "program": "import torch\nloss.backward()\n", **more}
    warnings = plan(given.pop("config"), 2, **given).warnings
    assert any("2 processes would train 2 separate models" in message for message in warnings) == warned
