"""How `cluster` reports an error, and its exit code."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from cluster import main
from foundation.errors import ConfigError, Interrupted
from project import CLUSTER


def ask() -> None:
    click.confirm("Go on?", err=True)


def closes() -> None:
    """Fails at the end of the command, as App can when it closes connections."""
    click.get_current_context().find_root().call_on_close(lambda: fail(EOFError()))


def is_interrupted_again() -> None:
    try:
        fail(Interrupted("cluster up"))
    finally:
        fail(KeyboardInterrupt())


def fail(error: BaseException) -> None:
    raise error


@pytest.mark.parametrize(
    ("does", "code", "message"),
    [
        (lambda: None, 0, ""),
        (ask, 130, "interrupted"),
        (lambda: fail(KeyboardInterrupt()), 130, "interrupted"),
        (lambda: fail(Interrupted("cluster up")), 130, "interrupted\n  try: cluster up"),
        (is_interrupted_again, 130, "interrupted\n  try: cluster up"),
        (lambda: fail(EOFError()), 1, "the connection was lost\n  try: run the same command again"),
        (closes, 1, "the connection was lost\n  try: run the same command again"),
        (lambda: fail(ConfigError("so it is", hint="otherwise")), 2, "so it is\n  try: otherwise"),
        (lambda: fail(click.UsageError("Missing N.")), 2, "missing N\n  try: cluster status --help"),
        (lambda: fail(OSError(28, "No space left on device")), 1, "No space left on device\n  try: free some space; "),
        (lambda: fail(OSError(28, "is full", "a", None, "b")), 1, "b: is full\n  try: free some space there"),
        (lambda: fail(PermissionError(13, "Permission denied", "there")), 1, "there: Permission denied"),
    ],
)
def test_an_error_is_one_line_and_an_exit_code(
    does: Callable[[], None],
    code: int,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(
        main.cli, "resolve_command", lambda _, args: (args[0], click.Command(args[0], callback=does), [])
    )
    monkeypatch.setattr("sys.argv", ["cluster", "status"])
    monkeypatch.setattr("signal.signal", lambda *_: None)  # otherwise it would outlast the test
    with open(os.devnull) as nothing:
        monkeypatch.setattr("sys.stdin", nothing)
        assert main.run() == code
    shown = capsys.readouterr().err.removeprefix("Go on? [y/N]: \n").strip()
    assert shown == (f"error: {message}" if message else "") or (
        message.endswith("; ") and shown.startswith(f"error: {message}")
    )


@pytest.mark.parametrize("words", ["", "data"])
def test_a_group_without_a_command_shows_its_help(words: str, tmp_path: Path) -> None:
    done = subprocess.run([CLUSTER, *words.split()], cwd=tmp_path, check=False, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr.partition("\n")[0]) == (
        2,
        "",
        f"Usage: cluster {words} [OPTIONS] COMMAND [ARGS]...".replace("  ", " "),
    )


def test_a_deleted_folder_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    command = f"rmdir {folder} && exec {CLUSTER} status"
    done = subprocess.run(["sh", "-c", command], cwd=folder, check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr.partition("\n")[0]) == (1, "error: the current folder has been deleted")


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ("-c no.toml status >&- 2>&- <&-", 2, ""),  # like /dev/null
        ("config schema > /dev/full", 1, "error: stdout: No space left on device\n  try: free some space there\n"),
    ],
)
def test_a_stream_that_takes_no_output(words: str, code: int, message: str, tmp_path: Path) -> None:
    command = f"exec {CLUSTER} {words}"
    done = subprocess.run(["sh", "-c", command], cwd=tmp_path, check=False, capture_output=True)
    assert (done.returncode, done.stderr.decode()) == (code, message)


INTERRUPTED_WHILE_IT_IMPORTS = """
import sys
import mxnet_cluster

class Interrupting:
    def find_spec(self, name, *_):
        if name == "cluster.main":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupting())
mxnet_cluster.main()
"""


def test_an_interrupt_during_the_imports_is_one_line() -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_WHILE_IT_IMPORTS], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "error: interrupted\n")
