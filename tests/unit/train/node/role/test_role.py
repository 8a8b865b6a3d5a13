"""role.py by itself: its ways with processes, output, ports and environments."""

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

from bootstrap.node import process_tree
from train.job.plan import new_job_id
from train.node import wire
from train.node.programs import program_words
from train.node.role import environment
from train.node.wire import RoleOrder


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def run_role(
    order: dict[str, Any],
    *,
    hang_up: bool = False,
    hang_up_after: str | None = None,
    down: bytes = b"",
    python: str = sys.executable,
    env: Any = None,
) -> tuple[int, list[dict[str, Any]]]:
    """role.py as ssh runs it: the order on stdin, framed messages on stdout. down: what is said once it has started.

    hang_up: then, at once; hang_up_after: when there has come a message with this key.
    """
    ours, theirs = socket.socketpair()
    with subprocess.Popen(
        program_words("role", python=python), stdin=theirs, stdout=subprocess.PIPE, text=True, env=env
    ) as role:
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
    job = {"job": new_job_id(), "role": "worker", "host": "node-0", "address": None, "launched": {}, "setup": None}
    job |= {"commands": [list(words)], "env": {"X": "it's"}, "cwd": "/", "open_files": "auto", "p3": False}
    return {**job, "silence_timeout_s": 15, **more}


def exited(code: int, number: int | None = None, *, at: int = 0, ended: bool = False) -> dict[str, Any]:
    """What its program tells last: what is as usual is left out."""
    more = {"signal": number, "ended": ended, "at": at}
    return {"exit": code, **{key: value for key, value in more.items() if value}}


def test_a_role_reports_start_lines_and_exit() -> None:
    code, messages = run_role(order("/bin/sh", "-c", 'echo "$X"; echo more >&2; exit 5'))
    assert code == 5
    assert "started" in messages[0]
    assert messages[1:] == [{"line": "it's"}, {"line": "more"}, exited(5)]


def test_a_role_tells_a_signal_from_an_exit_code() -> None:
    code, messages = run_role(order("/bin/sh", "-c", "kill -9 $$"))
    assert (code, messages[-1]) == (137, exited(137, 9))


def test_a_role_runs_several_commands_until_one_fails() -> None:
    _, messages = run_role(order("true", commands=[["true"], ["false"], ["echo", "never"]]))
    assert messages[-1] == exited(1, at=1)
    assert not [message for message in messages if "line" in message]


@pytest.mark.parametrize("ends", ["hang up", "told"])
def test_a_role_ends_all_that_descends_from_its_process(ends: str) -> None:
    program = "setsid env -i sleep 600 & (trap '' TERM; sleep 600) & sleep 600"
    wanted = order("/bin/sh", "-c", program)
    told = wire.encode({"end": True}) if ends == "told" else b""
    code, messages = run_role(wanted, hang_up=ends != "told", down=told)
    assert code == 143
    assert messages[-1] == exited(143, 15, ended=True)
    assert process_tree.find(wanted["job"]) == []


def test_a_role_that_is_left_alone_ends_everything_of_its_job_here() -> None:
    wanted = order("sleep", "600")
    other = process_tree.start(["sleep", "600"], {**os.environ, process_tree.JOB_VARIABLE: wanted["job"]}, "/")
    run_role(wanted, hang_up=True)
    # Of the two seconds before SIGKILL it is spared for one.
    assert -other.wait(timeout=20) in (signal.SIGTERM, signal.SIGKILL)
    other.stdout.close()


def test_silence_after_signs_of_life_is_the_end_of_the_line() -> None:
    alive = wire.encode({"alive": True})
    _, messages = run_role(order("sleep", "600", silence_timeout_s=0.3), down=alive)
    assert messages[-1]["ended"]


def test_a_role_follows_a_process_that_has_closed_its_output() -> None:
    code, messages = run_role(order("/bin/sh", "-c", "exec >&- 2>&-; exit 3"))
    assert (code, messages[-1]) == (3, exited(3))
    wanted = order("/bin/sh", "-c", "exec >&- 2>&-; sleep 600")
    code, messages = run_role(wanted, hang_up=True)
    assert messages[-1]["ended"]
    assert process_tree.find(wanted["job"]) == []


