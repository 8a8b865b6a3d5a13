"""PyTorch jobs on real hosts, with the real torchrun and Gloo: how they run, and how they end after a kill."""

import json
import re
from collections.abc import Iterator

import pytest

from job_steps import (
    SLEEPS,
    STRANGER,
    Tell,
    borrowed,
    check,
    ec2_of,
    only_these_ports_between_members,
    running,
)
from project import REPOSITORY, Project
from real_torch import TORCH, real_torch

pytestmark = pytest.mark.sandbox

WAITS = ("--", "sh", "-c", f"(env -i setsid {' '.join(STRANGER)} &); echo waits; sleep 600")
DDP = """
import os, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1) * dist.get_rank()
dist.all_reduce(total)
print("sum", total.item(), "of", dist.get_world_size(), flush=True)
print("waits", flush=True)
time.sleep(600)
"""
JOINS = ("--", "python", "-c", DDP)
# Takes its place in the job from options alone, like PyTorch's older examples.
EXAMPLE = """
import argparse, os, torch, torch.distributed as dist

for name in [name for name in os.environ if name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")]:
    del os.environ[name]
parser = argparse.ArgumentParser()
parser.add_argument("--world-size", type=int, required=True)
parser.add_argument("--rank", type=int, required=True)
parser.add_argument("--dist-url", required=True)
parser.add_argument("--dist-backend", default="nccl")
args = parser.parse_args()
dist.init_process_group(args.dist_backend, args.dist_url, world_size=args.world_size, rank=args.rank)
total = torch.ones(1)
dist.all_reduce(total)
print(f"rank {args.rank} of {args.world_size}: {total.item()}")
dist.destroy_process_group()  # without it, PyTorch may abort when another rank ends first
"""


@pytest.fixture(scope="module")
def torch_nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    """Two nodes with PyTorch, from a wheel for CPUs."""
    real_torch()  # skips the test if pip's indexes have none
    project = Project(tmp_path_factory.mktemp("torch"))
    text = (REPOSITORY / "cluster.toml").read_text()
    text = text.replace("[bootstrap]\n", f'[bootstrap]\nframework = "pytorch"\ntorch = "{TORCH}"\n')
    project.write(text.replace('script = "train_mnist.py"', 'script = "train_mnist_torch.py"'))
    try:
        project.run("up", timeout_s=600)
        yield project
    finally:
        project.run("sandbox", "reset", "--yes")


@pytest.fixture
def nodes(torch_nodes: Project) -> Iterator[Project]:
    with borrowed(torch_nodes) as project:
        yield project


# -- how they run ------------------------------------------------------------------------------------------------------


def test_processes_on_two_nodes_reduce_and_report(nodes: Project) -> None:
    """`processes` on each node, consecutive ranks, the live view's speeds, per-rank logs, and the record."""
    program = DDP.replace('print("waits", flush=True)\ntime.sleep(600)\n', "dist.destroy_process_group()\n")
    (nodes.directory / "two.toml").write_text("processes = 2\n")
    done = nodes.run("train", "--job", "two.toml", "--", "python", "-c", program)
    assert sorted(re.findall(r"^\[worker (\d) (node-\d)\] sum 6.0 of 4$", done.stdout, re.MULTILINE)) == [
        ("0", "node-0"),
        ("1", "node-0"),
        ("2", "node-1"),
        ("3", "node-1"),
    ]
    assert "4 processes on 2 nodes, launcher torchrun" in done.stderr
    record = json.loads(nodes.run("jobs", "--json").stdout)[0]
    assert (record["launcher"], record["workers"], record["servers"], record["exit_code"]) == ("torchrun", 4, 0, 0)
    assert sorted(role["rank"] for role in record["roles"] if role["role"] == "worker") == [0, 1, 2, 3]


def test_data_is_on_the_nodes_before_the_start(nodes: Project) -> None:
    """For a program that names it in its command or reads $CLUSTER_DATA_DIR, and for the shipped script."""
    url = "s3://cluster-demo/digits/"
    nodes.run("data", "demo", "digits")
    nodes.run("data", "put", "--create-bucket", "digits/", url)
    line = f"ls {url}val | head -1; cd $CLUSTER_DATA_DIR && pwd"
    done = nodes.run("train", "-v", "--", "sh", "-c", line)
    assert len(re.findall(r"\] \S+\.rec$", done.stdout, re.MULTILINE)) == 2
    assert len(re.findall(r"\] /\S+/s3/cluster-demo/digits$", done.stdout, re.MULTILINE)) == 2
    assert "read from files staged on the nodes (the command names it)" in done.stderr
    with nodes.configured(args=["--num-epochs", "1"]):
        assert "alidation-accuracy" in nodes.run("train").stdout


def test_one_agent_on_each_node(nodes: Project) -> None:
    """Below it are torchrun, with a small shell for each rank, and the ranks."""
    (nodes.directory / "two.toml").write_text("processes = 2\n")
    with running(nodes, "--job", "two.toml", command=SLEEPS, waiting=4) as job:
        for host in ("node-0", "node-1"):
            tree = job.tree(host)
            assert tree["agent below others"] == tree["torchrun below agent"] == 1, tree
            assert tree["waiting shell below torchrun"] == tree["sh below agent"] == 2, tree


@pytest.mark.slow
def test_a_script_of_pytorchs_examples_runs_unmodified(nodes: Project) -> None:
    (nodes.directory / "example.py").write_text(EXAMPLE)
    words = "--world-size $CLUSTER_WORLD_SIZE --dist-backend gloo --dist-url $CLUSTER_INIT_METHOD --rank $CLUSTER_RANK"
    done = nodes.run("train", "--launcher", "env", "example.py", *words.split())
    assert set(re.findall(r"rank \d of \d: .*", done.stdout)) == {"rank 0 of 2: 2.0", "rank 1 of 2: 2.0"}


@pytest.mark.slow
def test_the_first_failing_ranks_traceback_comes_last(nodes: Project) -> None:
    fails = (
        "dist.barrier()\nif dist.get_rank() == 1:\n    time.sleep(2)\n    raise ValueError('broken')\ntime.sleep(600)"
    )
    program = DDP.replace("time.sleep(600)", fails)  # the other rank has printed its lines before
    failed = nodes.run("train", "--", "python", "-c", program, code=1)
    assert failed.stdout.rstrip().endswith("ValueError: broken")
    assert re.search(r"failed: worker 1 on node-1 \(process \d+\) ended with exit code 1", failed.stderr)


@pytest.mark.slow
def test_a_port_that_nodes_cannot_reach_is_named(nodes: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    with only_these_ports_between_members(ec2_of(nodes, monkeypatch), (22, 22)):
        failed = nodes.run("train", *JOINS, code=1)
    words = r"torchrun on node-1.*the node of rank 0: port 29999 on \S+ cannot be reached from here"
    assert re.search(words, " ".join(failed.stderr.split())), failed.stderr


# -- faults -----------------------------------------------------------------------------------------------------------


def test_a_worker_that_is_killed(nodes: Project, record_property: Tell) -> None:
    """test_random_kills.py kills the other programs."""
    with running(nodes, command=WAITS, waiting=2) as job:
        job.kill(job.training_process("worker", "node-1", program="sh"))
        said = r"failed: worker 1 on node-1 \(process \d+\) was killed by signal 9"
        check("torchrun: a worker killed", job, (137, said), record_property)
