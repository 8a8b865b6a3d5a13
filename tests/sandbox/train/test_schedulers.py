"""Real batch schedulers on sandbox nodes: Slurm, PBS's commands on top of it, and Grid Engine.

The head requests nodes with the code that a job's supervisor uses.
"""

import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

import real_sge
import real_slurm
from foundation.progress import silent
from project import REPOSITORY, Project
from sandbox import control
from scheduler_nodes import Nodes
from waits import until

pytestmark = [pytest.mark.sandbox, pytest.mark.slow]  # test_scheduled_jobs.py tests whole jobs

PROGRAM = (REPOSITORY / "tests" / "support" / "on_nodes" / "allocation_on_a_node.py").read_text()


@dataclass
class Scheduler:
    """queue: one without limits that matter. running: a command that prints a line for each job that has not ended."""

    launcher: str
    nodes: Nodes
    queue: str
    running: str
    numbers: Iterator[int] = field(default_factory=lambda: iter(range(1000)))

    def request(self, how: str, **more: Any) -> dict[str, Any]:
        """Requests nodes on the head; returns the last of its reports of each kind."""
        job = f"20260101-000000-{next(self.numbers):06}"
        asked = {"job": job, "name": "mlp", "nodes": 2, "queue": self.queue, **more}
        pairs = zip(self.nodes.names, self.nodes.addresses, strict=True)
        hosts = [{"name": name, "ip": address} for name, address in pairs]
        words = ("python", "-c", PROGRAM, self.launcher, json.dumps(asked), json.dumps(hosts), how)
        done = self.nodes.project.run("ssh", self.nodes.head, "--", *words, code=None, timeout_s=400)
        assert done.returncode == (1 if how == "die" else 0), done.stdout + done.stderr
        return dict(json.loads(line) for line in done.stdout.splitlines())

    def jobs(self) -> str:
        return self.nodes.run(self.nodes.head, self.running, code=None).strip()


@pytest.fixture(scope="module")
def on_slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    project = Project(tmp_path_factory.mktemp("slurm"))
    try:
        yield real_slurm.set_up(project)
    finally:
        control.reset(project.directory, report=silent)


@pytest.fixture(scope="module")
def on_sge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    project = Project(tmp_path_factory.mktemp("sge"))
    project.write((REPOSITORY / "cluster.toml").read_text())
    try:
        project.run("up")
        yield real_sge.set_up(project)
    finally:
        control.reset(project.directory, report=silent)


@pytest.fixture
def slurm(on_slurm: Nodes) -> Scheduler:
    return Scheduler("slurm", on_slurm, "cluster", "squeue --noheader")


@pytest.fixture
def pbs(on_slurm: Nodes) -> Scheduler:
    return Scheduler("pbs", on_slurm, "cluster", "squeue --noheader")


@pytest.fixture
def sge(on_sge: Nodes) -> Scheduler:
    return Scheduler("sge", on_sge, "all.q", "qstat")


@pytest.fixture(params=["slurm", "pbs", "sge"])
def scheduler(request: pytest.FixtureRequest) -> Scheduler:
    found: Scheduler = request.getfixturevalue(request.param)
    return found


def test_nodes_are_granted_and_given_back(scheduler: Scheduler) -> None:
    said = scheduler.request("cancel")
    assert "fail" not in said, said
    assert sorted(said["grant"]) == ["node-0", "node-1"]
    assert said["note"][0].partition(".")[0].isdigit()
    assert said["cancel"] is None
    until(lambda: not scheduler.jobs(), "the job is not cancelled")


def test_an_unknown_queue_is_refused_with_the_known_ones(scheduler: Scheduler) -> None:
    said = scheduler.request("watch", queue="nope")
    assert re.search(rf'has no (queue|partition) "nope" \(it has: {re.escape(scheduler.queue)}, short\)', said["fail"])
    assert "note" not in said


@pytest.mark.parametrize(
    ("name", "more", "error"),
    [
        ("slurm", {"nodes": 3}, "has 2 nodes (TotalNodes=2), and the job needs 3"),
        ("slurm", {"queue": "short"}, "allows at most 1 node (MaxNodes=1), and the job needs 2"),
        ("slurm", {"queue": "short", "nodes": 1, "walltime_s": 120}, "allows at most 0:01:00 (MaxTime=00:01:00)"),
        ("sge", {"queue": "short", "walltime_s": 120}, "allows at most 0:01:30 (h_rt 00:01:30)"),
        ("sge", {"slots_per_node": 3}, "has 2 slots per node (slots 2)"),
    ],
)
def test_a_request_that_exceeds_a_limit_is_refused(
    name: str, more: dict[str, Any], error: str, request: pytest.FixtureRequest
) -> None:
    scheduler: Scheduler = request.getfixturevalue(name)
    said = scheduler.request("watch", **more)
    assert error in said["fail"]
    assert "note" not in said


def test_a_script_that_fails_to_start_is_refused_by_the_scheduler(slurm: Scheduler) -> None:
    said = slurm.request("watch", options=["--time=never"])
    assert said["fail"].startswith("Slurm refused the job: sbatch: error: ")


@pytest.mark.parametrize(
    ("name", "cancels", "reason"),
    [
        ("slurm", "scancel --user=ubuntu", "it was cancelled"),
        ("pbs", "qdel $(squeue --noheader --format=%i)", "PBS ended the job"),
        ("sge", "qdel -u ubuntu", real_sge.KILLED),
    ],
)
def test_the_end_of_an_allocation_is_reported_with_the_schedulers_reason(
    name: str, cancels: str, reason: str, request: pytest.FixtureRequest
) -> None:
    scheduler: Scheduler = request.getfixturevalue(name)
    running = {"slurm": "squeue --noheader --states=R", "pbs": "squeue --noheader --states=R", "sge": "qstat -s r"}[
        name
    ]
    script = f'while [ -z "$({running})" ]; do sleep 0.2; done; sleep 5; {cancels}'
    head = scheduler.nodes.head
    scheduler.nodes.run(head, f"setsid bash -c {shlex.quote(script)} >/dev/null 2>&1 </dev/null &")
    said = scheduler.request("watch")
    assert sorted(said["grant"]) == ["node-0", "node-1"]
    assert re.fullmatch(f"{TITLES[name]} job {said['note'][0]} ended: ({reason})", said["fail"])


TITLES = {"slurm": "Slurm", "pbs": "PBS", "sge": "Grid Engine"}


def test_a_walltime_that_grid_engine_enforces(sge: Scheduler) -> None:
    said = sge.request("watch", walltime_s=8)
    start = f"Grid Engine job {said['note'][0]} ended: it reached its walltime"
    assert said["fail"] in (f"{start} (h_rt)", f"{start} (0:00:08)")  # the first, once it has been accounted for


@pytest.mark.parametrize(
    ("name", "reason"), [("slurm", "it reached its walltime (00:01:00)"), ("pbs", "it reached its walltime (0:01:00)")]
)
def test_a_walltime_that_slurm_enforces(name: str, reason: str, request: pytest.FixtureRequest) -> None:
    scheduler: Scheduler = request.getfixturevalue(name)
    said = scheduler.request("watch", walltime_s=60)
    assert said["fail"] == f"{TITLES[name]} job {said['note'][0]} ended: {reason}"


def test_the_nodes_of_a_killed_supervisor_are_free_again(scheduler: Scheduler) -> None:
    assert "grant" in scheduler.request("die")
    assert scheduler.jobs()
    until(lambda: not scheduler.jobs(), "the batch script still runs", timeout_s=200)