def test_a_role_ends_a_daemon_that_goes_on_printing() -> None:
    wanted = order("/bin/sh", "-c", "setsid sh -c 'while :; do echo more; sleep 0.01; done' & sleep 0.1; exit 0")
    code, messages = run_role(wanted)
    assert (code, messages[-1]) == (0, exited(0))
    assert process_tree.find(wanted["job"]) == []


def test_a_slow_reader_gets_all_of_the_output() -> None:
    wanted = order("/bin/sh", "-c", "i=0; while [ $i -lt 3000 ]; do echo $i; i=$((i+1)); done; seq 3000 40000")
    ours, theirs = socket.socketpair()
    command = program_words("role", python=sys.executable)
    with subprocess.Popen(command, stdin=theirs, stdout=subprocess.PIPE, text=True) as role:
        ours.sendall(wire.encode(wanted))
        time.sleep(2.5)  # longer than it waits for a pipe that nobody ends
        lines = [message["line"] for line in role.stdout if "line" in (message := json.loads(line))]
    assert lines == [str(number) for number in (*range(3000), *range(3000, 40001))]
    ours.close()
    theirs.close()


def test_a_role_says_what_cannot_be_started() -> None:
    code, messages = run_role(order("/bin/echo", "a\0b"))
    assert code == 127
    assert "null byte" in messages[0]["line"]
    assert messages[-1]["why"] == messages[0]["line"]


def test_a_role_says_which_port_blocks_it() -> None:
    launched = {"DMLC_ROLE": "worker", "DMLC_PS_ROOT_URI": "unknown.invalid", "DMLC_PS_ROOT_PORT": "9091"}
    code, messages = run_role(order("true", launched=launched))
    assert code == 1
    assert "the scheduler's port 9091 on unknown.invalid cannot be reached from here" in messages[0]["line"]


def test_a_role_tries_the_ports_that_it_is_asked_to() -> None:
    with socket.create_server(("127.0.0.1", 0)) as there:
        places = [["127.0.0.1", there.getsockname()[1]], ["unknown.invalid", 1]]
        asked = wire.encode({"reach": places})
        _, messages = run_role(order("sleep", "60"), down=asked, hang_up_after="blocked")
    assert {"blocked": ["unknown.invalid:1"]} in messages


def test_a_role_does_not_pass_on_the_environment_it_was_started_in() -> None:
    code, messages = run_role(order("/bin/sh", "-c", "env"))
    names = {message["line"].partition("=")[0] for message in messages if "line" in message}
    ours = {"CLUSTER_JOB_ID", "CLUSTER_HOST", "CLUSTER_OUTPUT_DIR"}
    assert code == 0
    assert names <= {"HOME", "USER", "LOGNAME", "SHELL", "PATH", "LANG", "TZ", "TMPDIR", "X", "PWD", *ours}
    assert names >= ours


def test_the_limit_of_open_files() -> None:
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


def test_ps_lite_is_told_of_the_interface_unless_the_user_has_another() -> None:
    env = made_environment()
    assert (env["DMLC_NODE_HOST"], env["DMLC_INTERFACE"], env["PS_VERBOSE"]) == ("127.0.0.1", "lo", "1")
    env = made_environment(env={"DMLC_INTERFACE": "eth7", "PS_VERBOSE": "0"})
    assert ("DMLC_NODE_HOST" in env, env["DMLC_INTERFACE"], env["PS_VERBOSE"]) == (False, "eth7", "0")
    assert "PS_VERBOSE" not in made_environment(launched={"DMLC_ROLE": "scheduler"}, role="scheduler")
    assert "PS_VERBOSE" not in made_environment(launched={})
    assert made_environment(p3=True)["DMLC_PS_VAN_TYPE"] == "p3"
    assert made_environment(p3=True, env={"DMLC_PS_VAN_TYPE": "zmq"})["DMLC_PS_VAN_TYPE"] == "zmq"
