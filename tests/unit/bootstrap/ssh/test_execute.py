"""`cluster exec` without nodes: its output, its exit code, and the node's program run here."""

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bootstrap.ssh.execute import Ending, choose_exit_code
from bootstrap.ssh.host import ACTIVATE, RUN_WORDS
from bootstrap.ssh.node_program import parse_message, runtime_command
from cluster.commands.shell import KEPT_BYTES, Collector, LinePrinter, render_failures
from foundation.errors import ConnectError
from local_nodes import make_runtime


def ending(node: str, code: int | None, at: float = 0.0, **more: int) -> Ending:
    error = ConnectError(f"{node}: gone", hint="cluster status") if code is None else None
    return Ending(node=node, exit_code=code, ended_at=at, error=error, **more)


@pytest.mark.parametrize(
    ("endings", "code"),
    [
        ((), 0),
        ((ending("a", 0), ending("b", 0)), 0),
        ((ending("a", 3, 2.0), ending("b", 7, 1.0), ending("c", 0, 0.5)), 7),
        ((ending("a", 3, 1.0), ending("b", 7, 1.0)), 3),
        ((ending("a", 3, 1.0), ending("b", None)), 1),
    ],
)
def test_the_first_failure_sets_the_exit_code(endings: Sequence[Ending], code: int) -> None:
    assert choose_exit_code(endings) == code


def test_failures_are_listed_and_hints_merged() -> None:
    endings = [ending("a", 0), ending("b", 137, signal=9), ending("c", None), ending("d", None), ending("e", 4)]
    assert render_failures(endings).splitlines() == [
        "error: the command failed on 4 of 5 nodes:",
        "  b: ended by SIGKILL (exit code 137)",
        "  c: gone",
        "  d: gone",
        "  e: exit code 4",
        "  try: cluster status",
    ]
    assert render_failures(endings[:1]) == ""


@given(st.lists(st.tuples(st.sampled_from(["a", "b"]), st.binary(max_size=40)), max_size=20))
def test_output_is_printed_in_whole_lines(pieces: list[tuple[str, bytes]]) -> None:
    source, sink = os.pipe()
    printer = LinePrinter(stdout=sink, stderr=sink)
    for node, data in pieces:
        if data:
            printer.take(node, "stdout", data)
    for node in ("a", "b"):
        printer.take(node, "stdout", b"")
    os.close(sink)
    with open(source, "rb") as stream:
        shown = stream.read()
    for node in ("a", "b"):
        mark = f"[{node}] ".encode()
        whole = b"".join(data for name, data in pieces if name == node)
        lines = [line.removeprefix(mark) for line in shown.split(b"\n") if line.startswith(mark)]
        assert lines == (whole.removesuffix(b"\n").split(b"\n") if whole else [])


def test_the_end_of_long_output_is_kept() -> None:
    collector = Collector()
    for _ in range(5):
        collector.take("a", "stdout", b"x" * KEPT_BYTES)
    collector.take("a", "stdout", b"end\xff")
    long, short = (collector.describe(Ending(node=name, exit_code=0)) for name in ("a", "b"))
    text = long["stdout"]
    assert (len(text), text[-4:], long["cut"]) == (KEPT_BYTES, "end\N{REPLACEMENT CHARACTER}", True)
    assert (short["stderr"], short["cut"]) == ("", False)


def run_program(words: list[str], home: Path, *, before: bytes = b"") -> tuple[list[dict[str, Any]], int]:
    """Runs the node's program here, with the shell command that nodes use. Returns its messages and exit code."""
    make_runtime(home / ".cluster" / "runtime" / "older")  # of another version of cluster
    with subprocess.Popen(
        ["sh", "-c", before.decode() + runtime_command("exec").text],
        env={"HOME": str(home), "PATH": "/usr/bin:/bin"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps({"words": ["sh", "-c", ACTIVATE + RUN_WORDS, "sh", *words]}).encode() + b"\n")
        process.stdin.flush()
        messages = [message for line in process.stdout if (message := parse_message(line)) is not None]
    return messages, process.returncode


def test_a_command_runs_in_the_newest_environment(tmp_path: Path) -> None:
    for number, name in enumerate(("old", "new", "unfinished")):
        folder = tmp_path / ".cluster" / "env" / name
        (folder / "bin").mkdir(parents=True)
        (folder / "lib" / "python3.11" / "site-packages" / "nvidia" / "nccl" / "lib").mkdir(parents=True)
        if name != "unfinished":
            (folder / ".complete").touch()
            os.utime(folder / ".complete", (number, number))
    script = 'echo "$PATH"; echo "$LD_LIBRARY_PATH"; pwd; echo oh >&2; exit 3'
    messages, code = run_program(["sh", "-c", script], tmp_path, before=b"printf 'a login shell talks';")
    new = tmp_path / ".cluster" / "env" / "new"
    said = "".join(message.get("out", "") for message in messages).splitlines()
    libraries = new / "lib" / "python3.11" / "site-packages" / "nvidia" / "nccl" / "lib"
    assert said == [f"{new}/bin:/usr/bin:/bin", str(libraries), str(tmp_path)]
    assert "".join(message.get("err", "") for message in messages) == "oh\n"
    assert messages[-1] == {"exit": 3, "signal": None, "left": []}
    assert code == 0
