"""Steps for tests that disturb a running job: they find its processes, and check how it ends."""

import json
import os
import re
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import boto3
import pytest

from ec2_sandbox import control
from node.agent.shim import WAIT
from preloaded import Started
from project import Project, processes_of
from sandbox_steps import LIVE_STATES, RunningSandbox, enter, find_live
from waits import until

if TYPE_CHECKING:
    from mypy_boto3_ec2.client import EC2Client

END_S = 10.0
"""The time that a job may take to end on all nodes after a fault."""
SILENCE_S = 5.0
"""silence_timeout_s in silence.toml, a job file; with it, a job fails when it loses a node."""
ONE_WORKER = ("--kv-store", "local", "-n", "1")
PROGRAM = """
import mxnet as mx, time
kv = mx.kv.create("dist_sync")
print("waits as rank", kv.rank, flush=True)
time.sleep(600)
"""
JOINS = ("--", "python", "-c", PROGRAM)
"""All processes join each other, then sleep longer than any test."""
STRANGER = ["sleep", "599"]
STARTS = ("--", "sh", "-c", f"(env -i setsid {' '.join(STRANGER)} &); echo waits; sleep 600")
"""The same without MXNet: faster, and without ranks. Each process has a child without the job's parent, session and
environment."""
SLEEPS = ("--", "sh", "-c", "sleep 599 & echo waits; wait")
"""The same with a child that has the job's environment: a killed agent's orphans are known by that alone."""
NODE_PROGRAMS = ("supervise", "launch", "agent")


def python(program: str) -> tuple[str, ...]:
    return ("--", "python", "-c", program)


@dataclass(frozen=True)
class Host:
    """A node of the cluster, seen from this machine. pid: its process 1. address: for other nodes."""

    name: str
    address: str
    instance_id: str
    pid: int

    @property
    def root(self) -> Path:
        return Path(f"/proc/{self.pid}/root")

    @property
    def namespace(self) -> str:
        return os.readlink(f"/proc/{self.pid}/ns/pid")

    def programs(self, name: str) -> list[int]:
        """The pids, on this machine, of one of the node programs on this host."""
        return [
            pid
            for pid in all_pids()
            if re.search(rf"/runtime/[0-9a-f]+/node {name}( |$)", " ".join(command_line(pid)[:6]))
            and namespace_of(pid) == self.namespace
        ]


@cache
def _names(directory: Path) -> dict[str, tuple[str, str]]:
    """The names and addresses of a cluster's nodes by their instances' ids, which do not change."""
    nodes = json.loads(Project(directory).run("status", "--json").stdout)["nodes"]
    return {node["instance_id"]: (node["name"], node["private_ip"]) for node in nodes}


def hosts_of(project: Project, *, again: bool = False) -> dict[str, Host]:
    """The running nodes of a project's cluster by name. again: read the names again, since nodes have been replaced."""
    if again:
        _names.cache_clear()
    names = _names(project.directory)
    found = [
        Host(*names[host.instance_id], host.instance_id, host.pid)
        for host in control.describe(project.directory).hosts
        if host.instance_id in names and host.pid
    ]
    return {host.name: host for host in found}


@contextmanager
def borrowed(project: Project) -> Iterator[Project]:
    """The shared cluster for a test; afterwards no fault is armed and no job runs."""
    (project.directory / "silence.toml").write_text(f'silence_timeout_s = {SILENCE_S:.0f}\non_node_loss = "fail"\n')
    try:
        yield project
    finally:
        control.disarm_faults(project.directory, "all")
        for job in records(project):
            if job["state"] not in {"done", "failed", "stopped"}:
                project.run("stop", job["id"])


def records(project: Project) -> list[dict[str, Any]]:
    """The records of the cluster's jobs on its head, with the keys of their specs beside the others."""
    folder = hosts_of(project)["node-0"].root / "home/ubuntu/.cluster/jobs"
    found = [json.loads(path.read_text()) for path in folder.glob("*/record.json")]
    return [{**record["spec"]["train"], **record["spec"], **record} for record in found]


def job_of(project: Project, job: str) -> dict[str, Any]:
    return next(record for record in records(project) if record["id"] == job)


def wait_for_state(project: Project, job: str, *states: str, timeout_s: float = 60.0) -> dict[str, Any]:
    """Waits until the job is in one of these states by its record on the head; returns the record."""
    until(lambda: job_of(project, job)["state"] in states, f"{job} is not {states}", timeout_s=timeout_s)
    return job_of(project, job)


def live(ec2: "EC2Client") -> set[str]:
    """Returns the ids of the instances that run or may run again."""
    return find_live(ec2, LIVE_STATES)


def ec2_of(project: Project, monkeypatch: pytest.MonkeyPatch) -> "EC2Client":
    info = control.find_running(project.directory)
    assert info is not None
    enter(RunningSandbox(project_dir=project.directory, info=info, environment=control.environment(info)), monkeypatch)
    assert os.environ["AWS_ENDPOINT_URL"] == info.endpoint_url
    return boto3.client("ec2")


def cause(project: Project, *words: str) -> None:
    control.cause_fault(project.directory, " ".join(words))


