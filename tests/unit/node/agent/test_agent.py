"""The node's agent: the processes that it starts, their output, and how it ends them."""

import os
import signal
import socket
import sys
import time
from pathlib import Path

import pytest

from node import job_folder, wire
from node.engines import ENGINES
from node.programs import shim_words
from node.setup import process_tree
from node.staging.outputs import GIVE_UP_S
from node.wire import Announced, Booted, Closed, End, Exited, Ping, Started
from node_agent import NodeAgent, end_from_outside, home, run_agent
from train.job.job_plan import new_job_id
from waits import until

pytestmark = pytest.mark.usefixtures("home")
__all__ = ["home"]

WAITS = "echo $$; exec sleep 600"
STUBBORN = f"trap '' TERM; {WAITS}"
# A process in a session of its own, without the job's environment, whose parent has ended.
STRANGER = f"(env -i setsid sh -c '{WAITS}' &)"

# A process in a session of its own that ignores SIGTERM; its parent prints its pid.
DAEMON = (
    """setsid sh -c 'trap "" TERM; echo $$ >pid; exec sleep 600' & until [ -s pid ]; do sleep 0.05; done; cat pid"""
)


def is_gone(pid: int) -> bool:
    return process_tree.start_time(pid) is None


# -- processes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("commands", "lines", "exited"),
    [
        (['echo "$X"; echo more >&2; exit 5'], ["it's", "more"], Exited(p=0, exit_code=5)),
        (["kill -9 $$"], [], Exited(p=0, exit_code=137, signal=9)),
        (["true", "false", "echo never"], [], Exited(p=0, exit_code=1, at=1)),
        (["exec >&- 2>&-; exit 3"], [], Exited(p=0, exit_code=3)),  # closes its output first
    ],
)
def test_a_process_reports_start_lines_and_exit(commands: list[str], lines: list[str], exited: Exited) -> None:
    with run_agent() as agent:
        agent.start(commands=tuple(("/bin/sh", "-c", command) for command in commands))
        assert agent.read_until(Exited) == exited
    booted, started, *_ = agent.messages
    assert booted == Booted(process_tree.boot())
    assert isinstance(started, Started)
    assert agent.lines() == lines


def test_a_command_that_cannot_start_is_an_error() -> None:
    with run_agent() as agent:
        agent.start("no-such-program")
        exited = agent.read_until(Exited)
    assert exited.exit_code == 127
    assert str(exited.why).startswith("cannot start 'no-such-program': ")
    assert agent.lines() == [exited.why]


def test_a_blocked_port_is_an_error() -> None:
    launched = {"DMLC_ROLE": "worker", "DMLC_PS_ROOT_URI": "unknown.invalid", "DMLC_PS_ROOT_PORT": "9091"}
    with run_agent(train={"launcher": "ssh"}) as agent:
        agent.start("true", launched=launched)
        exited = agent.read_until(Exited)
    assert exited.exit_code == 1
    assert "the scheduler's port 9091 on unknown.invalid cannot be reached from here" in str(exited.why)


def test_the_open_file_limit() -> None:
    lines = []
    for number in ("auto", 256, 10**9):
        with run_agent(train={"open_files": number}) as agent:
            agent.start("/bin/sh", "-c", "ulimit -Sn; ulimit -Hn")
            agent.read_until(Exited)
            lines.append(agent.lines())
    soft, hard = lines[0]
    assert soft == hard or int(soft) == process_tree.MOST_OPEN_FILES
    assert lines[1] == ["256", hard]
    if hard != "unlimited":
        assert lines[2] == [f"open_files = 1000000000: the maximum on this host is {hard}", hard, hard]


# -- output ------------------------------------------------------------------------------------------------------------


def test_a_slow_reader_gets_all_output() -> None:
    with run_agent() as agent:
        agent.start("/bin/sh", "-c", "i=0; while [ $i -lt 3000 ]; do echo $i; i=$((i+1)); done; seq 3000 60000")
        time.sleep(2.5)  # longer than the agent waits for a pipe that does not end
        assert agent.read_until(Exited).exit_code == 0
    assert agent.lines() == [str(number) for number in (*range(3000), *range(3000, 60001))]


# -- its end -----------------------------------------------------------------------------------------------------------


def test_a_command_ends_with_the_processes_that_it_leaves() -> None:
    """In sessions of their own, even those that ignore SIGTERM, and those that still print."""
    with run_agent() as agent:
        prints = "setsid sh -c 'while :; do echo; sleep 0.05; done' &"
        agent.start("/bin/sh", "-c", f"{DAEMON}; {prints} exit 0")
        pid = int(agent.read_line())
        assert agent.read_until(Exited) == Exited(p=0, exit_code=0)
        assert is_gone(pid)
        assert process_tree.find(f"{agent.job}/0", "CLUSTER_PROCESS") == []


