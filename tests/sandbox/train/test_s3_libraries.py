"""Libraries that read and write s3:// in users' programs, with a job's own credentials and the endpoint's own CA."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from project import REPOSITORY, Project, configure
from real_torch import TORCH, real_torch

pytestmark = pytest.mark.sandbox

URL, RESULTS = "s3://libraries/data/", "s3://libraries/results/"

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
import os, sys, torch, torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint._fsspec_filesystem import FsspecReader, FsspecWriter
dist.init_process_group("gloo")
folder = (sys.argv[1] if len(sys.argv) > 1 else os.environ["CLUSTER_OUTPUT_URL"]) + "step-1"
writer, reader = (dcp.FileSystemWriter, dcp.FileSystemReader) if folder[0] == "/" else (FsspecWriter, FsspecReader)
for value in (1.0, 7.0):  # the second replaces the first
    dcp.save({"w": torch.full((4,), value)}, storage_writer=writer(folder))
state = {"w": torch.zeros(4)}
dcp.load(state, storage_reader=reader(folder))
print("loaded", state["w"].sum().item())
dist.destroy_process_group()
"""


# Before [bootstrap]. The sandbox's hosts mount the volume with these programs.
VOLUME = """
[[volumes]]
mount = "/shared"
source = "head"
size_gib = 1

[sandbox]
packages = ["sshfs", "fuse2fs"]

"""


def set_up(
    folder: Path, programs: dict[str, str], *, nodes: int, packages: list[str], more: str = "", **values: Any
) -> Iterator[Project]:
    project = Project(folder)
    text = configure((REPOSITORY / "cluster.toml").read_text(), url=URL, results=RESULTS, args=[], **values)
    text = text.replace("\n[sandbox] ", "\n# ").replace("nodes = 2\n", f"nodes = {nodes}\n")
    project.write(text.replace("[bootstrap]\n", f"{more}[bootstrap]\npackages = {json.dumps(packages)}\n"))
    for name, text in programs.items():
        (folder / name).write_text(text)
    (folder / "data").mkdir()
    (folder / "data" / "a.txt").write_text("hello")
    try:
        project.run("up", timeout_s=600)
        project.run("data", "put", "--create-bucket", "data/", URL)
        yield project
    finally:
        project.run("sandbox", "reset", "--yes")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    """One node with the two libraries."""
    programs = {"libraries.py": BOTO3_AND_S3FS}
    folder = tmp_path_factory.mktemp("libraries")
    packages = ["boto3", "s3fs>=2025"]
    yield from set_up(folder, programs, nodes=1, packages=packages, framework="none", launcher="env")


def test_boto3_and_s3fs(node: Project) -> None:
    printed = node.run("train", "--plain", "libraries.py").stdout
    assert "read b'hello' b'hello' ['a.txt']" in printed
    assert "exists False" in printed
    assert "wrote b'weights'" in printed


@pytest.fixture(scope="module")
def torch_nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    """Two nodes with PyTorch and a volume."""
    real_torch()  # skips the test if pip's indexes have none
    folder = tmp_path_factory.mktemp("dcp")
    packages = ["s3fs>=2025"]
    yield from set_up(
        folder, {"dcp.py": DCP}, nodes=2, packages=packages, more=VOLUME, framework="pytorch", torch=TORCH
    )


@pytest.mark.slow
@pytest.mark.parametrize("where", [[], ["/shared/"]], ids=["s3", "volume"])
def test_distributed_checkpoints(torch_nodes: Project, where: list[str]) -> None:
    """Below [data] results, also in place of an earlier one; and on a volume."""
    assert torch_nodes.run("train", "--plain", "dcp.py", *where).stdout.count("loaded 28.0") == 2
