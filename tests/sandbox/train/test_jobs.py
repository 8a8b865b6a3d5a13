"""Jobs by the real command: they outlive their clients, are followed without a gap, queue up, and are stopped."""

import json
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from job_steps import hosts_of
from project import CLUSTER, Project, processes_of
from waits import until

pytestmark = pytest.mark.sandbox

TIMEOUT_S = 60.0
ONE_WORKER = ("--kv-store", "local", "-n", "1")
# Many lines fast until it is told that they are enough, and an exit code of its own.
COUNT = """
import os, sys, time
number = 0
while not os.path.exists(os.path.expanduser("~/enough")):
    for number in range(number, number + 100):
        print("line", number)
    number += 1
    time.sleep(0.02)
os.remove(os.path.expanduser("~/enough"))
print("line", number)
sys.exit(3)
"""
WAIT = "import time; print('here', flush=True); time.sleep(600)"


def python(program: str) -> tuple[str, ...]:
    return ("--", "python", "-c", program)


def heads_folder(project: Project) -> Path:
    """The jobs' folder on the head, as seen from here."""
    hosts = json.loads(project.run("sandbox", "status", "--json").stdout)["hosts"]
    nodes = json.loads(project.run("status", "--json").stdout)["nodes"]
    (pid,) = [host["pid"] for host in hosts if host["instance_id"] == nodes[0]["instance_id"]]
    return Path(f"/proc/{pid}/root/home/ubuntu/.cluster/jobs")


@dataclass
class Nodes(Project):
    """The shared cluster, and a look at its jobs that costs nothing."""

    folder: Path = Path()

    def jobs(self) -> dict[str, dict[str, Any]]:
        return {path.parent.name: json.loads(path.read_text()) for path in self.folder.glob("*/record.json")}

    def job_named(self, name: str) -> dict[str, Any]:
        return next((job for job in self.jobs().values() if job["name"] == name), {})

    def detach(self, *words: str) -> str:
        """Begin a job and leave it; its id."""
        return self.run("train", "--detach", *words).stdout.strip()


def gone(job: str) -> None:
    until(lambda: not processes_of("CLUSTER_JOB_ID", job), f"processes of {job} are left")


@pytest.fixture(scope="module")
def shared(two_nodes: Project) -> Nodes:
    return Nodes(two_nodes.directory, two_nodes.env, heads_folder(two_nodes))


@pytest.fixture
def nodes(shared: Nodes) -> Iterator[Nodes]:
    """The shared cluster, on which no job runs or waits after the test."""
    yield shared
    for job, record in shared.jobs().items():
        if record["state"] not in {"done", "failed", "stopped"}:
            shared.run("stop", job)


@dataclass
class Client:
    """A command whose output goes to files."""

    process: subprocess.Popen[bytes]
    out: Path
    messages: Path


@contextmanager
def client(project: Project, name: str, *words: str) -> Iterator[Client]:
    out, messages = project.directory / f"{name}.out", project.directory / f"{name}.messages"
    with out.open("wb") as stdout, messages.open("wb") as stderr:
        process = subprocess.Popen(
            [CLUSTER, *words],
            cwd=project.directory,
            env=project.environment(),
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
        )
    try:
        yield Client(process, out, messages)
    finally:
        process.kill()
        process.wait()