def test_its_end_ends_all_processes() -> None:
    """Those of a command with SIGTERM, then SIGKILL, and those without the job's environment."""
    with run_agent() as agent:
        agent.start("/bin/sh", "-c", f"{STRANGER}; {STUBBORN}")
        pids = [int(agent.read_line()), int(agent.read_line())]
        agent.start("/bin/sh", "-c", WAITS, p=1)
        pids.append(int(agent.read_line(1)))
        assert agent.end().left == ()
        assert all(is_gone(pid) for pid in pids)
    exits = {one.p: one for one in agent.messages if isinstance(one, Exited)}
    assert exits[0] == Exited(p=0, exit_code=137, signal=9, ended=True)
    assert exits[1] == Exited(p=1, exit_code=143, signal=15, ended=True)


def test_an_agent_without_its_supervisor_ends_the_job_on_this_host() -> None:
    with run_agent(patience_s=0.6) as agent:
        agent.start("/bin/sh", "-c", f"exec 2>&-; {STRANGER}; {WAITS}")
        pids = [int(agent.read_line()) for _ in range(2)]
        assert agent.process.wait(timeout=30) == 0
        assert all(is_gone(pid) for pid in pids)


def test_a_killed_agent_takes_its_children_along() -> None:
    """Those that are left are found by the job's environment."""
    with run_agent() as agent:
        agent.start("/bin/sh", "-c", f"{DAEMON}; {STUBBORN}")
        daemon, child = (int(agent.read_line()) for _ in range(2))
        agent.process.kill()
        until(lambda: is_gone(child), child)
        assert not is_gone(daemon)
        assert end_from_outside(agent.job) == []
        assert is_gone(daemon)


def test_a_copy_of_the_jobs_files_does_not_delay_its_end() -> None:
    """A stopped job needs none; `cluster stop` waits for 30 s."""
    job = new_job_id()
    os.makedirs(job_folder.path(job))
    Path(job_folder.path(job, "placing-1")).touch()  # another host with this home folder makes the copy
    with run_agent(job=job) as agent:
        agent.start("true")
        assert agent.read_until(Ping).is_copying
        agent.send(End())
        assert agent.has_ping()


def test_a_job_that_is_stopped_while_it_copies_its_files_gives_up_soon() -> None:
    """As after its success, while S3 does not answer: `cluster stop` does not wait for minutes."""
    own = {"CLUSTER_OUTPUT_URL": "s3://bucket/results/j1/", "AWS_ENDPOINT_URL": "http://127.0.0.1:9"}
    env = {**own, "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "S3_REGION": "us-east-1"}
    with run_agent() as agent:
        agent.start("/bin/sh", "-c", "echo model >$CLUSTER_OUTPUT_DIR/model", env=env)
        agent.read_until(Exited)
        agent.send(End())
        assert agent.read_until(Ping).is_copying
        agent.send(End(0.2))
        began = time.monotonic()
        files = agent.read_until(Closed).files
    assert time.monotonic() < began + GIVE_UP_S
    assert (files.count, files.is_left) == (1, True)
    assert agent.lines()[-1].startswith(f"node-0: not copied to {own['CLUSTER_OUTPUT_URL']}output/node-0/: model;")


# -- processes of a launcher -------------------------------------------------------------------------------------------


TORCHRUN = {"launcher": "torchrun"}


def start_launcher(agent: NodeAgent, **env: str) -> int:
    """Starts a launcher of one process, as process 0, with the exit code of its process; returns its shim's pid."""
    shim = " ".join(shim_words(ENGINES["torchrun"].variables, python=sys.executable))
    values = " ".join(f"{name}={value}" for name, value in env.items())
    agent.start("/bin/sh", "-c", f"{values} sh -c 'echo $$; exec {shim}'; exit $?", role="launcher")
    return int(agent.read_line())


def test_the_process_of_a_killed_shim_is_ended() -> None:
    with run_agent(train=TORCHRUN) as agent:
        shim = start_launcher(agent, RANK="0")
        agent.start("/bin/sh", "-c", WAITS, p=1, shim=agent.read_until(Announced).shim)
        pid = int(agent.read_line(1))
        os.kill(shim, signal.SIGKILL)
        assert agent.read_until(Exited, 1) == Exited(p=1, exit_code=143, signal=15, ended=True)
        assert is_gone(pid)


def test_only_the_ranks_own_variables_leave_a_container() -> None:
    """A program in the launcher's container, which reaches the socket, may send any."""
    evil = {"LD_PRELOAD": "/evil.so", "PATH": "/evil", "CLUSTER_DATA_CACHE_DIR": "/evil", "HOME": "/evil"}
    with run_agent(train=TORCHRUN) as agent, socket.socket(socket.AF_UNIX) as shim:
        assert isinstance(agent.read(), Booted)
        shim.connect(agent.socket)
        shim.sendall(wire.encode({**evil, "RANK": "1"}))
        assert agent.read_until(Announced).launched == {"RANK": "1"}
