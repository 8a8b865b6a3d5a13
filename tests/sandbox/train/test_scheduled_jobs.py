"""Jobs on nodes that real batch schedulers assign: Slurm, PBS's commands on top of it, and Grid Engine.

The nodes have no framework: the jobs are shell commands. test_one_job_file.py has MXNet and PyTorch.
"""

import json
import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

import real_sge
import real_slurm
from ec2_sandbox import control
from foundation.progress import silent
from job_steps import STARTS, borrowed, hosts_of, nothing_left, records, running
from project import REPOSITORY, Project, configure
from scheduler_nodes import Nodes
from waits import until

pytestmark = pytest.mark.sandbox

SAYS = ("--", "sh", "-c", "echo rank $RANK of $WORLD_SIZE on $CLUSTER_HOST")
FAILS = ("--", "sh", "-c", 'echo this is rank $RANK; [ "$RANK" = 0 ] || exit 7; sleep 600')
TITLES = {"slurm": "Slurm", "pbs": "PBS", "sge": "Grid Engine"}


@dataclass(frozen=True)
class Batch:
    """A scheduler and its cluster. listing: the command that prints a line for each job that has not ended."""

    launcher: str
    nodes: Nodes
    listing: str

    @property
    def project(self) -> Project:
        return self.nodes.project

    @property
    def title(self) -> str:
        return TITLES[self.launcher]

    def train(self, *words: str, code: int | None = 0) -> Any:
        """Runs `cluster train` with this launcher."""
        return self.project.run("train", "--launcher", self.launcher, *words, code=code)

    def newest(self) -> dict[str, Any]:
        """The newest job in `cluster jobs --json`."""
        found: dict[str, Any] = json.loads(self.project.run("jobs", "--json").stdout)[0]
        return found

    def jobs(self) -> str:
        """The scheduler's jobs that have not ended."""
        return self.nodes.run(self.nodes.head, self.listing, code=None).strip()

    def is_free_again(self) -> None:
        """Waits until the scheduler has no job, and the nodes have no process of one."""
        is_empty = f'test -z "$({self.listing})"'
        waits = f"for _ in $(seq 300); do {is_empty} && exit; sleep 0.2; done; {self.listing}"
        assert self.nodes.run(self.nodes.head, waits) == "", self.title
        nothing_left(self.newest()["id"], hosts_of(self.project))

    @contextmanager
    def queue(self, **values: Any) -> Iterator[None]:
        """In the block, [queue] of cluster.toml has these values for its keys."""
        kept = (self.project.directory / "cluster.toml").read_text()
        text = kept
        if name := values.pop("name", ""):
            text, found = re.subn(r'^(# )?name = ".*"(?= +# queue)', f'name = "{name}"', text, flags=re.MULTILINE)
            assert found == 1
        self.project.write(configure(text, **values))
        try:
            yield
        finally:
            self.project.write(kept)


@pytest.fixture(scope="module")
def slurm_nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    project = Project(tmp_path_factory.mktemp("slurm"))
    try:
        yield real_slurm.set_up(project, with_pbs=False, framework="none")
    finally:
        control.reset(project.directory, report=silent)


@pytest.fixture(scope="module")
def pbs_nodes(slurm_nodes: Nodes) -> Nodes:
    slurm_nodes.project.run("sandbox", "install", *real_slurm.PBS_PACKAGES, timeout_s=600)
    return slurm_nodes


@pytest.fixture(scope="module")
def sge_nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    project = Project(tmp_path_factory.mktemp("sge"))
    text = configure((REPOSITORY / "cluster.toml").read_text(), framework="none")
    project.write(text.replace('# name = "" ', 'name = "all.q" '))
    try:
        project.run("up")
        yield real_sge.set_up(project)
    finally:
        control.reset(project.directory, report=silent)


@pytest.fixture
def slurm(slurm_nodes: Nodes) -> Iterator[Batch]:
    with borrowed(slurm_nodes.project):
        yield Batch("slurm", slurm_nodes, "squeue --noheader")


@pytest.fixture
def pbs(pbs_nodes: Nodes) -> Iterator[Batch]:
    with borrowed(pbs_nodes.project):
        yield Batch("pbs", pbs_nodes, "squeue --noheader")


