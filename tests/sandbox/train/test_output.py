"""What programs print, by the real command: bytes that are not UTF-8, long lines, and closed outputs."""

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from job_steps import records
from project import CLUSTER, Project

pytestmark = pytest.mark.sandbox

ODD = r"""
import sys
sys.stdout.buffer.write(b"caf\xe9 \xc3\n" + b"x" * 300_000 + b"\n" + b"y" * 5_000_000 + b"\nend\n")
sys.stdout.flush()
input("Continue? ")
"""


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
