"""Jobs on nodes that real batch schedulers assign: Slurm, PBS's commands on top of it, and Grid Engine.

The nodes have no framework: the jobs are shell commands. test_one_job_file.py has MXNet and PyTorch without schedulers.
"""

import json
import os
import re
import shlex
import signal
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import real_sge
import real_slurm
from command_on_host import PYTHON, may_place_command, own, place_command
from job_steps import SLEEPS, STARTS, borrowed, hosts_of, job_of, nothing_left, running, wait_for_state
from project import REPOSITORY, Project, cluster_in, shipped
from scheduler_nodes import Nodes
from waits import until

pytestmark = pytest.mark.sandbox

SAYS = ("--", "sh", "-c", "echo rank $RANK of $WORLD_SIZE on $CLUSTER_HOST")
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
        self.is_empty()
        nothing_left(self.newest()["id"], hosts_of(self.project))

    def is_empty(self, timeout_s: int = 60) -> None:
        """Waits until the scheduler has no job."""
        waits = f"""until test -z "$({self.listing})"; do sleep 0.2; done"""
        waited = f"timeout {timeout_s} sh -c {shlex.quote(waits)} || {self.listing}"
        assert self.nodes.run(self.nodes.head, waited) == "", self.title


@pytest.fixture(scope="module")
def slurm_nodes(two_nodes: Project) -> Iterator[Nodes]:
    """The shared nodes, on which Slurm runs meanwhile."""
    two_nodes.run("sandbox", "install", *real_slurm.PACKAGES, timeout_s=600)
    with two_nodes.configured(framework="none"):
        nodes = real_slurm.start(two_nodes)
        yield nodes
        nodes.on_all_as_root("pkill -x 'slurmctld|slurmd|munged'")


@pytest.fixture(scope="module")
def pbs_nodes(slurm_nodes: Nodes) -> Nodes:
    slurm_nodes.project.run("sandbox", "install", "slurm-wlm-torque", timeout_s=600)
    return real_slurm.start(slurm_nodes.project)  # configuring a package again stops its daemons


@pytest.fixture(scope="module")
def sge_nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    with cluster_in(tmp_path_factory.mktemp("sge"), shipped(framework="none", queue__name="all.q")) as project:
        yield real_sge.set_up(project)


@pytest.fixture
def batch(request: pytest.FixtureRequest) -> Iterator[Batch]:
    nodes: Nodes = request.getfixturevalue(f"{request.param}_nodes")
    with borrowed(nodes.project):
        yield Batch(request.param, nodes, "qstat" if request.param == "sge" else "squeue --noheader")


mostly_on_slurm = pytest.mark.parametrize(
    "batch",
    ["slurm", pytest.param("pbs", marks=pytest.mark.slow), pytest.param("sge", marks=pytest.mark.slow)],
    indirect=True,
)


@mostly_on_slurm
def test_a_job_on_the_nodes_that_are_assigned(batch: Batch) -> None:
    done = batch.train(*SAYS)
    messages = [
        re.fullmatch(r"\[worker (\d) (node-\d)\] rank \1 of 2 on \2", line) for line in done.stdout.splitlines()
    ]
    assert sorted(line[1] for line in messages if line) == ["0", "1"], done.stdout
    assert {line[2] for line in messages if line} == {"node-0", "node-1"}, done.stdout
    record = batch.newest()
    assert f"on nodes from {batch.title}" in done.stderr
    assert f"{batch.title} job {record['job_number']} requests the nodes" in done.stdout
    assert (record["scheduler"], record["state"], record["exit_code"]) == (batch.launcher, "done", 0)
    assert record["job_number"].partition(".")[0].isdigit()
    assert sorted(process["rank"] for process in record["processes"]) == [0, 1]
    assert sorted(process["node"] for process in record["processes"]) == ["node-0", "node-1"]
    batch.is_free_again()


