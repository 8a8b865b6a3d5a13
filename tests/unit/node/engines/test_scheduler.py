"""The common parts of all batch schedulers: the script that holds the nodes, and durations."""

import os
import subprocess
from contextlib import nullcontext
from pathlib import Path

import pytest

from node.engines.scheduler import Response, parse_clock, render_clock, render_holder
from node.engines.schedulers import SCHEDULERS
from node.setup.process_tree import JOB_VARIABLE

JOB = "20260101-000000-abcdef"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("UNLIMITED", None), ("", None), ("90", 90), ("10:00", 600), ("00:01:30", 90), ("2-00:00:00", 172800)],
)
def test_a_schedulers_length_of_time(text: str, seconds: int | None) -> None:
    assert parse_clock(text) == seconds
    with pytest.raises(ValueError, match="'soon' is not a length of time"):
        parse_clock("soon")


def test_a_length_of_time_for_a_scheduler() -> None:
    assert [render_clock(seconds) for seconds in (60, 3599, 100 * 3600)] == ["0:01:00", "0:59:59", "100:00:00"]


def test_the_script_holds_nodes_while_the_job_has_a_process(tmp_path: Path) -> None:
    """In place of waiting, each `sleep` counts, and one of them ends the process."""
    job, calls = f"{JOB}-{os.getpid()}", tmp_path / "calls"
    with subprocess.Popen(["/bin/sleep", "600"], env={JOB_VARIABLE: job}) as process:
        sleep = f'#!/bin/sh\necho "$@" >>{calls}\n[ $(wc -l <{calls}) -ne 20 ] || kill -9 {process.pid}\n'
        (tmp_path / "sleep").write_text(sleep)
        (tmp_path / "sleep").chmod(0o755)
        env = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
        done = subprocess.run(["/bin/sh", "-c", "\n".join(render_holder(job))], env=env, timeout=60, check=False)
    assert done.returncode == 1
    assert calls.read_text().split()[:31] == ["5"] * 31  # a minute after the last one that it has seen


@pytest.mark.parametrize(
    ("launcher", "text", "number"),
    [
        ("slurm", "12\n", "12"),
        ("slurm", "12;east\n", "12"),
        ("slurm", "12 apples\n", None),
        ("pbs", "17.head.example.org\n", "17.head.example.org"),
        ("sge", "warning: x\n101\n", "101"),
    ],
)
def test_job_numbers(launcher: str, text: str, number: str | None) -> None:
    with nullcontext() if number else pytest.raises(ValueError, match="no job number"):
        assert SCHEDULERS[launcher].parse_job_number(text) == number


@pytest.mark.parametrize(
    ("launcher", "answer", "message"),
    [
        ("slurm", Response("", "error: Unable to contact slurm controller\n", 1), "Unable to contact"),
        ("slurm", Response(""), "exit code 0"),
        ("pbs", Response("", "qstat: cannot connect to server head (errno=111)\n", 2), "cannot connect to server"),
        ("sge", Response("", "error: unable to send message to qmaster using port 6444\n", 1), "unable to send"),
    ],
)
def test_no_answer_is_not_an_end(launcher: str, answer: Response, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SCHEDULERS[launcher].parse_state(answer, "3")