@pytest.fixture
def sge(sge_nodes: Nodes) -> Iterator[Batch]:
    with borrowed(sge_nodes.project):
        yield Batch("sge", sge_nodes, "qstat")


@pytest.fixture
def batch(request: pytest.FixtureRequest) -> Batch:
    found: Batch = request.getfixturevalue(request.param)
    return found


mostly_on_slurm = pytest.mark.parametrize(
    "batch",
    ["slurm", pytest.param("pbs", marks=pytest.mark.slow), pytest.param("sge", marks=pytest.mark.slow)],
    indirect=True,
)


# -- how they run ------------------------------------------------------------------------------------------------------


@mostly_on_slurm
def test_a_job_on_the_nodes_that_are_assigned(batch: Batch) -> None:
    done = batch.train(*SAYS)
    said = [re.fullmatch(r"\[worker (\d) (node-\d)\] rank \1 of 2 on \2", line) for line in done.stdout.splitlines()]
    assert sorted(line[1] for line in said if line) == ["0", "1"], done.stdout
    assert {line[2] for line in said if line} == {"node-0", "node-1"}, done.stdout
    record = batch.newest()
    assert f"on nodes from {batch.title}" in done.stderr
    assert f"{batch.title} job {record['job_number']} requests the nodes" in done.stdout
    assert (record["scheduler"], record["state"], record["exit_code"]) == (batch.launcher, "done", 0)
    assert record["job_number"].partition(".")[0].isdigit()
    assert sorted(role["rank"] for role in record["roles"]) == [0, 1]
    assert sorted(role["host"] for role in record["roles"]) == ["node-0", "node-1"]
    for rank in range(2):
        assert f"rank {rank} of 2" in batch.project.run("logs", record["id"], "--rank", str(rank)).stdout
    batch.is_free_again()


@pytest.mark.slow
@mostly_on_slurm
def test_the_exit_code_of_the_rank_that_fails(batch: Batch) -> None:
    failed = batch.train(*FAILS, code=7)
    assert re.search(r"failed: worker 1 on node-\d \(process \d+\) ended with exit code 7", failed.stderr)
    assert batch.newest()["exit_code"] == 7
    batch.is_free_again()


@pytest.mark.slow
def test_the_head_is_not_used_if_it_is_not_assigned(slurm: Batch) -> None:
    with occupied(slurm, "--nodelist", slurm.nodes.hosts[0], "-N", "1"):
        done = slurm.train("--nodes", "1", *SAYS)
    assert done.stdout.splitlines()[-1] == "[worker 0 node-1] rank 0 of 1 on node-1"
    assert slurm.newest()["exit_code"] == 0


# -- how they end ------------------------------------------------------------------------------------------------------


@mostly_on_slurm
def test_stop_gives_the_nodes_back(batch: Batch) -> None:
    with running(batch.project, "--launcher", batch.launcher, command=STARTS, waiting=2) as job:
        record = batch.newest()
        assert (record["state"], record["pending"]) == ("running", None)
        assert record["job_number"].partition(".")[0] in batch.jobs()
        assert f"{batch.launcher} job {record['job_number']}" in batch.project.run("jobs").stdout
        batch.project.run("stop", job.id)
        code, said = job.ends()
    assert code == 130, said
    batch.is_free_again()


@contextmanager
def occupied(batch: Batch, *options: str) -> Iterator[None]:
    """In the block, another job occupies nodes of Slurm."""
    words = shlex.join(["sbatch", "--parsable", "--exclusive", "--output=/dev/null", *options, "--wrap", "sleep 600"])
    number = batch.nodes.run(batch.nodes.head, f"cd / && {words}").strip()
    until(lambda: number in batch.nodes.run(batch.nodes.head, "squeue --noheader --states=R"))
    try:
        yield
    finally:
        batch.nodes.run(batch.nodes.head, f"scancel {number}")
        until(lambda: number not in batch.nodes.run(batch.nodes.head, "squeue --noheader"))


