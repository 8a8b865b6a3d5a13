"""Real deaths of ranks on real hosts: each job names the rank that failed first, and why.

The kernel's log, which hosts of the sandbox may not read, CUDA and NCCL are in tests/unit/node/causes, recorded.
"""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from job_steps import borrowed, hosts_of, python, running
from project import Project, cluster_in, shipped
from real_torch import TORCH, real_torch

pytestmark = [pytest.mark.sandbox, pytest.mark.slow]

MEMORY = Path("/sys/fs/cgroup/memory")
"""The memory controller of this machine, if it has version 1 of control groups."""
BEGIN = """
import ctypes, mmap, os, signal, socket, sys, time, torch, torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

class Killed(Dataset):
    def __len__(self):
        return 4
    def __getitem__(self, index):
        os.kill(os.getpid(), signal.SIGKILL)

if os.path.exists("/dev/shm/a"):
    os.unlink("/dev/shm/a")
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
print("waits", flush=True)
if dist.get_rank() == 1:
"""
END = """
dist.all_reduce(total)
time.sleep(600)
"""
SHM = """
    file = open("/dev/shm/a", "w+b")
    file.truncate(1 << 30)
    shared = mmap.mmap(file.fileno(), 1 << 30)
    for at in range(0, 1 << 30, 4096):
        shared[at] = 1
"""
ILLEGAL = """
    code = mmap.mmap(-1, 4096, prot=7)
    code.write(b"\\x0f\\x0b")
    ctypes.CFUNCTYPE(None)(ctypes.addressof(ctypes.c_char.from_buffer(code)))()
"""
MODEL = "    torch.nn.Linear(2, 3).load_state_dict(torch.nn.Linear(2, 4).state_dict())"
DEATHS = {
    "killed": ("    os.kill(os.getpid(), 9)", "killed by SIGKILL, and not by the kernel's OOM killer"),
    "bus error": (SHM, "/dev/shm is full"),
    "full": ('    open("/dev/shm/a", "wb").write(bytes(64 << 20))', "/dev/shm is full"),
    "disk": ('    torch.save(total.expand(1 << 16).clone(), open("/dev/full", "wb"))', "as on a full disk"),
    "illegal": (ILLEGAL, "illegal instruction"),
    "port": (
        '    [socket.create_server(("", 29777)) for _ in range(2)]',
        "another process on this node uses that port",
    ),
    "loader": ("    list(DataLoader(Killed(), num_workers=1))", "a data loader's process was killed"),
    "library": ('    ctypes.CDLL("libcudnn.so.9")', "libcudnn.so.9 is not on this node"),
    "data": ("    DataLoader([], shuffle=True)", "the dataset is empty"),
    "checkpoint": (MODEL, "the checkpoint is of another model"),
}
ALLOCATES = """
    while not os.path.exists(os.path.expanduser("~/now")):
        time.sleep(0.1)
    kept = [bytearray(1 << 24) for _ in range(64)]
"""


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    """Two nodes with PyTorch, from a wheel for CPUs; /dev/shm of the second one has 8 MiB."""
    real_torch()  # skips the test if pip's indexes have none
    with cluster_in(tmp_path_factory.mktemp("causes"), shipped(framework="pytorch", torch=TORCH)) as project:
        inside = ("nsenter", "--target", str(hosts_of(project)["node-1"].pid), "--mount")
        subprocess.run((*inside, "mount", "-t", "tmpfs", "-o", "size=8m,mode=1777", "shm", "/dev/shm"), check=True)
        with borrowed(project):
            yield project


@pytest.mark.parametrize("death", DEATHS)
def test_the_cause_of_a_real_death(nodes: Project, death: str) -> None:
    lines, words = DEATHS[death]
    done = nodes.run("train", *python(f"{BEGIN}{lines}{END}"), code=None)
    names_the_cause(nodes, done.stderr, words)


def names_the_cause(nodes: Project, output: str, words: str) -> None:
    """The error, the record, the list of jobs and the report name rank 1 and the cause."""
    error = output.partition("error: job ")[2]
    assert "worker 1 on node-1" in error.splitlines()[0], output
    assert words in " ".join(error.partition("cause: ")[2].split()), output
    [record] = json.loads(nodes.run("report", "--json").stdout)
    assert words in record["cause"]
    assert (record["first_error"]["rank"], record["first_error"]["node"]) == (1, "node-1")
    assert words in " ".join(nodes.run("jobs", record["id"]).stdout.split())


def test_the_oom_killer(nodes: Project) -> None:
    """Its count needs no root. Rank 1 may use 64 MiB more than now."""
    if not (MEMORY / "memory.limit_in_bytes").exists():
        pytest.skip("this machine has no memory controller of version 1")
    with running(nodes, command=python(f"{BEGIN}{ALLOCATES}{END}"), waiting=2) as job:
        pid = job.process_on("node-1", program="python")
        group = MEMORY / f"cluster-test-{pid}"
        group.mkdir()
        try:
            (group / "memory.limit_in_bytes").write_text(str(64 << 20))
            (group / "cgroup.procs").write_text(str(pid))
            (job.hosts["node-1"].root / "home/ubuntu/now").touch()
            _, output = job.ends()
        finally:
            group.rmdir()
    names_the_cause(nodes, output, "the kernel's OOM killer ended a process")


def test_a_mistake_with_mxnet(two_nodes: Project) -> None:
    program = "import mxnet as mx; mx.nd.load('records/none.params')"
    with borrowed(two_nodes):
        done = two_nodes.run("train", "-n", "1", "--kv-store", "local", *python(program), code=None)
    assert "cause: records/none.params is not on the nodes" in " ".join(done.stderr.split()), done.stderr
