"""role.py: processes, output, ports and environments."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from msgspec import convert

from bootstrap.ssh.execute import PROGRAM
from bootstrap.ssh.node_program import LOADER, read_modules
from node import job_folder, wire
from node.agent import environment, role
from node.programs import program_words
from node.setup import process_tree, setup_env
from node.wire import RoleOrder
from train.job.plan import new_job_id


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def run_role(
    order: dict[str, Any], *, hang_up: bool = False, hang_up_after: str | None = None, down: bytes = b""
) -> tuple[int, list[dict[str, Any]]]:
    """Runs role.py as ssh does, with the order on stdin and messages on stdout; returns the exit code and messages.

    down: sent after the start. hang_up: close the connection then. hang_up_after: close it after a message that has
    this key.
    """
    ours, theirs = socket.socketpair()
    words = program_words("role", python=sys.executable)
    with subprocess.Popen(words, stdin=theirs.fileno(), stdout=subprocess.PIPE, text=True) as role:
        theirs.close()
        ours.sendall(wire.encode(order))
        messages = [json.loads(role.stdout.readline())]
        ours.sendall(down)
        if hang_up:
            ours.close()
        for line in role.stdout:
            message = json.loads(line)
            messages += [] if "alive" in message else [message]
            if hang_up_after in message:
                ours.close()
        code = role.wait(timeout=20)
    ours.close()
    return code, messages


def order(*words: str, **more: Any) -> dict[str, Any]:
    name = new_job_id()
    job: dict[str, Any] = {"job": name, "role": "worker", "host": "node-0", "address": None, "launched": {}}
    job |= {"commands": [list(words)], "env": {"X": "it's"}, "open_files": "auto", "p3": False}
    return {**job, "cwd": job_folder.path(name, "work"), "setup": None, "silence_timeout_s": 15, **more}


def test_what_a_process_announces_is_short() -> None:
    """mpirun would mix longer lines of the processes on a node."""
    needed = {"DMLC_ROLE": "worker", "DMLC_PS_ROOT_PORT": "9091", "OMPI_COMM_WORLD_RANK": "3", "RANK": "1"}
    others = {"PMIX_SERVER_URI2": "x" * 3000, "OMPI_ARGV": "y", "OPAL_PREFIX": "/e"}
    assert role.select_identity(needed | others) == needed


def exited(code: int, number: int | None = None, *, at: int = 0, ended: bool = False) -> dict[str, Any]:
    """A role's last message, without defaults."""
    more = {"signal": number, "ended": ended, "at": at}
    return {"exit": code, **{key: value for key, value in more.items() if value}}


@pytest.mark.parametrize(
    ("commands", "messages"),
    [
        (['echo "$X"; echo more >&2; exit 5'], [{"line": "it's"}, {"line": "more"}, exited(5)]),
        (["kill -9 $$"], [exited(137, 9)]),
        (["true", "false", "echo never"], [exited(1, at=1)]),
        (["exec >&- 2>&-; exit 3"], [exited(3)]),  # closes its output first
    ],
)
def test_a_role_reports_start_lines_and_exit(commands: list[str], messages: list[dict[str, Any]]) -> None:
    code, (first, *rest) = run_role(order(commands=[["/bin/sh", "-c", command] for command in commands]))
    assert code == messages[-1]["exit"]
    assert "started" in first
    assert [message for message in rest if "started" not in message] == messages


@pytest.mark.parametrize("subfolder", ["", "my/deep"])
def test_a_role_creates_the_folder_where_it_runs(home: Path, subfolder: str) -> None:
    """[train] sync_dst_dir and cwd, without files of the user's that contain them."""
    _, (_, *rest) = run_role(order("pwd", cwd=str(home / "job"), subfolder=subfolder))
    assert [message["line"] for message in rest if "line" in message] == [str(home / "job" / subfolder)]


@pytest.mark.parametrize("ends", ["hang up", "end"])
def test_a_role_ends_all_descendants_of_its_process(ends: str) -> None:
    wanted = order("/bin/sh", "-c", "setsid env -i sleep 600 & (trap '' TERM; sleep 600) & sleep 600")
    code, messages = run_role(wanted, hang_up=ends != "end", down=wire.encode({"end": True}) if ends == "end" else b"")
    assert code == 143
    assert messages[-1] == exited(143, 15, ended=True)
    assert process_tree.find(wanted["job"]) == []


