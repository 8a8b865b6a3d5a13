"""PyTorch jobs on real hosts, with the real torchrun and Gloo: how they run, and how they end after a kill."""

import re
from collections.abc import Iterator

import pytest

from job_steps import Tell, borrowed, check, python, records, running
from project import Project, cluster_in, shipped
from real_torch import TORCH, real_torch

pytestmark = pytest.mark.sandbox

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
    """Two nodes with PyTorch, from a wheel for CPUs."""
    real_torch()  # skips the test if pip's indexes have none
    text = shipped(framework="pytorch", torch=TORCH, script="train_mnist_torch.py")
    with cluster_in(tmp_path_factory.mktemp("torch"), text) as project:
        yield project


@pytest.fixture
def nodes(torch_nodes: Project) -> Iterator[Project]:
    with borrowed(torch_nodes) as project:
        yield project


def test_the_shipped_script_trains_until_a_rank_is_killed(nodes: Project, record_property: Tell) -> None:
    """With the gradients of both nodes, on data that is on their disks, below one agent on each of them.

    test_random_kills.py kills the other programs.
    """
    nodes.run("data", "demo", "digits")
    nodes.run("data", "put", "--create-bucket", "digits/", "s3://cluster-demo/digits/")
    # As many threads as cores would wait for each other on a busy machine.
    words = ("-v", "--env", "OMP_NUM_THREADS=1")
    with (
        nodes.configured(args=["--network", "mlp", "--num-epochs", "1000"]),
        running(nodes, *words, command=(), waiting=2, line=r".*Epoch\[0\] Validation-accuracy=") as job,
    ):
        first = re.findall(r"^\[worker (\d) .*Epoch\[0\] Validation-accuracy=(.*)", "\n".join(job.shown), re.MULTILINE)
        assert {rank for rank, _ in first} == {"0", "1"}
        assert len({accuracy for _, accuracy in first}) == 1  # of the images of both
        for host in ("node-0", "node-1"):
            tree = job.tree(host)
            assert tree["agent below others"] == tree["torchrun below agent"] == 1, tree
            assert tree["waiting shell below torchrun"] == tree["python below agent"] == 1, tree
        record = next(record for record in records(nodes) if record["id"] == job.id)
        job.kill(job.process_on("node-1", program=record["python"]))
        killed = r"failed: (2 workers failed; first: )?worker 1 on node-1 \(process \d+\) was killed by signal 9"
        output = check("torchrun: a worker killed", job, (137, killed), record_property)
    assert "cause: killed by SIGKILL, and not by the kernel's OOM killer" in output
    assert "2 processes on 2 nodes, launcher torchrun" in output
    assert "read from files staged on the nodes" in output
    record = next(record for record in records(nodes) if record["id"] == job.id)
    assert (record["launcher"], record["workers"], record["servers"], record["exit_code"]) == ("torchrun", 2, 0, 137)
    assert sorted(one["rank"] for one in record["roles"] if one["role"] == "worker") == [0, 1]


@pytest.mark.slow
def test_libraries_that_read_and_write_s3(nodes: Project) -> None:
    """boto3, s3fs and PyTorch's checkpoints, with a job's own credentials and the endpoint's own CA."""
    (nodes.directory / "a.txt").write_text("hello")
    nodes.run("data", "put", "--create-bucket", "a.txt", "s3://libraries/data/")
    urls = {"url": "s3://libraries/data/", "results": "s3://libraries/results/", "args": []}
    with nodes.configured(**urls, bootstrap__packages=["boto3", "s3fs>=2025"]):
        nodes.run("up", timeout_s=600)
        words = ("--plain", "--launcher", "env", "-n", "1", *python(BOTO3_AND_S3FS))
        printed = nodes.run("train", *words).stdout
        assert "read b'hello' b'hello' ['a.txt']" in printed
        assert "exists False" in printed
        assert "wrote b'weights'" in printed
        assert nodes.run("train", "--plain", *python(DCP)).stdout.count("loaded 28.0") == 2