@mostly_on_slurm
def test_stop_gives_the_nodes_back(batch: Batch) -> None:
    with running(batch.project, "--launcher", batch.launcher, command=STARTS, waiting=2) as job:
        record = batch.newest()
        assert (record["state"], record["pending"]) == ("running", None)
        assert record["job_number"].partition(".")[0] in batch.jobs()
        assert f"{batch.launcher} job {record['job_number']}" in batch.project.run("jobs").stdout
        batch.project.run("stop", job.id)
        code, output = job.ends()
    assert code == 130, output
    batch.is_free_again()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("batch", "cancel", "reason"),
    [
        ("slurm", "scancel --user=ubuntu", "it was cancelled"),
        ("pbs", "qdel $(squeue --noheader --format=%i)", "PBS ended the job"),
        ("sge", "qdel -u ubuntu", real_sge.KILLED),
    ],
    indirect=["batch"],
)
def test_somebody_else_cancels_the_allocation(batch: Batch, cancel: str, reason: str) -> None:
    with running(batch.project, "--launcher", batch.launcher, command=STARTS, waiting=2) as job:
        number = re.escape(batch.newest()["job_number"])
        batch.nodes.run(batch.nodes.head, cancel)
        code, output = job.ends(silence_s=10)
    assert code == 1, output
    assert re.search(rf"{batch.title} job {number} ended: ({reason})", output), output
    assert batch.newest()["state"] == "failed"
    batch.is_free_again()


@pytest.mark.slow  # Slurm's shortest walltime is a minute
@mostly_on_slurm
def test_a_job_that_exceeds_the_walltime(batch: Batch) -> None:
    with (
        batch.project.configured(walltime="1m"),
        running(batch.project, "--launcher", batch.launcher, command=STARTS, waiting=2) as job,
    ):
        number = re.escape(batch.newest()["job_number"])
        code, output = job.ends(silence_s=180)
    assert code == 124, output
    assert re.search(rf"{batch.title} job {number} ended: it reached its walltime", output), output
    batch.is_free_again()


on_each_scheduler = pytest.mark.parametrize("batch", TITLES, indirect=True)


def whole_nodes(batch: Batch) -> dict[str, Any]:
    """The keys with which a job gets whole nodes: PBS reserves a slot."""
    cores = int(batch.nodes.run(batch.nodes.head, "getconf _NPROCESSORS_ONLN")) if batch.launcher == "pbs" else 0
    return {"slots_per_node": cores} if cores else {}


@pytest.mark.slow
@on_each_scheduler
def test_two_jobs_at_once_and_one_that_waits(batch: Batch) -> None:
    project, on_one_node = batch.project, ("--launcher", batch.launcher, "-n", "1")
    with (
        project.configured(**whole_nodes(batch)),
        running(project, *on_one_node, command=STARTS, waiting=1) as first,
        running(project, *on_one_node, command=STARTS, waiting=1) as second,
    ):
        nodes = {process["host"] for job in (first, second) for process in job_of(project, job.id)["roles"]}
        assert nodes == {"node-0", "node-1"}
        submitted = batch.train("--detach", *SAYS)
        assert "is submitted on" in submitted.stderr
        waiting = submitted.stdout.strip()
        reason = until(lambda: job_of(project, waiting)["pending"])
        assert f": {reason}" in project.run("jobs", waiting).stdout
        refused = project.run("stop", code=2).stderr
        assert f"several jobs run or are pending: {waiting}, {second.id}, {first.id}" in refused
        for job in (first, second):
            project.run("stop", job.id)
            assert job.process.wait(timeout=60) == 130
        assert wait_for_state(project, waiting, "done", "failed")["exit_code"] == 0
    batch.is_free_again()


@pytest.mark.slow
@on_each_scheduler
def test_a_job_whose_first_node_is_lost(batch: Batch) -> None:
    """The nodes' names are those by which the scheduler knows them."""
    name = batch.nodes.hosts[1]
    sge = f"-l hostname={name}.ec2.internal"
    options = {"slurm": f"--nodelist={name}", "pbs": f"-l nodes={name}:ppn=1", "sge": sge}
    words = ("--launcher", batch.launcher, "-n", "1", "--job", "silence.toml")
    with (
        batch.project.configured(queue__options=[options[batch.launcher]]),
        running(batch.project, *words, command=SLEEPS, waiting=1) as job,
    ):
        lost = job.hosts["node-1"]
        assert [process["host"] for process in job_of(batch.project, job.id)["roles"]] == [lost.name]
        job.fault("freeze", f"instance={lost.instance_id}")
        try:
            code, output = job.ends(silence_s=60, besides=(lost.name,))
        finally:
            job.fault("thaw", f"instance={lost.instance_id}")
    assert code == 1, output
    assert re.search(r"^error: job .* on node-1 .*: no sign of life from its node", output, re.MULTILINE), output
    batch.is_free_again()