def test_a_role_without_its_other_side_ends_the_job_on_this_host() -> None:
    wanted = order("sleep", "600")
    other = process_tree.start(["sleep", "600"], {**os.environ, process_tree.JOB_VARIABLE: wanted["job"]}, "/")
    run_role(wanted, hang_up=True)
    # The other process is spared for one of the two seconds before SIGKILL.
    assert -other.wait(timeout=20) in (signal.SIGTERM, signal.SIGKILL)
    other.stdout.close()


def test_silence_after_keep_alives_ends_the_job() -> None:
    alive = wire.encode({"alive": True})
    _, messages = run_role(order("sleep", "600", silence_timeout_s=0.3), down=alive)
    assert messages[-1]["ended"]


def test_a_process_without_output_is_ended_when_the_other_side_hangs_up() -> None:
    wanted = order("/bin/sh", "-c", "exec >&- 2>&-; sleep 600")
    _, messages = run_role(wanted, hang_up=True)
    assert messages[-1]["ended"]
    assert process_tree.find(wanted["job"]) == []


def test_a_role_ends_a_daemon_that_still_prints() -> None:
    wanted = order("/bin/sh", "-c", "setsid sh -c 'while :; do echo more; sleep 0.01; done' & sleep 0.1; exit 0")
    code, messages = run_role(wanted)
    assert (code, messages[-1]) == (0, exited(0))
    assert process_tree.find(wanted["job"]) == []


def test_a_slow_reader_gets_all_output() -> None:
    wanted = order("/bin/sh", "-c", "i=0; while [ $i -lt 3000 ]; do echo $i; i=$((i+1)); done; seq 3000 40000")
    ours, theirs = socket.socketpair()
    command = program_words("role", python=sys.executable)
    with subprocess.Popen(command, stdin=theirs.fileno(), stdout=subprocess.PIPE, text=True) as role:
        ours.sendall(wire.encode(wanted))
        time.sleep(2.5)  # longer than the role waits for a pipe that does not end
        lines = [message["line"] for line in role.stdout if "line" in (message := json.loads(line))]
    assert lines == [str(number) for number in (*range(3000), *range(3000, 40001))]
    ours.close()
    theirs.close()


def test_a_command_that_cannot_start_is_an_error() -> None:
    code, messages = run_role(order("/bin/echo", "a\0b"))
    assert code == 127
    assert "null byte" in messages[0]["line"]
    assert messages[-1]["why"] == messages[0]["line"]


def test_a_blocked_port_is_an_error() -> None:
    launched = {"DMLC_ROLE": "worker", "DMLC_PS_ROOT_URI": "unknown.invalid", "DMLC_PS_ROOT_PORT": "9091"}
    code, messages = run_role(order("true", launched=launched))
    assert code == 1
    assert "the scheduler's port 9091 on unknown.invalid cannot be reached from here" in messages[0]["line"]


def test_a_role_tries_ports_on_request() -> None:
    with socket.create_server(("127.0.0.1", 0)) as there:
        places = [["127.0.0.1", there.getsockname()[1]], ["unknown.invalid", 1]]
        asked = wire.encode({"reach": places})
        _, messages = run_role(order("sleep", "60"), down=asked, hang_up_after="blocked")
    assert {"blocked": ["unknown.invalid:1"]} in messages


def test_a_role_does_not_pass_on_its_own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in set(os.environ) & set(setup_env.of_login(os.environ)) - {"PATH", "HOME", "USER", "LANG"}:
        monkeypatch.delenv(name)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    code, messages = run_role(order("/bin/sh", "-c", "env"))
    names = {message["line"].partition("=")[0] for message in messages if "line" in message}
    ours = {"CLUSTER_JOB_ID", "CLUSTER_HOST", "CLUSTER_OUTPUT_DIR", "CLUSTER_NOTICE_FILE"}
    assert code == 0
    assert names <= {"HOME", "USER", "LOGNAME", "SHELL", "PATH", "LANG", "TZ", "TMPDIR", "X", "PWD", *ours}
    assert names >= ours


