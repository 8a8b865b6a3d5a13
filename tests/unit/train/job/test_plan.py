"""A job's plan: processes and their nodes, GPUs, threads, environment and name; and the plan's text."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest

from bootstrap.apply import ReadyNode
from foundation.settings import check
from job_world import NO_ACCESS, OWN_SCRIPT, SCRIPT, cpus, gpus, plan, with_files
from train.job.config import DataConfig, TrainConfig
from train.job.defaults import render_settings


@pytest.mark.parametrize(
    ("keys", "workers", "servers", "threads", "hosts", "lines"),
    [
        ({}, 4, 4, "4", [0, 1, 2, 3], [0, 1, 2, 3]),
        ({"workers": 8, "servers": 1}, 8, 1, "2", [0, 1, 2, 3], [0, 1, 2, 3]),
        ({"workers": 40}, 40, 4, "1", [0, 1, 2, 3], [0, 1, 2, 3]),
        ({"hosts": ("node-1", "node-1", "node-2"), "workers": 10}, 10, 6, "1", [0, 1, 2], [1, 1, 2]),
        ({"launcher": "local", "workers": 2}, 2, 2, "2", [0], [0]),
        ({"kv_store": "local", "hosts": ("node-3",)}, 1, 0, "8", [0, 3], [3]),
    ],
)
def test_workers_servers_and_threads(
    *, keys: dict[str, Any], workers: int, servers: int, threads: str, hosts: list[int], lines: list[int]
) -> None:
    order = plan(TrainConfig(**keys), 4).order
    assert (order.spec.workers, order.spec.servers, order.env["OMP_NUM_THREADS"]) == (workers, servers, threads)
    assert [(host.name, host.ip, host.instance_id, host.own_host) for host in order.hosts] == [
        (f"node-{n}", f"10.0.0.{4 + n}", f"i-{n}", None) for n in hosts
    ]
    assert list(order.train.hosts) == [f"node-{n}" for n in lines]
    assert sum(host.workers for host in order.hosts) == workers
    assert sum(host.servers for host in order.hosts) == servers


def test_a_job_knows_its_places_in_s3() -> None:
    data = DataConfig(url="s3://bucket/x/", results="s3://bucket/y")
    wanted = {"CLUSTER_DATA_URL": "s3://bucket/x/", "CLUSTER_RESULTS_URL": "s3://bucket/y"}
    wanted |= {"CLUSTER_OUTPUT_URL": "s3://bucket/y/j/", "CLUSTER_JOB_NAME": "train_mnist"}
    assert plan(TrainConfig(), 2, data=data).order.env.items() >= wanted.items()
    assert "CLUSTER_DATA_URL" not in plan(TrainConfig(), 2).order.env


@pytest.mark.parametrize(
    ("keys", "nodes", "script", "options", "shares"),
    [
        ({}, cpus(2), SCRIPT, None, ()),
        ({}, gpus(4, 4), SCRIPT, "0,1,2,3", ()),
        ({}, gpus(4, 2), SCRIPT, "0,1", ()),
        ({"workers": 4}, gpus(4, 4), SCRIPT, "0,1", ((0, 1), (2, 3))),
        ({"gpus": (1, 3)}, gpus(4, 4), OWN_SCRIPT, "1,3", ()),
        ({"workers": 4}, gpus(4, 4), OWN_SCRIPT, None, ((0, 1), (2, 3))),
        ({"args": ("--gpus", "2")}, gpus(4, 4), SCRIPT, None, ()),
    ],
)
def test_gpus_are_divided_among_the_workers_of_a_node(
    keys: dict[str, Any], nodes: Sequence[ReadyNode], script: str, options: str | None, shares: tuple[Any, ...]
) -> None:
    job = plan(TrainConfig(**keys), with_files(nodes), script=script)
    assert (job.gpus, job.order.gpus_per_worker) == (options, shares)
    assert job.order.env.get("CUDA_VISIBLE_DEVICES") == ("" if job.config.gpus == "none" else None)
    ours = job.order.spec.command[2 + len(job.config.args) :]
    assert ours == ("--kv-store", "dist_sync", *(("--gpus", options) if options else ()))


@pytest.mark.parametrize(
    ("option", "script", "added"),
    [
        ("--kv-store", OWN_SCRIPT, ("--kv-store", "dist_sync")),
        ("--kvstore", OWN_SCRIPT, ("--kvstore", "dist_sync")),
        ("", OWN_SCRIPT, ()),
        ("", SCRIPT, ("--kv-store", "dist_sync")),  # the project's scripts know this option
    ],
)
def test_a_script_gets_the_kv_store_with_its_own_option(option: str, script: str, added: tuple[str, ...]) -> None:
    config = TrainConfig(kv_store_option=option, args=("--lr", "1"))
    job = plan(config, with_files(cpus(2)), script=script)
    assert job.order.spec.command[2:] == ("--lr", "1", *added)
    assert job.order.env["CLUSTER_KV_STORE"] == "dist_sync"
    assert job.order.spec.script_source == ("project" if script == OWN_SCRIPT else "shipped")


def test_gradient_compression_is_passed_to_the_script() -> None:
    job = plan(check(TrainConfig, {"gc_type": "2bit", "gc_threshold": 1}, source="cluster.toml"), 2)
    assert job.order.spec.command[2:] == ("--kv-store", "dist_sync", "--gc-type", "2bit", "--gc-threshold", "1.0")


def test_p3_leaves_updates_to_the_workers() -> None:
    """MXNet's P3 servers only sum gradients."""
    assert plan(TrainConfig(p3=True), 2).order.env["MXNET_UPDATE_ON_KVSTORE"] == "0"
    assert "MXNET_UPDATE_ON_KVSTORE" not in plan(TrainConfig(), 2).order.env