@pytest.mark.slow
@on_each_scheduler
def test_the_nodes_are_free_after_the_head_has_died(batch: Batch) -> None:
    """Nothing cancels the allocation: on the head, no command asks for the job."""
    job = batch.train("--detach", *STARTS).stdout.strip()
    wait_for_state(batch.project, job, "running")
    for pid in hosts_of(batch.project)["node-0"].programs("supervise"):
        os.kill(pid, signal.SIGKILL)
    batch.is_empty(timeout_s=150)
    assert batch.newest()["error"] == "the supervisor on node-0 was killed"
    batch.is_free_again()


# --- `cluster train -H slurm` inside an allocation, with cloud = "hosts": it uses the nodes that are assigned

needs_command = pytest.mark.skipif(not may_place_command(), reason=f"hosts have no {PYTHON}, or share this folder")
CONFIG = """
name = "page"
cloud = "hosts"

[bootstrap]
framework = "none"
"""
SCRIPT = "import os; print('rank', os.environ['RANK'], 'of', os.environ['WORLD_SIZE'])\n"


def place_user(nodes: Nodes) -> str:
    """Gives node-0 the command, which it returns, a project, and a key that all nodes, known by names, accept."""
    found = hosts_of(nodes.project)
    head = found["node-0"]
    home = head.root / "home/ubuntu"
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    command = place_command(head.root, home, cache=Path(cache) / "cluster")
    nodes.run("node-0", "ssh-keygen -q -t ed25519 -N '' -f ~/.ssh/id_ed25519")
    key = (home / ".ssh/id_ed25519.pub").read_text()
    known, names = "", "127.0.0.1 localhost\n"
    for name, host in zip(nodes.names, nodes.hosts, strict=True):
        with (found[name].root / "home/ubuntu/.ssh/authorized_keys").open("a") as file:
            file.write(key)
        public = (found[name].root / "etc/ssh/ssh_host_ed25519_key.pub").read_text().split()
        known += f"{host} {public[0]} {public[1]}\n"
        names += f"{found[name].address} {host}\n"
    (home / ".ssh/known_hosts").write_text(known)
    own(home, ".ssh")
    for name in nodes.names:
        (found[name].root / "etc/hosts").write_text(names)
    (home / "page").mkdir()
    (home / "page/cluster.toml").write_text(CONFIG)
    (home / "page/train.py").write_text(SCRIPT)
    own(home, "page")
    return command


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], str]]:
    """Runs what is typed on node-0, in the project's folder; returns the output."""
    with cluster_in(tmp_path_factory.mktemp("salloc"), shipped(framework="none")) as project:
        project.run("sandbox", "install", *real_slurm.PACKAGES, timeout_s=600)
        nodes = real_slurm.start(project)
        path = Path(place_user(nodes)).parent

        def run(typed: str) -> str:
            script = f"printf %s {shlex.quote(typed)} | PATH={path}:$PATH bash -u 2>&1"
            return nodes.run("node-0", f"cd ~/page && {script}")

        yield run


@pytest.mark.slow
@needs_command
def test_the_commands_of_the_page(shell: Callable[[str], str]) -> None:
    """Typed as printed: the next ones in the shell that salloc starts."""
    page = (REPOSITORY / "docs" / "how-to" / "existing-hosts.md").read_text()
    [block] = re.findall(r"^    (salloc .*\n(?:    .*\n)*)", page, re.MULTILINE)
    done = shell(textwrap.dedent(f"    {block}"))
    assert sorted(re.findall(r"rank \d of \d", done)) == ["rank 0 of 2", "rank 1 of 2"], done
    assert "cleaned " in done


@pytest.mark.slow
@needs_command
def test_the_end_of_the_allocation(shell: Callable[[str], str]) -> None:
    """Slurm's shortest walltime is a minute."""
    done = shell("salloc -N 2 --time 1 cluster train -H slurm -- sleep 600\necho exits with $?\ncluster down --yes\n")
    assert re.search(r"Slurm job \d+ ended: it reached its walltime", done), done
    assert "exits with 124" in done
    assert "cleaned " in done