def test_the_open_file_limit() -> None:
    _, messages = run_role(order("/bin/sh", "-c", "ulimit -Sn; ulimit -Hn"))
    soft, hard = (message["line"] for message in messages if "line" in message)
    assert soft == hard or int(soft) == environment.MOST_OPEN_FILES
    _, messages = run_role(order("/bin/sh", "-c", "ulimit -Sn", open_files=99))
    assert {"line": "99"} in messages
    _, messages = run_role(order("/bin/sh", "-c", "ulimit -Sn", open_files=10**9))
    if hard != "unlimited":
        assert {"line": f"open_files = 1000000000: the maximum on this host is {hard}"} in messages


def made_environment(**more: Any) -> dict[str, str]:
    launched = {"DMLC_ROLE": "worker", "DMLC_NODE_HOST": "127.0.0.1"}
    made: dict[str, str] = environment.make(
        convert(order("true", **{"launched": launched, "address": "127.0.0.1", **more}), RoleOrder)
    )
    return made


@pytest.mark.parametrize("own", [{}, {"AWS_CA_BUNDLE": "/etc/mine.pem"}])
def test_the_certificates_of_a_private_s3(own: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """botocore reads them from a file; a path of [train] env comes first."""
    monkeypatch.setenv("HOME", str(tmp_path))
    made = made_environment(env=own, authorities="-----BEGIN")
    assert "AWS_CA_BUNDLE" not in made_environment()
    if own:
        assert made["AWS_CA_BUNDLE"] == own["AWS_CA_BUNDLE"]
    else:
        assert Path(made["AWS_CA_BUNDLE"]).read_text() == "-----BEGIN"


LOGIN = {
    "https_proxy": "http://p:3128",
    "NO_PROXY": "corp.example, localhost",
    "LC_TIME": "de_DE.UTF-8",
    "SSL_CERT_FILE": "/etc/corp.pem",
    "LICENSE_SERVER": "27000@corp",
    "OMPI_MCA_x": "1",
}
FILE = '# /etc/environment\nPATH="/usr/bin"\nexport LICENSE_SERVER=27000@corp\nUNUSED=1\n'


def test_variables_of_a_login_in_a_job(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A job keeps a login's proxies, locale and certificates, and what /etc/environment sets for every login."""
    file = tmp_path / "environment"
    file.write_text(FILE)
    assert LOGIN.keys() - setup_env.of_login(LOGIN, str(file)).keys() == {"OMPI_MCA_x"}
    for name, value in LOGIN.items():
        monkeypatch.setenv(name, value)
    on_host = made_environment()
    assert on_host["LC_TIME"] == "de_DE.UTF-8"
    assert on_host["SSL_CERT_FILE"] == "/etc/corp.pem"
    container = {"engine": ["podman"], "image": "sha256:1", "path": "/bin", "has_environment": False}
    for made in (on_host, made_environment(container=container), exec_environment()):
        assert made["https_proxy"] == "http://p:3128"
        assert made["no_proxy"] == made["NO_PROXY"] == "corp.example,localhost,127.0.0.1,169.254.169.254"


def exec_environment() -> dict[str, str]:
    """The environment of a command of `cluster exec`."""
    words = [sys.executable, "-c", LOADER]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as program:
        program.stdin.write(read_modules(PROGRAM) + b'{"words": ["sh", "-c", "echo; env"]}\n')
        program.stdin.flush()
        said = program.stdout.read()
    return dict(line.split("=", 1) for line in said.decode("utf-8", "replace").splitlines() if "=" in line)


def test_the_variables_for_ps_lite_unless_the_user_sets_them() -> None:
    env = made_environment()
    assert (env["DMLC_NODE_HOST"], env["DMLC_INTERFACE"], env["PS_VERBOSE"]) == ("127.0.0.1", "lo", "1")
    env = made_environment(env={"DMLC_INTERFACE": "eth7", "PS_VERBOSE": "0"})
    assert ("DMLC_NODE_HOST" in env, env["DMLC_INTERFACE"], env["PS_VERBOSE"]) == (False, "eth7", "0")
    assert "PS_VERBOSE" not in made_environment(launched={"DMLC_ROLE": "scheduler"}, role="scheduler")
    assert "PS_VERBOSE" not in made_environment(launched={})
    assert made_environment(p3=True)["DMLC_PS_VAN_TYPE"] == "p3"
    assert made_environment(p3=True, env={"DMLC_PS_VAN_TYPE": "zmq"})["DMLC_PS_VAN_TYPE"] == "zmq"