def sessions(job: str) -> set[int]:
    """Pids, as seen from here, of the sshd processes whose users follow a job on its head."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
                if b"follow" in words and job.encode() in words and b"--no-wait" not in words:
                    parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                    # Once it has been killed, what it had started is another one's child for a moment.
                    if Path(f"/proc/{parent}/cmdline").read_bytes().startswith(b"sshd: ubuntu"):
                        found.add(parent)
            except OSError:
                continue
    return found


def cut_off(job: str, clients: Sequence[Client]) -> None:
    """Kill the sshds that clients have on the head, once each has shown something of what came through them."""
    found: set[int] = until(
        lambda: there if len(there := sessions(job)) == len(clients) else None, "not all clients follow the job"
    )
    before = [each.out.stat().st_size for each in clients]
    until(lambda: all(each.out.stat().st_size > size for each, size in zip(clients, before, strict=True)), "no lines")
    for pid in found:
        os.kill(pid, signal.SIGKILL)
    until(lambda: not sessions(job) & found, "a session that was killed goes on")  # it is not to be struck again


def counted(output: str) -> list[int]:
    return [int(number) for number in re.findall(r"^\[worker 0 node-0\] line (\d+)$", output, re.MULTILINE)]


def test_a_job_is_followed_without_a_lost_or_doubled_line_however_often_it_is_cut_off(nodes: Nodes) -> None:
    job = nodes.detach(*ONE_WORKER, "--name", "counting", *python(COUNT))
    assert re.fullmatch(r"\d{8}-\d{6}-[0-9a-f]{6}", job)
    with client(nodes, "one", "logs", "-f", job) as one, client(nodes, "other", "logs", "-f", "counting") as other:
        clients = (one, other)
        for _ in range(2):
            cut_off(job, clients)
        enough(job)
        for each in clients:
            assert each.process.wait(timeout=TIMEOUT_S) == 3, each.messages.read_text()
    for each in clients:
        shown, said = counted(each.out.read_text()), each.messages.read_text()
        assert shown == list(range(len(shown)))
        assert said.count("was lost") == said.count("connected to node-0 again") == 2
        assert f"job {job} runs on; trying again for 10 min" in said
        assert f"job {job} failed: " in said
        assert "exit code 3" in said


def enough(job: str) -> None:
    """Have COUNT end."""
    pid = next(iter(processes_of("CLUSTER_JOB_ID", job)))
    Path(f"/proc/{pid}/root/home/ubuntu/enough").touch()


def test_a_job_outlives_a_client_that_was_killed(nodes: Nodes) -> None:
    program = "import sys, time\nfor n in range(30): print('line', n, flush=True); time.sleep(0.1)\nsys.exit(4)"
    with nodes.running("train", *ONE_WORKER, *python(program)) as process:
        assert process.stdout is not None
        assert process.stdout.readline().endswith("line 0\n"), nodes.messages.read_text()
        process.kill()
    done = nodes.run("logs", "-f", code=4)
    assert counted(done.stdout) == list(range(30))
    assert "exit code 4" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_without_a_terminal_a_job_is_left_running_and_it_is_said_how_to_stop_it(
    nodes: Nodes, number: signal.Signals
) -> None:
    with nodes.running("train", *ONE_WORKER, *python(WAIT)) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "[worker 0 node-0] here\n", nodes.messages.read_text()
        process.send_signal(number)
        process.communicate(timeout=10)
    said = nodes.messages.read_text()
    assert process.returncode == 130
    (job,) = re.findall(r"job (\S+) runs on: cluster logs -f \S+ follows it, cluster stop \S+ ends it", said)
    status = json.loads(nodes.run("status", "--json").stdout)["job"]
    assert (status["id"], status["state"], status["queued"]) == (job, "running", 0)
    stopped = nodes.run("stop").stdout
    assert f"job {job} (python) is stopped: worker 0 on node-0" in stopped
    assert "nothing of it is left on node-0" in stopped
    gone(job)
    assert nodes.run("stop").stdout == "no job runs\n"
    assert "had ended already: stopped" in nodes.run("stop", job).stdout
    assert nodes.run("logs", "-f", job, code=130).stdout.startswith("[worker 0 node-0] here\n")


def test_a_second_job_is_refused_or_waits_for_its_turn(nodes: Nodes) -> None:
    first = nodes.detach(*ONE_WORKER, "--name", "first", *python(WAIT))
    refused = nodes.run("train", *ONE_WORKER, *python("print('never')"), code=1)
    assert f"job {first} (first) is" in refused.stderr
    assert f"cluster train --queue ..., or cluster stop {first}" in refused.stderr
    assert not refused.stdout
    until(lambda: nodes.jobs()[first]["state"] == "running", "the first job does not run")
    second = nodes.detach(*ONE_WORKER, "--queue", "--name", "mine", *python("print('second')"))
    third = nodes.detach(*ONE_WORKER, "--queue", "--name", "mine", *python("print('third')"))
    listed = json.loads(nodes.run("jobs", "--json").stdout)
    assert [job["id"] for job in listed[:3]] == [third, second, first]
    assert [job["state"] for job in listed[:3]] == ["queued", "queued", "running"]
    assert "is stopped: nothing of it ran yet" in nodes.run("stop", "mine").stdout  # the newest of that name
    nodes.run("stop", "first")
    assert nodes.run("logs", "-f", second).stdout.endswith("[worker 0 node-0] second\n")
    records = nodes.jobs()
    assert [records[job]["state"] for job in (first, second, third)] == ["stopped", "done", "stopped"]
    assert records[third]["started_at"] is None
    assert records[first]["ended_at"] <= records[second]["started_at"]
    table = nodes.run("jobs").stdout.splitlines()
    assert [line.split()[:3] for line in table if line.startswith(first)] == [[first, "first", "stopped"]]


@pytest.mark.slow
def test_ctrl_c_on_a_job_that_waits_takes_it_out_of_the_queue(nodes: Nodes) -> None:
    first = nodes.detach(*ONE_WORKER, *python(WAIT))
    with nodes.running("train", "--queue", "--name", "waiting", *ONE_WORKER, *python("print('never')")) as process:
        until(lambda: nodes.job_named("waiting"), "the second job is not there")
        process.send_signal(signal.SIGINT)
        shown, _ = process.communicate(timeout=10)
    assert process.returncode == 130
    assert "never" not in shown
    assert nodes.job_named("waiting")["state"] == "stopped"
    assert nodes.jobs()[first]["state"] == "running"


RANKS = """
import os, sys, time
import mxnet as mx
print("before", flush=True)
kv = mx.kv.create("dist_sync")
print("rank", kv.rank, flush=True)
"""


def test_logs_show_what_is_asked_for(nodes: Nodes) -> None:
    nodes.run("train", "--name", "ranks", *python(RANKS))
    everything = nodes.run("logs", "ranks").stdout
    tags = dict(re.findall(r"^\[(worker \d) (node-\d)\] rank \d$", everything, re.MULTILINE))
    assert set(tags) == {"worker 0", "worker 1"}
    shown = nodes.run("logs", "--rank", "1", "--role", "worker", "ranks").stdout
    host = tags["worker 1"]
    assert [line for line in shown.splitlines() if "supervisor" not in line] == [
        f"[worker 1 {host}] before",  # though its rank was not known by then
        f"[worker 1 {host}] rank 1",
    ]
    assert "before" not in nodes.run("logs", "--since", "2100-01-01").stdout
    lines = [json.loads(line) for line in nodes.run("logs", "--json", "--since", "10m").stdout.splitlines()]
    assert {line["rank"] for line in lines if line.get("text", "").startswith("rank ")} == {0, 1}
    assert lines[-1]["state"] == "done"
    assert "there is no job" in nodes.run("logs", "nonsense", code=1).stderr


def test_a_job_that_runs_too_long_is_ended(nodes: Nodes) -> None:
    done = nodes.run("train", *ONE_WORKER, "--max-duration", "2", *python(WAIT), code=124)
    assert "max_duration" in done.stderr
    (job,) = re.findall(r"error: job (\S+) failed", done.stderr)
    gone(job)


class Terminal:
    """A terminal in which `cluster WORDS...` runs."""

    def __init__(self, project: Project, *words: str) -> None:
        self._master, slave = pty.openpty()
        self.process = subprocess.Popen(
            ["setsid", "--ctty", CLUSTER, *words],  # it becomes the controlling one, for Ctrl-C
            cwd=project.directory,
            env={**project.environment(), "TERM": "xterm"},
            stdin=slave,
            stdout=slave,
            stderr=slave,
        )
        os.close(slave)
        self.shown = ""

    def read_until(self, words: str) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while words not in self.shown:
            assert time.monotonic() < deadline, self.shown
            self._read()

    def type(self, words: str) -> None:
        os.write(self._master, words.encode())

    def end(self) -> int:
        """Its exit code, once it has ended by itself."""
        deadline = time.monotonic() + TIMEOUT_S
        while self.process.poll() is None:
            assert time.monotonic() < deadline, self.shown
            self._read()
        self._read()
        return self.process.returncode

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._master)

    def _read(self) -> None:
        if select.select([self._master], [], [], 0.1)[0]:
            try:
                self.shown += os.read(self._master, 65536).decode(errors="replace")
            except OSError:  # its last user is gone
                time.sleep(0.1)


@contextmanager
def terminal(project: Project, *words: str) -> Iterator[Terminal]:
    made = Terminal(project, *words)
    try:
        yield made
    finally:
        made.close()


QUESTION = "[stop/leave/continue]"


def test_ctrl_c_asks_and_each_answer_does_what_it_says(nodes: Nodes) -> None:
    with terminal(nodes, "train", *ONE_WORKER, *python(WAIT)) as screen:
        screen.read_until("] here")
        screen.type("\x03")
        screen.read_until(QUESTION)
        screen.type("continue\n")
        (job,) = re.findall(r"job (\S+): 1 worker", screen.shown)
        until(lambda: sessions(job), "it does not go on")
        assert screen.process.poll() is None
        screen.shown = ""
        screen.type("\x03")
        screen.read_until(QUESTION)
        screen.type("stop\n")
        assert screen.end() == 130
        assert f"job {job} was stopped" in screen.shown
    assert nodes.jobs()[job]["state"] == "stopped"
    gone(job)


@pytest.mark.parametrize("answer", ["leave\n", pytest.param("\x03", marks=pytest.mark.slow)])
def test_ctrl_c_leaves_a_job_running_when_that_is_the_answer(nodes: Nodes, answer: str) -> None:
    with terminal(nodes, "train", *ONE_WORKER, *python(WAIT)) as screen:
        screen.read_until("] here")
        screen.type("\x03")
        screen.read_until(QUESTION)
        screen.type(answer)
        assert screen.end() == 130
        (job,) = re.findall(r"job (\S+) runs on: cluster logs -f", screen.shown)
    assert nodes.jobs()[job]["state"] == "running"


def test_jobs_outlive_their_head_in_s3(nodes: Nodes) -> None:
    path = nodes.directory / "cluster.toml"
    kept = path.read_text()
    (nodes.directory / "any-object").write_text("x")
    nodes.run("data", "put", "--create-bucket", "any-object", "s3://cluster-jobs/any-object")
    nodes.write(re.sub(r"^# results = .*$", 'results = "s3://cluster-jobs/results/"', kept, flags=re.MULTILINE))
    try:
        assert path.read_text() != kept
        program = "import os; print(os.environ['CLUSTER_OUTPUT_URL'])"
        done = nodes.run("train", "--name", "kept", *ONE_WORKER, *python(program))
        job = nodes.job_named("kept")["id"]
        assert done.stdout.endswith(f"] s3://cluster-jobs/results/{job}/\n")
        supervisors = hosts_of(nodes)["node-0"].programs
        until(lambda: not supervisors("supervise"), "it copies for ever")
        shutil.rmtree(nodes.folder / job)
        (found,) = [one for one in json.loads(nodes.run("jobs", "--json").stdout) if one["id"] == job]
        assert (found["source"], found["state"]) == ("s3", "done")
        assert nodes.run("logs", "-f", "kept").stdout == done.stdout
    finally:
        nodes.write(kept)
