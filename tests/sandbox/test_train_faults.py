"""What goes wrong in a job ends it: everywhere, with the right exit code and the name of what failed."""

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from project import Project, processes_of

pytestmark = pytest.mark.sandbox

END_S = 10.0
ONE_WORKER = ("--kv-store", "local", "-n", "1")
# Joins a distributed job, says so, and would then sleep for longer than any test lasts.
PROGRAM = """
import mxnet as mx, time
kv = mx.kv.create("dist_sync")
print("rank", kv.rank, flush=True)
time.sleep(600)
"""


@pytest.fixture(autouse=True)
def nothing_runs_after_a_test(two_nodes: Project) -> Iterator[None]:
    yield
    if processes_of("CLUSTER_JOB_ID"):  # on these nodes or on others' beside them
        two_nodes.run("stop")


@contextmanager
def training(project: Project) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A job whose two workers have joined, and its id."""
    with project.running("train", "--", "python", "-c", PROGRAM) as process:
        assert process.stdout is not None
        joined = 0
        while joined < 2:
            line = process.stdout.readline()
            assert line, project.messages.read_text()
            joined += re.match(r"\[worker . node-\d\] rank", line) is not None
        (job,) = re.findall(r"^job (\S+): 2 workers", project.messages.read_text(), re.MULTILINE)
        yield process, job


def ends(project: Project, process: subprocess.Popen[str], job: str) -> tuple[int, str]:
    """Wait for the command's end and that of every process of its job; its exit code and messages."""
    process.communicate(timeout=END_S)
    said = project.messages.read_text()
    assert "Traceback" not in said
    gone(job)
    return process.returncode, said


def gone(job: str) -> None:
    deadline = time.monotonic() + END_S
    while (left := processes_of("CLUSTER_JOB_ID", job)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not left


def role_process(job: str, role: str) -> int:
    """The training process of one role: the one whose parent is role.py."""
    for pid, env in processes_of("CLUSTER_JOB_ID", job).items():
        if env.get("DMLC_ROLE") == role and command_line(pid)[0] == "python":
            return pid
    raise AssertionError(role)


def command_line(pid: int) -> list[str]:
    with open(f"/proc/{pid}/cmdline", "rb") as stream:
        return stream.read().decode().split("\0")


def node_program(name: str, *, within: Project) -> list[int]:
    """Pids of one of our node-side programs on the project's nodes, whose namespaces tell them from others' nodes."""
    status = json.loads(within.run("sandbox", "status", "--json").stdout)
    nodes = {os.readlink(f"/proc/{host['pid']}/ns/pid") for host in status["hosts"]}
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                words = command_line(int(entry))
                namespace = os.readlink(f"/proc/{entry}/ns/pid")
            except OSError:
                continue
            if namespace in nodes and any(re.fullmatch(rf".*/tree/[0-9a-f]+/node/{name}", word) for word in words[:4]):
                found.append(int(entry))
    return found


@pytest.mark.parametrize("role", ["worker", "server", "scheduler"])
def test_a_killed_process_ends_the_job_everywhere(two_nodes: Project, role: str) -> None:
    with training(two_nodes) as (process, job):
        os.kill(role_process(job, role), signal.SIGKILL)
        code, said = ends(two_nodes, process, job)
    assert code == 128 + signal.SIGKILL
    assert re.search(rf"{role}( \d)? on node-[01] \(process \d+\) was killed by signal 9", said)


@pytest.mark.parametrize("program", ["supervise.py", "launch.py", "role.py", "ssh_proxy.py"])
def test_a_job_ends_with_any_of_the_programs_that_run_it(two_nodes: Project, program: str) -> None:
    with training(two_nodes) as (process, job):
        os.kill(node_program(program, within=two_nodes)[-1], signal.SIGKILL)
        code, said = ends(two_nodes, process, job)
    assert code not in {0, 2}
    assert "node-" in said
    assert "cluster" in said or "job" in said


def test_ctrl_c_comes_through_a_flood_of_output(two_nodes: Project) -> None:
    with two_nodes.running("train", *ONE_WORKER, "--", "yes") as process:
        assert process.stdout is not None
        for _ in range(1000):
            assert process.stdout.readline() == "[worker 0 node-0] y\n", two_nodes.messages.read_text()
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=END_S)
    said = two_nodes.messages.read_text()
    assert process.returncode == 130
    (job,) = re.findall(r"^job (\S+) runs on", said, re.MULTILINE)
    two_nodes.run("stop", job)
    gone(job)


