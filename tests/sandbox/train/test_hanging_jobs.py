"""Jobs that hang silently: the user learns why, and [train] stall_timeout ends them."""

import json
import os
import re
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from job_steps import SLEEPS, Running, Tell, borrowed, check, python, records, running
from project import REPOSITORY, Project
from waits import until

pytestmark = pytest.mark.sandbox

STALL_S = 6.0
"""What stall.toml, a job file, sets as the time without progress after which a job is ended."""
MOST_S = 2 * STALL_S + 20.0
"""Two looks, a try of all ports, and a busy machine."""
TRAINS = """
import mxnet as mx, time
kv = mx.kv.create("dist_sync")
shape = (50, 50)
kv.init("a", mx.nd.zeros(shape))
out = mx.nd.zeros(shape)
print("waits for nobody as rank", kv.rank, flush=True)
for step in range(1000000):
    kv.push("a", mx.nd.ones(shape))
    kv.pull("a", out=out)
    out.wait_to_read()
    if step % 10 == 0:
        kv._barrier()
        print("step", step, flush=True)
    time.sleep(0.02)
"""
UNEVEN = """
import mxnet as mx
kv = mx.kv.create("dist_sync")
kv.init("a", mx.nd.zeros((5, 5)))
out = mx.nd.zeros((5, 5))
print("waits for nobody as rank", kv.rank, flush=True)
for step in range(3 + 3 * kv.rank):
    kv.push("a", mx.nd.ones((5, 5)))
    kv.pull("a", out=out)
    out.wait_to_read()
"""
SILENT = """
import os, time, mxnet as mx
kv = mx.kv.create("dist_sync")
print("waits for nobody as rank", kv.rank, flush=True)
until = time.monotonic() + 12
while time.monotonic() < until:  # evaluates
    sum(range(10000))
until = time.monotonic() + 12
with open(os.environ["CLUSTER_OUTPUT_DIR"] + "/checkpoint", "wb") as stream:
    while time.monotonic() < until:  # writes a checkpoint, slowly
        stream.write(bytes(1 << 16))
        time.sleep(0.1)
print("has written", flush=True)
kv._barrier()
"""


@contextmanager
def limited(project: Project) -> Iterator[Project]:
    """The cluster for a test, with stall.toml."""
    with borrowed(project):
        (project.directory / "stall.toml").write_text(f'stall_timeout = "{STALL_S:.0f}s"\n')
        yield project


@pytest.fixture
def nodes(two_nodes: Project) -> Iterator[Project]:
    with limited(two_nodes) as project:
        yield project


def stop(job: Running, pid: int) -> int:
    """Stops a process of a job by SIGSTOP; returns its pid on its own host."""
    os.kill(pid, signal.SIGSTOP)
    job.struck_at = time.monotonic()
    with open(f"/proc/{pid}/status") as stream:
        (numbers,) = [line for line in stream if line.startswith("NSpid:")]
    return int(numbers.split()[-1])


@pytest.mark.parametrize(
    "role", ["worker", *(pytest.param(role, marks=pytest.mark.slow) for role in ("scheduler", "server"))]
)
def test_a_stopped_process_is_named_and_the_job_is_ended(nodes: Project, record_property: Tell, role: str) -> None:
    """A worker needs no MXNet for it."""
    host, options, command, program = "node-0", ("-s", "1"), python(TRAINS), "python"
    if role == "worker":
        host, options, command, program = "node-1", ("--launcher", "env"), SLEEPS, "sh"
    with running(nodes, "--job", "stall.toml", *options, command=command, waiting=2) as job:
        pid = stop(job, job.training_process(role, host, program=program))
        who = rf"{role}( \d)? on {host} \(process {pid}\) is stopped, as by SIGSTOP"
        found = rf"{who}; `cluster exec --node {host} -- kill -CONT {pid}` resumes it"
        words = rf"failed: no worker made progress for 6 s \(stall_timeout\): {found}"
        check(f"{role} stopped", job, (124, words), record_property, silence_s=MOST_S)
    told = [line for line in job.shown if re.search(rf"^\[supervisor node-0\] .*{found}$", line)]
    assert told