@pytest.mark.slow
def test_a_pending_job_is_shown_with_its_reason_and_can_be_stopped(slurm: Batch) -> None:
    with occupied(slurm, "-N", "1"):
        job = slurm.train("--detach", *SAYS).stdout.strip()
        reason = "Resources: waits for free nodes"
        until(lambda: slurm.newest()["pending"] == reason, "Slurm's reason is not shown")
        record = slurm.newest()
        assert (record["id"], record["state"]) == (job, "pending")
        assert f"slurm job {record['job_number']}: {reason}" in slurm.project.run("jobs").stdout
        slurm.project.run("stop", job)
        record = slurm.newest()
        assert (record["state"], record["exit_code"]) == ("stopped", 130)
        assert record["job_number"] not in (line.split()[0] for line in slurm.jobs().splitlines())
    slurm.is_free_again()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("batch", "cancel", "reason"),
    [
        ("slurm", "scancel --user=ubuntu", "it was cancelled"),
        pytest.param("pbs", "qdel $(squeue --noheader --format=%i)", "PBS ended the job", marks=pytest.mark.slow),
        pytest.param("sge", "qdel -u ubuntu", real_sge.KILLED, marks=pytest.mark.slow),
    ],
    indirect=["batch"],
)
def test_somebody_else_cancels_the_allocation(batch: Batch, cancel: str, reason: str) -> None:
    with running(batch.project, "--launcher", batch.launcher, command=STARTS, waiting=2) as job:
        number = re.escape(batch.newest()["job_number"])
        batch.nodes.run(batch.nodes.head, cancel)
        code, said = job.ends(silence_s=10)
    assert code == 1, said
    assert re.search(rf"{batch.title} job {number} ended: ({reason})", said), said
    assert batch.newest()["state"] == "failed"
    batch.is_free_again()


@pytest.mark.slow  # Slurm's shortest walltime is a minute
@mostly_on_slurm
def test_a_job_that_exceeds_the_walltime(batch: Batch) -> None:
    with (
        batch.queue(walltime="1m"),
        running(batch.project, "--launcher", batch.launcher, command=STARTS, waiting=2) as job,
    ):
        number = re.escape(batch.newest()["job_number"])
        code, said = job.ends(silence_s=180)
    assert code == 124, said
    assert re.search(rf"{batch.title} job {number} ended: it reached its walltime", said), said
    batch.is_free_again()


# -- what is refused, and what is only shown ---------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("batch", "queue", "words", "said"),
    [
        (
            "slurm",
            {"name": "short", "walltime": "2m"},
            ("--nodes", "1"),
            "allows at most 0:01:00 (MaxTime=00:01:00), and the job asks for 0:02:00",
        ),
        ("pbs", {"name": "nope"}, (), 'PBS has no queue "nope"'),
        ("sge", {"name": "nope"}, (), 'Grid Engine has no queue "nope" ('),
    ],
    indirect=["batch"],
)
def test_a_job_that_exceeds_a_limit_is_refused(
    batch: Batch, queue: dict[str, Any], words: tuple[str, ...], said: str
) -> None:
    before = records(batch.project)
    with batch.queue(**queue):
        refused = batch.train(*words, *SAYS, code=2)
    assert said in " ".join(refused.stderr.split())
    assert refused.stdout == ""
    assert records(batch.project) == before
    assert not batch.jobs()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("batch", "lines"),
    [
        ("slurm", ["#SBATCH --nodes=2", "#SBATCH --time=0:02:00", "#SBATCH --account=lab"]),
        ("pbs", ["#PBS -l nodes=2:ppn=1", "#PBS -l walltime=0:02:00"]),
        ("sge", ["#$ -pe fill 4", "#$ -l h_rt=0:02:00"]),
    ],
    indirect=["batch"],
)
def test_a_dry_run_prints_the_script(batch: Batch, lines: list[str]) -> None:
    before = records(batch.project)
    with batch.queue(account="lab", max_duration="90s"):
        shown = batch.train("--dry-run", *SAYS)
    assert shown.stdout.startswith("#!/bin/sh\n")
    assert set(lines) <= set(shown.stdout.splitlines()), shown.stdout
    assert "the job can run; nothing was started" in shown.stderr
    assert records(batch.project) == before
    assert not batch.jobs()
