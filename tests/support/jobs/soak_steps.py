"""Counts the processes and files on a cluster's nodes, and runs jobs in which a process is killed at random."""

import json
import logging
import os
import random
import re
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from job_steps import ONE_WORKER, Host, all_pids, command_line, namespace_of
from node.agent.shim import WAIT
from project import Project, processes_of
from waits import until

LOG = logging.getLogger(__name__)
ENDED = {"done", "failed", "stopped"}
JOBS = "home/ubuntu/.cluster/jobs"
END_S = 90.0
"""How long the command may run after the last kill: longer than a job with MXNet takes on a busy machine."""
# The targets of kills. ROLES are the job's own processes.
PROGRAMS = ("supervise", "launch", "agent", "jobs")
ROLES = ("worker", "server", "scheduler")
TARGETS = (*PROGRAMS, *ROLES, "ssh", "sshd", "client")
# The files of a job that stay in its folder. Below work/ and output/, the job's own files may have any name.
KEPT = re.compile(
    r"starting|supervisor\.err|record\.json|events|lock|notice|recovery|authorities\.pem|placing-\d+|placed"
    r"|(work|output)(/.*)?|ranks(/[^/]+\.log)?"
)
EXPECTED = {JOBS, f"{JOBS}/lock", f"{JOBS}/submit.lock", "home/ubuntu/.sudo_as_admin_successful"}  # sudo makes the last
PLACES = ("home", "root", "tmp", "run", "var/tmp", "dev/shm")
NOT_LOOKED_INTO = {"env", "files", "tools", "tree"}  # bootstrap's own
# Connections that are open or waiting. The kernel lists closed ones for another minute.
OPEN_STATES = {"01": "established", "08": "close-wait", "0A": "listening"}


def program_of(worker: str) -> tuple[str, ...]:
    """The command of a job of four processes without MXNet: servers and scheduler end a moment after the workers.

    Each has a child in its own session, with nothing of the job in its environment.
    """
    return ("--", "sh", "-c", f"(env -i setsid sleep 99 &); case $DMLC_ROLE in worker) {worker};; *) sleep 1.2;; esac")


KINDS: dict[str, tuple[str, ...]] = {
    "distributed": ("--kv-store", "dist_sync", "-n", "2", "-s", "1", *program_of("echo here; sleep 0.4")),
    "failing": ("--kv-store", "dist_sync", "-n", "2", "-s", "1", *program_of("sleep 0.3; exit 5")),
    "one worker": (*ONE_WORKER, "--", "sh", "-c", "sleep 0.6"),
    "mxnet": ("--", "python", "-c", "import mxnet as mx; kv = mx.kv.create('dist_sync'); kv._barrier()"),
}


@dataclass(frozen=True)
class Nodes:
    """The hosts of a cluster, seen from outside."""

    hosts: tuple[Host, ...]

    @property
    def head(self) -> Host:
        return self.hosts[0]

    def pids(self) -> list[int]:
        here = {host.namespace for host in self.hosts}
        return [pid for pid in all_pids() if namespace_of(pid) in here]

    def processes(self) -> Counter[str]:
        """Counts the processes on the nodes by command line, including zombies."""
        return Counter(" ".join(command_line(pid)).strip() or f"zombie {name_of(pid)}" for pid in self.pids())

    def handles(self) -> dict[tuple[int, str], list[str]]:
        """The files that each process has open."""
        return {(pid, " ".join(command_line(pid)).strip()): open_files(pid) for pid in self.pids()}

    def sockets(self) -> dict[str, list[str]]:
        """The sockets of each host: Unix sockets, including abstract ones, and TCP connections that are not closed."""
        return {host.name: sorted([*unix_sockets(host), *tcp_sockets(host)]) for host in self.hosts}

    def files(self) -> dict[str, set[str]]:
        """The files of each host, except those of bootstrap."""
        return {host.name: set(files_of(host)) for host in self.hosts}

    def job_named(self, name: str) -> dict[str, Any] | None:
        """The record of a job on the head."""
        for path in (self.head.root / JOBS).glob("*/record.json"):
            record: dict[str, Any] = json.loads(path.read_text())
            if record["spec"]["name"] == name:
                return record
        return None

    def supervisors(self) -> list[int]:
        return self.head.programs("supervise")

    def find(self, target: str) -> list[int]:
        """The pids of a target's processes."""
        if target in PROGRAMS:
            return [pid for host in self.hosts for pid in host.programs(target)]
        pids = set(self.pids())
        if target in ROLES:
            envs = {pid: env for pid, env in processes_of("DMLC_ROLE", target).items() if pid in pids}
            return [pid for pid in envs if not any("/node" in word or word == WAIT for word in command_line(pid))]
        words = {pid: " ".join(command_line(pid)) for pid in pids}
        if target == "ssh":
            return [pid for pid, line in words.items() if line.startswith("/usr/bin/ssh ")]
        return [pid for pid, line in words.items() if line.startswith("sshd: ") and "[listener]" not in line]