def test_a_worker_with_fewer_batches_is_named(nodes: Project, record_property: Tell) -> None:
    """It has ended its script, and waits for the other at the end of the program."""
    with running(nodes, "--job", "stall.toml", "-s", "1", command=python(UNEVEN), waiting=2) as job:
        job.struck_at = time.monotonic()
        ended = r"worker 0 on node-\d is at the end of the program \(KVStore.__del__\)"
        waits = r"worker 1 on node-\d waits at <string>:10 \(NDArray.wait_to_read\)"
        words = rf"no worker made progress for 6 s \(stall_timeout\): {ended}; {waits}; the kv-store waits for what "
        words += r"worker 0 on node-\d pushes"
        check("different numbers of batches", job, (124, words), record_property, silence_s=MOST_S)


@pytest.mark.slow
def test_a_job_that_continues_is_told_to_do_so(nodes: Project) -> None:
    """The user learns why it hangs, here and by the other commands. They resume the process, and training continues."""
    (nodes.directory / "stall.toml").write_text('stall_timeout = "60s"\n')
    with running(nodes, "--job", "stall.toml", command=python(TRAINS), waiting=2) as job:
        assert job.process.stdout is not None
        pid = job.training_process("worker", "node-1")
        on_host = stop(job, pid)
        line = ""
        while "is stopped" not in line:
            line = job.process.stdout.readline()
            assert line, nodes.messages.read_text()

        def said() -> str:
            (record,) = [one for one in records(nodes) if one["id"] == job.id]
            return record["stall"]["text"] if record["stall"] else ""

        until(said, "the record does not say why the job hangs")
        assert re.search(rf"worker \d on node-1 \(process {on_host}\) is stopped, as by SIGSTOP; ", said())
        assert "is stopped" in nodes.run("status").stdout
        (shown,) = [one for one in json.loads(nodes.run("jobs", "--json").stdout) if one["id"] == job.id]
        assert shown["stall"]["text"] == said()
        assert shown["state"] == "running"
        command = re.findall(r"`cluster (.*)`", line)[0].split()
        nodes.run(*command)
        while "the job makes progress again" not in line:
            line = job.process.stdout.readline()
            assert line, nodes.messages.read_text()
        until(lambda: not said(), "the record says that the job hangs")
        nodes.run("stop", job.id)


@pytest.mark.slow
def test_a_long_evaluation_and_a_checkpoint_raise_no_alarm(nodes: Project) -> None:
    """Each takes twice as long as a job may go without progress."""
    done = nodes.run("train", "--job", "stall.toml", *python(SILENT))
    assert done.stdout.count("has written") == 2
    assert "no worker" not in done.stdout + done.stderr
    assert "stopped" not in done.stdout


@pytest.mark.slow
def test_two_nodes_that_lose_each_other_while_both_reach_the_head(project: Project, record_property: Tell) -> None:
    project.write((REPOSITORY / "cluster.toml").read_text().replace("nodes = 2", "nodes = 3"))
    project.run("up", "--yes")
    with limited(project), running(project, "--job", "stall.toml", command=python(TRAINS), waiting=3) as job:
        ends = [f"{name}={job.hosts[node].instance_id}" for name, node in (("a", "node-1"), ("b", "node-2"))]
        job.fault("partition", *ends)
        one, other = (re.escape(job.hosts[name].address) for name in ("node-1", "node-2"))
        found = rf"node-1 cannot reach node-2 \({other}\) on TCP ports \d+, \d+; "
        found += rf"node-2 cannot reach node-1 \({one}\) on TCP ports \d+, \d+; `cluster verify` tries their ports"
        words = rf"failed: no worker made progress for 6 s \(stall_timeout\): {found}"
        check("two nodes lost each other", job, (124, words), record_property, silence_s=MOST_S)
