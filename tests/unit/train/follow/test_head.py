"""Answers of the head that never come, never end, or are invalid."""

import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from bootstrap.runtime.code import runtime_digest
from bootstrap.ssh.node_program import AnswerError, runtime_command
from foundation.errors import ConnectError, NodeCommandError
from job_channels import ALIVE, Channel, FakeHead, channel, make_order
from train.follow.run import submit


def lines(made: Channel) -> list[bytes]:
    return list(FakeHead(lambda _: made).make().open("list").lines())


def test_lines_are_whole_and_without_a_login_shells_output() -> None:
    made = channel(b"Welcome!\n{not json}\n", b'{"a"', None, b":1}\nno json, but ", b'of the log\n{"b":2}\nrest')
    assert lines(made) == [b'{"a":1}', b"no json, but of the log", b'{"b":2}']


def test_a_killed_program_counts_as_a_broken_connection() -> None:
    with pytest.raises(ConnectError, match="node-0"):
        lines(channel(b'{"a":1}\n', exit_code=137, stderr=b"Killed\n"))


def test_a_failure_of_the_head_shows_no_traceback() -> None:
    with pytest.raises(NodeCommandError, match=r"exit code 1 from: jobs\.py\n  \| KeyError: 'state'$"):
        lines(channel(exit_code=1, stderr=b"Traceback (most recent call last):\n  at x\nKeyError: 'state'\n"))


def test_silence_counts_as_a_broken_connection(clock: None) -> None:
    with pytest.raises(ConnectError, match="no message for 15 s"):
        lines(channel(b'{"a":1}\n', *[None] * 50))
    with pytest.raises(ConnectError, match="no message for"):
        ask(b"banner\n", *[None] * 1000)


@pytest.mark.parametrize(
    ("runtimes", "runs"),
    [
        ({}, ""),
        ({"own": "complete", "newer": "complete"}, "own"),
        ({"older": "complete", "newer": "complete"}, "newer"),
        ({"older": "complete", "own": "half made"}, "older"),
        ({"older": "complete", "own.77.old": "complete", "own.77.new": "complete"}, "older"),
        ({"own": "complete, without its Python"}, ""),
    ],
)
def test_a_runtime_that_an_interrupted_command_left_does_not_count(
    tmp_path: Path, runtimes: dict[str, str], runs: str
) -> None:
    for number, (name, state) in enumerate(runtimes.items()):
        folder = tmp_path / ".cluster" / "runtime" / name.replace("own", runtime_digest())
        (folder / "bin").mkdir(parents=True)
        if state.startswith("complete"):
            (folder / ".complete").touch()
        if not state.endswith("without its Python"):
            (folder / "bin" / "python").write_text(f"#!/bin/sh\necho {name}\n")
            (folder / "bin" / "python").chmod(0o755)
        if number:
            time.sleep(0.02)  # ls -c sorts by the time of the last change
    found = runtime_command("jobs", "list", must_exist=False)
    env = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(found.here(), env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, runs, "")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that advances by half a second each time it is read."""
    began = time.monotonic()
    looks = iter(range(10**9))
    monkeypatch.setattr(time, "monotonic", lambda: began + 0.5 * next(looks))


def ask(*pieces: bytes | None, **how: Any) -> bytes:
    return FakeHead(lambda _: channel(*pieces, **how)).make().ask("list")


def test_a_job_without_an_answer_is_not_submitted_again(clock: None) -> None:
    fake = FakeHead(lambda _: channel(*[ALIVE] * 1000))
    with pytest.raises(AnswerError, match="job j1 may or may not have started"):
        submit(fake.make(), make_order(), follow=True)
    assert fake.asked == [["submit", "--follow"]]
