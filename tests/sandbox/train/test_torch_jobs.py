"""PyTorch jobs on real hosts, with the real torchrun and Gloo: how they run, and how they end after a kill."""

import re
from collections.abc import Iterator

import pytest

from job_steps import (
    STRANGER,
    Tell,
    borrowed,
    check,
    ec2_of,
    only_these_ports_between_members,
    python,
    records,
    running,
)
from project import REPOSITORY, Project
from real_torch import TORCH, real_torch

pytestmark = pytest.mark.sandbox

DDP = """
import os, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1) * dist.get_rank()
dist.all_reduce(total)
print("sum", total.item(), "of", dist.get_world_size(), flush=True)
print("waits", flush=True)
time.sleep(600)
"""
JOINS = python(DDP)
# Without PyTorch, which each rank would take seconds to import.
RANKS = """
import os, subprocess, time
subprocess.Popen(["setsid", *STRANGER], env={})
print("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], flush=True)
print("waits", flush=True)
time.sleep(600)
""".replace("STRANGER", repr(STRANGER))
PACKAGES = 'packages = ["boto3", "s3fs>=2025"]'
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


BOTO3_AND_S3FS = """
import os, boto3, fsspec
data, output = os.environ["CLUSTER_DATA_URL"], os.environ["CLUSTER_OUTPUT_URL"]
bucket, _, prefix = data[len("s3://"):].partition("/")
body = boto3.client("s3").get_object(Bucket=bucket, Key=prefix + "a.txt")["Body"].read()
fs = fsspec.filesystem("s3")
print("read", body, fs.cat(data + "a.txt"), [one.rpartition("/")[2] for one in fs.ls(data)])
print("exists", fs.exists(output + "model/weights"))
fs.makedirs(output + "model", exist_ok=True)
with fs.open(output + "model/weights", "wb") as stream:
    stream.write(b"weights")
print("wrote", fs.cat(output + "model/weights"))
"""
DCP = """
import os, torch, torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint._fsspec_filesystem import FsspecReader, FsspecWriter
dist.init_process_group("gloo")
folder = os.environ["CLUSTER_OUTPUT_URL"] + "step-1"
for value in (1.0, 7.0):  # the second replaces the first
    dcp.save({"w": torch.full((4,), value)}, storage_writer=FsspecWriter(folder))
state = {"w": torch.zeros(4)}
dcp.load(state, storage_reader=FsspecReader(folder))
print("loaded", state["w"].sum().item())
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def torch_nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    """Two nodes with PyTorch, from a wheel for CPUs, and two libraries for S3."""
    real_torch()  # skips the test if pip's indexes have none
    project = Project(tmp_path_factory.mktemp("torch"))
    text = (REPOSITORY / "cluster.toml").read_text()
    text = text.replace("[bootstrap]\n", f'[bootstrap]\nframework = "pytorch"\ntorch = "{TORCH}"\n{PACKAGES}\n')
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


def test_processes_on_two_nodes_end_together(nodes: Project, record_property: Tell) -> None:
    """`processes` on each node, consecutive ranks, one agent on each node, and the end after a killed worker.

    test_random_kills.py kills the other programs.
    """
    (nodes.directory / "two.toml").write_text("processes = 2\n")
    with running(nodes, "--job", "two.toml", command=python(RANKS), waiting=4) as job:
        shown = [line for line in job.shown if "rank" in line]
        assert sorted(shown) == [f"[worker {rank} node-{rank // 2}] rank {rank} of 4" for rank in range(4)]
        for host in ("node-0", "node-1"):
            tree = job.tree(host)
            assert tree["agent below others"] == tree["torchrun below agent"] == 1, tree
            assert tree["waiting shell below torchrun"] == tree["python below agent"] == 2, tree
        job.kill(job.training_process("worker", "node-1"))
        words = r"failed: worker [23] on node-1 \(process \d+\) was killed by signal 9"
        said = check("torchrun: a worker killed", job, (137, words), record_property)
    assert "4 processes on 2 nodes, launcher torchrun" in said
    record = next(record for record in records(nodes) if record["id"] == job.id)
    assert (record["launcher"], record["workers"], record["servers"], record["exit_code"]) == ("torchrun", 4, 0, 137)
    assert sorted(role["rank"] for role in record["roles"] if role["role"] == "worker") == [0, 1, 2, 3]


def test_the_shipped_script_trains_on_data_that_is_on_the_nodes(nodes: Project) -> None:
    """With the gradients of both nodes. test_reading_on_nodes.py has a command that names its data."""
    nodes.run("data", "demo", "digits")
    nodes.run("data", "put", "--create-bucket", "digits/", "s3://cluster-demo/digits/")
    with nodes.configured(args=["--network", "mlp", "--num-epochs", "1"]):
        # As many threads as cores would wait for each other on a busy machine.
        done = nodes.run("train", "-v", "--env", "OMP_NUM_THREADS=1")
    assert "alidation-accuracy" in done.stdout
    assert "read from files staged on the nodes" in done.stderr


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


# -- libraries that read and write s3://, with a job's own credentials and the endpoint's own CA -----------------------


@pytest.fixture
def with_results(nodes: Project) -> Iterator[Project]:
    """The cluster, with one object in [data] url, and [data] results."""
    (nodes.directory / "a.txt").write_text("hello")
    nodes.run("data", "put", "--create-bucket", "a.txt", "s3://libraries/data/")
    with nodes.configured(url="s3://libraries/data/", results="s3://libraries/results/", args=[]):
        yield nodes


def test_boto3_and_s3fs(with_results: Project) -> None:
    words = ("--plain", "--launcher", "env", "-n", "1", *python(BOTO3_AND_S3FS))
    printed = with_results.run("train", *words).stdout
    assert "read b'hello' b'hello' ['a.txt']" in printed
    assert "exists False" in printed
    assert "wrote b'weights'" in printed


@pytest.mark.slow
def test_distributed_checkpoints(with_results: Project) -> None:
    """Below [data] results, also in place of an earlier one."""
    assert with_results.run("train", "--plain", *python(DCP)).stdout.count("loaded 28.0") == 2
