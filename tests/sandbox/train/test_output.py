"""What programs print, by the real command: progress bars, bytes that are not UTF-8, long lines, and closed outputs."""

import json
import re
import shlex
import subprocess
from functools import partial
from pathlib import Path

import pytest

from job_steps import records
from preloaded import preloaded
from project import CLUSTER, Project
from terminal import Terminal

pytestmark = pytest.mark.sandbox

# Draws as tqdm 4.70 does (recorded), nested, until ~/enough exists on its host.
NESTED = r"""
import os, sys, time
def write(text):
    sys.stderr.write(text)
    sys.stderr.flush()
write("\rEpoch 1:   0%|          | 0/2 [00:00<?, ?it/s]")
for step in range(1, 1000):
    for piece in ("\n", "\r%3d%%|#         | %d/1000 [00:00<00:04, 20.00it/s, loss=0.5]" % (step / 10, step), "\x1b[A"):
        write(piece)
    time.sleep(0.05)
    if os.path.exists(os.path.expanduser("~/enough")):
        break
write("\n\r" + " " * 70 + "\r\x1b[A\rEpoch 1: 100%|##########| 2/2 [00:04<00:00,  0.50it/s]\n")
print("end of", os.environ["RANK"], flush=True)
"""
ODD = r"""
import sys
sys.stdout.buffer.write(b"caf\xe9 \xc3\n" + b"x" * 300_000 + b"\n" + b"y" * 5_000_000 + b"\nend\n")
sys.stdout.flush()
input("Continue? ")
"""


def test_bars_are_seen_while_they_move(nodes: Project) -> None:
    """In a terminal, by `train` and by `logs -f`; the log has only their last states."""
    words = ("--launcher", "env", "-n", "2", "--", "python", "-c", NESTED)
    job = nodes.run("train", "--detach", *words).stdout.strip()
    terminal = Terminal(columns=120, lines=40)
    process = preloaded().start(
        [CLUSTER, "logs", "-f", job],
        terminal.theirs,
        terminal.theirs,
        cwd=nodes.directory,
        env=nodes.environment() | {"TERM": "xterm-256color"},
        is_at_terminal=True,
    )
    try:
        for rank in (0, 1):
            terminal.wait_for(partial(shows_another, terminal, rank, ""), 120)
            terminal.wait_for(partial(shows_another, terminal, rank, bar_of(terminal, rank)))  # it moves
        assert "[worker 0 node-0] Epoch 1:   0%|" in terminal.screen.text
        assert [row.split()[0] for row in terminal.screen.text.splitlines()].count(
            "rank"
        ) == 1  # the table, with the loss
        nodes.run("exec", "--", "touch", "enough")
        assert process.wait(timeout=60) == 0
        text = terminal.settle()
    finally:
        process.kill_session()
        process.wait()
        terminal.close()
        nodes.run("exec", "--", "rm", "-f", "enough")
    assert "\\x1b" not in text
    expected = sorted(
        f"[worker {rank} node-{rank}] {line}"
        for rank in (0, 1)
        for line in ("Epoch 1: 100%|##########| 2/2 [00:04<00:00,  0.50it/s]", f"end of {rank}")
    )
    assert sorted(line for line in text.splitlines() if line.startswith("[worker")) == expected
    stored = [json.loads(line) for line in nodes.run("logs", job, "--json").stdout.splitlines()]
    assert sorted(event["text"] for event in stored if event["kind"] == "line") == sorted(
        line.partition("] ")[2] for line in expected
    )


def bar_of(terminal: Terminal, rank: int) -> str:
    """The row with the inner bar of a rank."""
    rows = [row for row in terminal.screen.text.splitlines() if f"worker {rank} " in row and "/1000 [" in row]
    return rows[-1] if rows else ""


def shows_another(terminal: Terminal, rank: int, bar: str) -> bool:
    return bar_of(terminal, rank) not in ("", bar)


def test_odd_output_and_a_question(nodes: Project, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with out.open("wb") as stdout:
        command = [CLUSTER, "train", "--launcher", "env", "-n", "1", "--", "python", "-c", ODD]
        ended = subprocess.run(
            command,
            check=False,
            cwd=nodes.directory,
            env=nodes.environment(),
            stdout=stdout,
            stderr=subprocess.PIPE,
            timeout=120,
        )
    assert ended.returncode == 1
    assert b"a job has no keyboard to read from" in ended.stderr
    first, *rest = out.read_bytes().removesuffix(b"\n").split(b"\n")
    prefix = b"[worker 0 node-0] "
    assert first == prefix + b"caf\xe9 \xc3"
    texts = [line.removeprefix(prefix) for line in rest]
    end = texts.index(b"end")
    assert b"".join(texts[:end]) == b"x" * 300_000 + b"y" * 5_000_000
    assert max(map(len, texts)) == 65536
    assert texts[end + 1].startswith(b"Continue? ")
    assert texts[-1] == b"EOFError: EOF when reading a line"


@pytest.mark.parametrize(
    ("sink", "message"),
    [
        ("| head -n 1", "continues"),
        pytest.param("> /dev/full", "No space left on device", marks=pytest.mark.slow),
    ],
)
def test_an_output_that_takes_no_more(nodes: Project, sink: str, message: str) -> None:
    script = "import time; print('first', flush=True); time.sleep(2); print('second', flush=True); time.sleep(100)"
    command = f"set -o pipefail; {CLUSTER} train --launcher env -n 1 -- python -c {shlex.quote(script)} {sink}"
    ended = subprocess.run(
        ["bash", "-c", command],
        check=False,
        cwd=nodes.directory,
        env=nodes.environment(),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.returncode == 1
    assert message in ended.stderr
    assert re.search(r"job \S+ continues: cluster logs -f", ended.stderr)
    assert "Traceback" not in ended.stderr
    (job,) = (record["id"] for record in records(nodes) if record["state"] == "running")
    nodes.run("stop", job)