def test_a_local_kv_store_is_one_worker_on_the_head_and_nothing_else(two_nodes: Project) -> None:
    program = (
        "import os, sys, mxnet as mx\n"
        "print(mx.kv.create(os.environ['CLUSTER_KV_STORE']).num_workers, 'DMLC_ROLE' in os.environ)\n"
        "sys.exit(5)"
    )
    done = two_nodes.run("train", *ONE_WORKER, "--", "python", "-c", program, code=5)
    assert done.stdout == "[worker 0 node-0] 1 False\n"
    assert "1 worker, 0 servers" in done.stderr


def test_the_command_lines_environment_goes_over_the_files(two_nodes: Project) -> None:
    configured = (two_nodes.directory / "cluster.toml").read_text()
    other = two_nodes.directory / "other.toml"
    other.write_text(configured.replace("[train]", '[train]\nenv = { A = "file", B = "file" }'))
    words = (*ONE_WORKER, "--env", "A=line", "--", "sh", "-c", "echo $A $B")
    assert two_nodes.run("-c", "other.toml", "train", *words).stdout == "[worker 0 node-0] line file\n"


def test_the_exit_code_is_that_of_the_process_that_failed(two_nodes: Project) -> None:
    program = "import os, sys, time; sys.exit(7) if os.environ['DMLC_ROLE'] == 'worker' else time.sleep(600)"
    done = two_nodes.run("train", "--", "python", "-c", program, code=7)
    assert re.search(r"worker( \d)? on node-[01] \(process \d+\) ended with exit code 7", done.stderr)


def test_a_command_that_does_not_exist_is_named(two_nodes: Project) -> None:
    done = two_nodes.run("train", "--", "no-such-program", code=127)
    assert "cannot start 'no-such-program'" in done.stdout


def test_what_a_process_leaves_behind_is_ended(two_nodes: Project) -> None:
    """A child in a session of its own, with the pipe still open, is not waited for and does not survive."""
    program = (
        "import os, subprocess, sys; "
        "subprocess.Popen(['sleep', '600'], start_new_session=True) if os.environ['DMLC_ROLE'] == 'worker' else None; "
        "import mxnet as mx; kv = mx.kv.create('dist_sync'); print('done', kv.rank)"
    )
    done = two_nodes.run("train", "--", "python", "-c", program)
    assert len(re.findall(r"^\[worker \d node-\d\] done", done.stdout, re.MULTILINE)) == 2
    (job,) = set(re.findall(r"job ([0-9a-f-]+): done", done.stderr))
    assert not processes_of("CLUSTER_JOB_ID", job)


def test_words_reach_the_command_as_they_are(two_nodes: Project) -> None:
    words = ["it's", 'a "quote"', "$(reboot)", "`id`", "a\nb", "", "*", "--kv-store", "ünïcode"]
    program = (
        "import os, sys\n"
        "if os.environ['DMLC_ROLE'] == 'worker': print(ascii(sys.argv[1:]))\n"
        "import mxnet as mx\n"
        "mx.kv.create('dist_sync')"
    )
    done = two_nodes.run("train", "--", "python", "-c", program, *words)
    shown = re.findall(r"^\[worker \S node-\d\] (.*)$", done.stdout, re.MULTILINE)
    assert shown.count(f"{words!a}") == 2


def test_no_secret_stands_where_others_can_read_it(two_nodes: Project) -> None:
    """The job's credentials are in its processes' environment, and on no command line, disk or log."""
    with training(two_nodes) as (process, job):
        env = next(env for env in processes_of("CLUSTER_JOB_ID", job).values() if "AWS_SECRET_ACCESS_KEY" in env)
        secrets = [env["AWS_SECRET_ACCESS_KEY"], env["AWS_SESSION_TOKEN"]]
        lines = [words for pid in all_pids() for words in [read(f"/proc/{pid}/cmdline")]]
        scheduler = processes_of("CLUSTER_JOB_ID", job)[role_process(job, "scheduler")]
        roots = {f"/proc/{pid}/root" for pid in processes_of("CLUSTER_JOB_ID", job)}
        on_disk = [
            path
            for root in roots
            for folder in ("home", "tmp", "var/log", "run")
            for path in files_below(f"{root}/{folder}")
            if any(secret.encode() in read(path) for secret in secrets)
        ]
        two_nodes.run("stop", job)
        _, said = ends(two_nodes, process, job)
    assert not [line for line in lines if any(secret.encode() in line for secret in secrets)]
    assert not on_disk
    assert "AWS_SECRET_ACCESS_KEY" not in scheduler
    assert not any(secret in said for secret in secrets)


def all_pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def read(path: str) -> bytes:
    try:
        with open(path, "rb") as stream:
            return stream.read()
    except OSError:
        return b""


def files_below(folder: str) -> Iterator[str]:
    for place, _, names in os.walk(folder):
        if "/env/" in place or "/files/" in place:  # wheels and what is unpacked from them
            continue
        for name in names:
            path = os.path.join(place, name)
            if os.path.isfile(path) and not os.path.islink(path):
                yield path
