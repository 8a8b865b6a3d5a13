"""PyTorch jobs on real hosts, with the real torchrun and Gloo: how they run, and the table of faults for torchrun.

The table's rows are those of test_job_faults.py and test_node_faults.py: every job ends soon, with the right exit code,
a message that names rank, host and cause, and no process left.
"""

import json
import os
import re
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pytest

from job_steps import (
    SLEEPS,
    STRANGER,
    Running,
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


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--launcher", "ssh"), '"ssh" does not start programs of [bootstrap] framework = "pytorch"'),
        (("--launcher", "yarn"), "needs dmlc-yarn.jar, which MXNet's wheels do not contain"),
        (("--nodes", "3"), "needs 3 nodes, and the cluster has 2"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_starts(nodes: Project, words: Sequence[str], said: str) -> None:
    failed = nodes.run("train", *words, *JOINS, code=None)
    assert failed.returncode in {1, 2}
    assert said in " ".join(failed.stderr.split())
    assert all(job["state"] in {"done", "failed", "stopped"} for job in json.loads(nodes.run("jobs", "--json").stdout))


# -- faults -----------------------------------------------------------------------------------------------------------

WORKER = r"worker 1 on node-1 \(process \d+\)"
RUNNER = r"torchrun on node-1 \(process \d+\)"


@dataclass(frozen=True)
class Fault:
    """A process to kill. find: returns its pid. said: a pattern of the message about it."""

    what: str
    find: Callable[[Running], int]
    said: str
    code: int = 1
    command: Sequence[str] = WAITS


FAULTS = (
    Fault(
        "worker",
        lambda job: job.training_process("worker", "node-1", program="sh"),
        f"{WORKER} was killed by signal 9",
        137,
    ),
    Fault(
        "worker, when all have joined",
        lambda job: job.training_process("worker", "node-1"),
        f"{WORKER} was killed by signal 9",
        137,
        JOINS,
    ),
    Fault("torchrun", lambda job: job.program("torchrun", "node-1"), f"{RUNNER} was killed by signal 9", 137),
    Fault(
        "torchrun on the head", lambda job: job.program("torchrun"), r"torchrun on node-0 .* killed by signal 9", 137
    ),
    Fault("the agent", lambda job: job.agent("node-1"), rf"({WORKER}|{RUNNER}).*was killed", command=SLEEPS),
    Fault("ssh", lambda job: job.ssh(), rf"({WORKER}|{RUNNER}) was lost: ssh to it failed: ssh was killed by signal 9"),
    Fault("the supervisor", lambda job: job.program("supervise"), "the supervisor on node-0 was killed"),
)


@pytest.mark.parametrize(
    "row",
    [pytest.param(row, id=row.what, marks=[pytest.mark.slow] if index > 0 else []) for index, row in enumerate(FAULTS)],
)
def test_a_program_that_is_killed(nodes: Project, record_property: Tell, row: Fault) -> None:
    with running(nodes, command=row.command, waiting=2) as job:
        job.kill(row.find(job))
        check(f"torchrun: {row.what} killed", job, (row.code, "failed: " + row.said), record_property)


@pytest.mark.parametrize(
    ("who", "words"),
    [
        # test_processes_of_pytorch.py also tests this, with processes of one machine.
        pytest.param("1", WORKER, id="one", marks=pytest.mark.slow),
        pytest.param("*", r"(2 workers failed; first: )?worker [01] on node-[01] .*", id="all", marks=pytest.mark.slow),
    ],
)
def test_ranks_exit_with_a_code(nodes: Project, record_property: Tell, who: str, words: str) -> None:
    program = f"echo waits; until [ -e ~/now ]; do sleep 0.1; done; case $RANK in {who}) exit 7;; esac; sleep 600"
    with running(nodes, command=("--", "sh", "-c", program), waiting=2) as job, job.told("now"):
        check(f"torchrun: rank {who} exits with code 7", job, (7, f"failed: {words}.*exit code 7"), record_property)


@pytest.mark.slow
def test_a_rank_that_is_stopped(nodes: Project, record_property: Tell) -> None:
    with running(nodes, "--job", "stall.toml", command=JOINS, waiting=2) as job:
        os.kill(job.training_process("worker", "node-1"), signal.SIGSTOP)
        words = rf"no worker made progress for \d+ s \(stall_timeout\): {WORKER} is stopped"
        check("torchrun: a rank stopped", job, (124, words), record_property, silence_s=30.0)


@pytest.fixture(autouse=True)
def job_files(torch_nodes: Project) -> None:
    (torch_nodes.directory / "stall.toml").write_text('stall_timeout = "10s"\n')


@pytest.mark.slow
def test_a_stopped_job_leaves_nothing(nodes: Project) -> None:
    with running(nodes, command=JOINS, waiting=2) as job:
        nodes.run("stop", job.id)
        code, said = job.ends()
    assert code == 130, said
