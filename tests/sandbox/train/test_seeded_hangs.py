"""One of three ranks hangs, in ways that programs do: `cluster` names its rank, its node and its line."""

import json
import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from job_steps import Tell, borrowed, check, job_of, running
from project import Project, cluster_in, shipped
from real_torch import TORCH, real_torch

pytestmark = [pytest.mark.sandbox, pytest.mark.slow]

PROGRAM = Path(__file__).with_name("hangs.py")
LINES = {
    line.rpartition("  # ")[2]: at for at, line in enumerate(PROGRAM.read_text().splitlines(), 1) if "  # " in line
}
IN_ALL = ("thread", "lock", "sleep", "gil", "signal", "handler", "file", "skips")
KINDS = [("mxnet", kind) for kind in IN_ALL] + [("torch", kind) for kind in ("process", *IN_ALL)]
SILENCE_S = 60.0
LATE = "worker 1 on node-1 is at an earlier one; 2 others wait at all_reduce of 9"


@pytest.fixture(scope="module")
def torch_nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    real_torch()  # skips the test if pip's indexes have none
    with cluster_in(
        tmp_path_factory.mktemp("torch"), shipped(framework="pytorch", torch=TORCH, provision__nodes=3)
    ) as project:
        yield project


@pytest.fixture
def nodes(request: pytest.FixtureRequest) -> Iterator[Project]:
    project: Project = request.getfixturevalue({"mxnet": "two_nodes", "torch": "torch_nodes"}[request.param])
    with borrowed(project):
        (project.directory / "hangs.py").write_text(PROGRAM.read_text())
        (project.directory / "stall.toml").write_text('stall_timeout = "12s"\n')
        yield project


OPTIONS = ("--job", "stall.toml", "-n", "3")


@pytest.mark.parametrize(("nodes", "kind"), KINDS, indirect=["nodes"])
def test_the_rank_that_hangs_is_named(
    nodes: Project, kind: str, record_property: Tell, request: pytest.FixtureRequest
) -> None:
    library = request.node.callspec.params["nodes"]
    with running(nodes, *OPTIONS, command=("--", "python", "hangs.py", library, kind), waiting=3) as job:
        job.struck_at = time.monotonic()
        first = rf"\(stall_timeout\): worker 1 on (node-\d) (is|waits) at hangs.py:{LINES[kind]}\b"
        check(f"{library}, {kind}", job, (124, first), record_property, silence_s=SILENCE_S)
    record = job_of(nodes, job.id)
    (host,) = [one["host"] for one in record["roles"] if (one["role"], one["rank"]) == ("worker", 1)]
    assert f"worker 1 on {host} " in record["error"]
    assert record["stacks"][0].startswith(f"worker 1 on {host}: ")


@pytest.mark.parametrize(("nodes", "role"), [("mxnet", "server"), ("torch", "worker")], indirect=["nodes"])
def test_a_process_that_is_stopped_is_named(
    nodes: Project, role: str, record_property: Tell, request: pytest.FixtureRequest
) -> None:
    """With the lines at which it, or those that wait for it, are."""
    library = request.node.callspec.params["nodes"]
    options = (*OPTIONS, "-s", "1") if role == "server" else OPTIONS
    with running(nodes, *options, command=("--", "python", "hangs.py", library, "trains"), waiting=3) as job:
        node = "node-0" if role == "server" else "node-1"
        os.kill(job.process_on(node, program="python", role=role), signal.SIGSTOP)
        job.struck_at = time.monotonic()
        found = rf"\(stall_timeout\): {role} \d on {node} \(process \d+\) is stopped, as by SIGSTOP; .* at hangs.py:\d+"
        check(f"{library}, {role} stopped", job, (124, found), record_property, silence_s=SILENCE_S)


@pytest.mark.parametrize("nodes", ["torch"], indirect=True)
def test_nodes_that_lose_each_other_are_named(nodes: Project, record_property: Tell) -> None:
    """Both reach the head."""
    with running(nodes, *OPTIONS, command=("--", "python", "hangs.py", "torch", "trains"), waiting=3) as job:
        ends = [f"{name}={job.hosts[node].instance_id}" for name, node in (("a", "node-1"), ("b", "node-2"))]
        job.fault("partition", *ends)
        try:
            found = r"node-1 cannot reach node-2 .*; node-2 cannot reach node-1 .* at hangs.py:\d+"
            check("torch, network cut", job, (124, found), record_property, silence_s=SILENCE_S)
        finally:
            job.fault("heal", *ends)


@pytest.mark.parametrize("nodes", ["torch"], indirect=True)
def test_stacks_of_a_job_that_hangs_and_starts_again(nodes: Project) -> None:
    """The rank is named while it hangs, with the process of its DataLoader; the next attempt succeeds."""
    (nodes.directory / "stall.toml").write_text('stall_timeout = "90s"\non_stall = "requeue"\n')
    with running(nodes, *OPTIONS, command=("--", "python", "hangs.py", "torch", "process"), waiting=3) as job:
        assert job.process.stdout is not None
        while "no worker has made progress" not in (line := job.process.stdout.readline()):
            assert line, nodes.messages.read_text()
        where = f"worker 1 on node-1 is at hangs.py:{LINES['process']} (_PollLikeSelector.select)"
        assert where in line
        shown = nodes.run("stacks").stdout.splitlines()
        others = f"2 others wait at hangs.py:{LINES['reduce']} (all_reduce)"
        assert shown == [where, others, f"collective 23 of group 0 (default_pg): {LATE}"]
        found = json.loads(nodes.run("stacks", job.id, "--json").stdout)
        assert [(one["rank"], one["node"], one["waits"]) for one in found] == [
            *((0, "node-0", True), (1, "node-1", False), (2, "node-2", True))
        ]
        whole = nodes.run("stacks", "--rank", "1").stdout
        assert whole.startswith(f"{where}\n\nprocess ")
        assert re.search(rf"    Data.__getitem__ \(\S*hangs.py:{LINES['item']}\)", whole)
        native = nodes.run("stacks", "--rank", "0", "--native").stdout
        assert re.search(r"    c10d::Work::wait \(.*\n(.*\n)*    all_reduce \(", native)
        assert "stack of worker 1 on node-1: _PollLikeSelector.select" in nodes.run("jobs", job.id).stdout
        job.struck_at = time.monotonic()
        code, _ = job.ends(silence_s=2 * SILENCE_S)
    record = job_of(nodes, job.id)
    assert (code, record["state"], [one["reason"] for one in record["attempts"]]) == (0, "done", ["stalled", "done"])
    assert where in record["attempts"][0]["error"]


@pytest.mark.parametrize("nodes", ["mxnet", "torch"], indirect=True)
def test_a_rank_that_evaluates_and_saves_raises_no_alarm(nodes: Project, request: pytest.FixtureRequest) -> None:
    """While the others wait for it, both for longer than stall_timeout."""
    (nodes.directory / "stall.toml").write_text('stall_timeout = "6s"\n')
    library = request.node.callspec.params["nodes"]
    done = nodes.run("train", *OPTIONS, "--", "python", "hangs.py", library, "evaluates", timeout_s=120)
    assert "progress" not in done.stdout + done.stderr