def test_a_job_runs_in_a_subfolder() -> None:
    """The script's path does not depend on it."""
    order = plan(TrainConfig(cwd="./my/"), with_files(cpus(2)), script=OWN_SCRIPT).order
    assert (order.spec.cwd, order.train.subfolder) == ("/home/ubuntu/.cluster/jobs/j/work", "my")
    assert order.spec.command[1] == f"{order.spec.cwd}/my/train.py"
    for cwd, subfolder in ((".", ""), (".hidden", ".hidden")):
        order = plan(TrainConfig(cwd=cwd), with_files(cpus(2)), script=OWN_SCRIPT).order
        assert order.train.subfolder == subfolder


@pytest.mark.parametrize(
    ("name", "command", "wanted"),
    [
        ("auto", (), "train_mnist"),
        ("mine", ("python", "x.py"), "mine"),
        ("auto", ("/usr/bin/python3.11", "-u", "my/train.py"), "train"),
        ("auto", ("python", "-m", "my.pack"), "my.pack"),
        ("auto", ("bash", "-c", "echo $'it\\'s' python"), "echo"),
        ("auto", ("bash", "-c", "cd my && PS_VERBOSE=2 python3.11 -u train.py"), "train"),
        ("auto", ("./tr äin it.sh",), "tr-ain-it.sh"),
        ("auto", ("python", "Größe ö.py"), "Groe-o"),
        ("auto", ("python", "训练.py"), "job"),
        ("auto", ("x" * 99,), "x" * 64),
    ],
)
def test_the_name_of_a_job(name: str, command: tuple[str, ...], wanted: str) -> None:
    assert plan(TrainConfig(name=name), 2, command=command).order.spec.name == wanted


def test_defaults_are_shown_with_their_reasons() -> None:
    env = {"S3_REGION": "eu-west-1", "S3_ENDPOINT": "s3.eu-west-1.amazonaws.com"}
    reading = "read from files staged on the nodes (mxnet-cu112==1.9.1 cannot read s3://)"
    access = dataclasses.replace(NO_ACCESS, env=env)
    job = plan(TrainConfig(workers=4), gpus(4, 4), access=access, credentials="credentials: temporary")
    assert render_settings(job) == [
        "job j: 4 workers, 4 servers on 2 nodes, kv_store dist_sync: train_mnist",
        "  script: train_mnist.py (ships with cluster)",
        "  OMP_NUM_THREADS=2 (8 cores for 4 processes on a node)",
        "  --gpus 0,1; GPUs of each worker on a node: 0,1 | 2,3",
        f"  S3: eu-west-1 at s3.eu-west-1.amazonaws.com; {reading}",
        "  credentials: temporary",
    ]


def test_a_hidden_value_is_not_shown() -> None:
    config = TrainConfig(env={"OMP_NUM_THREADS": "hush", "DMLC_INTERFACE": "hush", "S3_ENDPOINT": "hush"})
    env = {"S3_REGION": "eu-west-1", "S3_ENDPOINT": "s3.eu-west-1.amazonaws.com"}
    job = plan(config, 2, access=dataclasses.replace(NO_ACCESS, env=env), hidden={"env": tuple(config.env)})
    assert set(job.order.spec.train.env.values()) == {"***"}
    message = "\n".join(render_settings(job))
    assert "hush" not in message
    assert "OMP_NUM_THREADS=*** (yours)" in message