def name_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def open_files(pid: int) -> list[str]:
    try:
        return sorted(os.readlink(path) for path in Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return []


def unix_sockets(host: Host) -> Iterator[str]:
    lines = Path(f"/proc/{host.pid}/net/unix").read_text().splitlines()[1:]
    return ((line.split()[7:] or ["unnamed"])[0] for line in lines)


def tcp_sockets(host: Host) -> Iterator[str]:
    for name in ("tcp", "tcp6"):
        for line in Path(f"/proc/{host.pid}/net/{name}").read_text().splitlines()[1:]:
            local, _, state = line.split()[1:4]
            if state in OPEN_STATES:
                yield f"{OPEN_STATES[state]} at port {int(local.rpartition(':')[2], 16)}"


def files_of(host: Host) -> Iterator[str]:
    for place in PLACES:
        for folder, folders, names in os.walk(host.root / place):
            folders[:] = [name for name in folders if name not in NOT_LOOKED_INTO]
            below = os.path.relpath(folder, host.root)
            yield from (os.path.join(below, name) for name in (*folders, *names))


def undue(files: set[str], before: set[str]) -> list[str]:
    """The files that jobs have left behind, except those that are meant to stay."""
    found = []
    for path in files - before:
        of_job = re.fullmatch(rf"{JOBS}/[0-9]{{8}}-[0-9]{{6}}-[0-9a-f]{{6}}(?:/(.+))?", path)
        if path in EXPECTED or (of_job and KEPT.fullmatch(of_job[1] or "lock")):
            continue
        found.append(path)
    return sorted(found)


@dataclass
class Soak:
    """Runs jobs one after the other on a cluster, and records the results."""

    name: str
    project: Project
    nodes: Nodes
    chance: random.Random
    killed: Counter[str] = field(default_factory=Counter)
    states: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    unproven: list[str] = field(default_factory=list)
    longest_s: float = 0.0

    def begin(self) -> None:
        """Runs a first job, and records the state of the nodes after it."""
        self.project.run("train", *KINDS["distributed"])
        quiet = Counter(
            {line: count for line, count in self.nodes.processes().items() if "pid1.py" in line or "lease.sh" in line}
        )
        until(lambda: sum((self.nodes.processes() - quiet).values()) == len(self.nodes.hosts), "more than sshd runs")
        until(self.remember, "what is open changes")
        self.files = self.nodes.files()

    def remember(self) -> bool:
        """Records the current state for later comparisons; returns whether it stayed the same meanwhile."""
        self.processes, self.handles = self.nodes.processes(), self.nodes.handles()
        self.sockets = self.nodes.sockets()
        return not self.find_more()

    def run_job(self, number: int, target: str) -> None:
        """Runs one job with its kills, and checks everything about it."""
        name, kind = f"{self.name}-{number}", self.chance.choices(list(KINDS), (5, 1, 2, 1.5))[0]
        with self.project.running("train", "--name", name, *KINDS[kind]) as client:
            struck = self.strike(client, target)
            if self.chance.random() < 0.25:
                time.sleep(self.chance.uniform(0, 0.5))
                struck += self.strike(client, self.chance.choice(TARGETS))
            told = f"{name} ({kind}; {', '.join(struck) or f'no {target} to kill'})"
            began = time.monotonic()
            try:
                client.wait(timeout=END_S)
            except subprocess.TimeoutExpired:
                self.faults.append(f"{told}: the command did not end: {self.project.messages.read_text()}")
                client.kill()
            self.longest_s = max(self.longest_s, time.monotonic() - began)
            said = self.project.messages.read_text()
        if "Traceback" in said:
            self.faults.append(f"{told}: {said}")
        self.settle(told)
        self.judge(name, told, client.returncode, said)
        record = self.nodes.job_named(name) or {}
        LOG.info("%s: %s, exit code %s, %s", told, record.get("state"), client.returncode, record.get("error"))

    def strike(self, client: subprocess.Popen[str], target: str) -> list[str]:
        """Kills one process at a random moment of its life; returns what was killed."""
        awaited = self.chance.choice(["jobs", None]) if target == "client" else target
        while awaited is not None and not self.nodes.find(awaited) and client.poll() is None:
            time.sleep(0.02)
        time.sleep(self.chance.random() ** 3 if awaited else self.chance.uniform(0, 2.0))  # often at its very start
        found = self.nodes.find(target) if target != "client" else [client.pid] if client.poll() is None else []
        for pid in self.chance.sample(found, min(1, len(found))):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                return []
            self.killed[target] += 1
            return [f"{target} killed"]
        return []

    def settle(self, told: str) -> None:
        """Waits for the recorded processes, open files and sockets; no command is run meanwhile."""
        give_up_at = time.monotonic() + END_S
        while (more := self.find_more()) and time.monotonic() < give_up_at:
            time.sleep(0.05)
        if more:
            self.faults.append(f"{told}: {more}")

    def find_more(self) -> str:
        """Describes the differences from the recorded state; "" if there are none."""
        if more := self.nodes.processes() - self.processes:
            return f"still there: {dict(more)}"
        if (handles := self.nodes.handles()) != self.handles:
            return f"open: {handles}, before: {self.handles}"
        if (sockets := self.nodes.sockets()) != self.sockets:
            return f"sockets {sockets}, before: {self.sockets}"
        return ""

    def judge(self, name: str, told: str, code: int, said: str) -> None:
        """Checks that the job's record has ended, at the latest after the next command."""
        record = self.nodes.job_named(name)
        if record is None:
            if code == 0:
                self.faults.append(f"{told}: no job, and exit code 0: {said}")
            self.states["none"] += 1
            return
        if record["state"] not in ENDED:
            # The second time jobs.py is killed, the command cannot learn what became of the job, and says so.
            if code >= 0 and "may or may not have started" not in said:
                self.faults.append(f"{told}: the command has ended and the job is {record['state']}: {said}")
            if self.chance.random() < 0.5:
                self.unproven.append(name)  # the next job must notice it
                return
            self.project.run("jobs", "--json")
        elif code >= 0 and code != record["exit_code"]:
            self.faults.append(f"{told}: exit code {code}, and in the record {record['exit_code']}: {said}")
        for one in [*self.unproven, name]:
            self.prove(one)
        self.unproven.clear()

    def prove(self, name: str) -> None:
        """Checks that a job's record and its log have ended with the same result."""
        record = self.nodes.job_named(name)
        if record is None or record["state"] not in ENDED or record["left"] or record["ended_at"] is None:
            self.faults.append(f"{name}: its record does not end: {record}")
            return
        log = (self.nodes.head.root / JOBS / record["spec"]["id"] / "events").read_text().splitlines()
        result = json.loads(log[-1]).get("result")
        if result != {key: record[key] for key in ("state", "exit_code", "error", "left")}:
            self.faults.append(f"{name}: {result} in its log, and in its record {record}")
        self.states[f"{record['state']}: {reason(record['error'])}" if record["error"] else record["state"]] += 1

    def finish(self) -> None:
        """Runs a last job, and checks the files: only those meant to stay are left, none is root's, not too many."""
        self.project.run("train", *KINDS["distributed"])
        for job in self.unproven:
            self.prove(job)
        self.settle("at the end")
        for name, files in self.nodes.files().items():
            self.faults += [f"{name}: {path} was left" for path in undue(files, self.files[name])]
        for host in self.nodes.hosts:
            folders = list((host.root / JOBS).iterdir())
            if len(folders) > 50 + 2 + len(("lock", "submit.lock")):  # one of them is the newest job's
                self.faults.append(f"{host.name}: {len(folders)} folders of jobs")
            root = host.root.stat().st_uid
            owned = {path for path in (host.root / JOBS).rglob("*") if path.lstat().st_uid == root}
            self.faults += [f"{host.name}: {path} belongs to root" for path in owned]


def reason(error: str) -> str:
    """The beginning of an error, without the process and other numbers in it."""
    return re.sub(r"\b\d+\b", "N", re.sub(r"\(process \d+\) ", "", error))[:80]