@dataclass
class Running:
    """A job, the command that follows it, and its hosts."""

    project: Project
    process: Started
    id: str
    hosts: dict[str, Host]
    shown: list[str] = field(default_factory=list)
    struck_at: float = 0.0
    took_s: float = 0.0

    def kill(self, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)
        self.struck_at = time.monotonic()

    def fault(self, *words: str) -> None:
        cause(self.project, *words)
        self.struck_at = time.monotonic()

    def process_on(self, host: str, *, program: str, role: str = "worker") -> int:
        """The pid of a role's own process on a node: the child of the agent, which runs this program."""
        for pid, env in processes_of(self.id).items():
            words, own = command_line(pid), env.get("DMLC_ROLE", "worker" if "RANK" in env else None)
            is_program = words[:1] == [program] and WAIT not in words
            if is_program and own == role and namespace_of(pid) == self.hosts[host].namespace:
                return pid
        raise AssertionError(host)

    def tree(self, host: str) -> "Counter[str]":
        """The job's processes on a node, by what they are and the process above: "rank below agent"."""
        namespace = self.hosts[host].namespace
        pids = [pid for pid in processes_of(self.id) if namespace_of(pid) == namespace]
        kinds = {pid: kind_of(command_line(pid)) for pid in pids}
        return Counter(f"{kind} below {kinds.get(self.parent_of(pid), 'others')}" for pid, kind in kinds.items())

    def parent_of(self, pid: int) -> int:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])

    def ends(self, *, silence_s: float = 0.0, besides: tuple[str, ...] = ()) -> tuple[int, str]:
        """Waits until the command and all processes of the job have ended; returns the exit code and messages.

        silence_s: how long a fault may go unnoticed. besides: hosts where no process can end.
        """
        try:
            rest, _ = self.process.communicate(timeout=END_S + silence_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the command goes on: {self.project.messages.read_text()}") from None
        self.shown += rest.splitlines()
        self.took_s = time.monotonic() - self.struck_at
        output = self.project.messages.read_text()
        assert "Traceback" not in output
        self.is_gone(besides=besides, timeout_s=END_S + silence_s)
        assert self.process.returncode is not None
        return self.process.returncode, output

    def is_gone(self, *, besides: tuple[str, ...] = (), timeout_s: float = END_S) -> None:
        nothing_left(self.id, self.hosts, besides=besides, timeout_s=timeout_s)


def kind_of(words: Sequence[str]) -> str:
    """What a process of a job is: one of the node programs, torchrun, a shell that waits for a rank, or a rank."""
    if "torch.distributed.run" in words:
        return "torchrun"
    program = next((after for word, after in pairwise(words) if re.search(r"/runtime/[0-9a-f]+/node$", word)), None)
    return program or ("waiting shell" if WAIT in words else words[0].rpartition("/")[2])


def nothing_left(job: str, hosts: dict[str, Host], *, besides: tuple[str, ...] = (), timeout_s: float = END_S) -> None:
    """Waits until no process of a job is left on the hosts, no child of STARTS, and no node program."""
    namespaces = {host.namespace: host for host in hosts.values() if Path(f"/proc/{host.pid}").exists()}
    looked_at = {name: host for name, host in namespaces.items() if host.name not in besides}

    def left() -> list[int]:
        pids = {*processes_of(job), *(p for p in all_pids() if command_line(p)[:2] == STRANGER)}
        found = [pid for pid in pids if namespace_of(pid) in looked_at]
        return found + [pid for host in looked_at.values() for name in NODE_PROGRAMS for pid in host.programs(name)]

    until(lambda: not left(), f"processes of {job} are left: {left()}", timeout_s=timeout_s)


def fail(project: Project, *words: str, code: int = 1) -> "subprocess.CompletedProcess[str]":
    """Runs `cluster train` with a job that fails by itself, and checks that it leaves no process."""
    done = project.run("train", *words, code=code)
    (job,) = re.findall(r"^job (\S+): \d+ worker", done.stderr, re.MULTILINE)
    nothing_left(job, hosts_of(project))
    return done


Tell = Callable[[str, object], None]
"""record_property, which adds results to the summary of a test run."""


def check(fault: str, job: Running, expected: tuple[int, str], tell: Tell, **limits: Any) -> str:
    """Checks that the job ends with this exit code and a matching message; returns all messages.

    limits: as in Running.ends.
    """
    code, message = job.ends(**limits)
    error = "; ".join(re.findall(r"^error: (.*)", message, re.MULTILINE))
    assert code == expected[0], message
    assert f"job {job.id}" in error, message
    assert re.search(expected[1], error), message
    tell("result", f"{fault}: {job.took_s:.1f} s to the end, exit code {code}: {error}")
    return message


@contextmanager
def running(
    project: Project, *words: str, command: Sequence[str] = JOINS, waiting: int | None = None, line: str = "waits"
) -> Iterator[Running]:
    """Runs a job; the block begins when its five processes have printed that they wait (with JOINS: the two workers).

    words: options of `cluster train`. waiting: another number of processes to wait for. line: a pattern of the line
    that they print.
    """
    hosts = hosts_of(project)
    wanted = waiting or (2 if command == JOINS else 5)
    with project.following("train", *words, *command) as process:
        assert process.stdout is not None
        shown: list[str] = []
        while sum(1 for row in shown if re.match(rf"\[.* node-\d\] {line}", row)) < wanted:
            row = process.stdout.readline()
            assert row, project.messages.read_text()
            shown.append(row.rstrip("\n"))
        (job,) = re.findall(r"^job (\S+): \d+ (?:worker|process)", project.messages.read_text(), re.MULTILINE)
        yield Running(project, process, job, hosts, shown)


def gone(job: str) -> None:
    """Waits until no process of a job is left on this machine, on any host."""
    until(lambda: not processes_of(job), f"processes of {job} are left", timeout_s=END_S)


def all_pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def command_line(pid: int) -> list[str]:
    """The command line of a process; [] after its end."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return []


def namespace_of(pid: int) -> str | None:
    """The pid namespace of a process, which identifies its host; None after its end."""
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")
    except OSError:
        return None
