"""Nodes without a cluster, and jobs planned for them."""

from collections.abc import Sequence
from typing import Any, cast

from msgspec.structs import replace

from bootstrap.apply import ReadyNode
from bootstrap.ssh.connection import NodeConnection
from bootstrap.ssh.host import Host
from node_facts import FACTS
from provision.aws.s3_access import S3Access
from train.job.config import DataConfig, TrainConfig
from train.job.job_inputs import JobInputs
from train.job.job_plan import Job, plan_job

CODE_DIR = "/home/ubuntu/.cluster/runtime/cd"
PROJECT_DIR = "/home/ubuntu/.cluster/tree/ef"
SCRIPT = f"{CODE_DIR}/train/scripts/train_mnist.py"
OWN_SCRIPT = f"{PROJECT_DIR}/my/train.py"
NO_ACCESS = S3Access(env={}, secrets={})
GPU = ("8.6", "NVIDIA A10G")


def node(index: int, *, gpus: int = 0) -> ReadyNode:
    host = Host(
        name=f"node-{index}",
        instance_id=f"i-{index}",
        address=f"198.18.0.{index}",
        private_ip=f"10.0.0.{4 + index}",
        user="ubuntu",
        is_head=index == 0,
    )
    return ReadyNode(
        host=host,
        connection=cast("NodeConnection", None),
        facts=replace(FACTS, cores=8, gpus=(GPU,) * gpus),
        python="/home/ubuntu/.cluster/env/ab/bin/python",
        code_dir=CODE_DIR,
        project_dir=None,
        setup=None,
        changed=False,
        library="mxnet-cu112==1.9.1" if gpus else "mxnet==1.7.0.post2",
    )


def cpus(count: int) -> list[ReadyNode]:
    return [node(index) for index in range(count)]


def gpus(*counts: int) -> list[ReadyNode]:
    """Nodes with these numbers of GPUs."""
    return [node(index, gpus=count) for index, count in enumerate(counts)]


def with_files(nodes: Sequence[ReadyNode]) -> list[ReadyNode]:
    """The same nodes, with the user's own files on them."""
    return [replace(one, project_dir=PROJECT_DIR) for one in nodes]


def plan(config: TrainConfig, nodes: int | Sequence[ReadyNode], **more: Any) -> Job:
    """The job on these nodes, or on a number of nodes without GPUs."""
    settings: dict[str, Any] = {"job_id": "j", "script": SCRIPT, "data": DataConfig(), "access": NO_ACCESS}
    there = tuple(cpus(nodes) if isinstance(nodes, int) else nodes)
    return plan_job(config, JobInputs(nodes=there, **{**settings, **more}))
