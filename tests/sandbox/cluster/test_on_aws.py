"""`make test-aws` with the sandbox in the place of the AWS account."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from project import REPOSITORY

pytestmark = [pytest.mark.sandbox, pytest.mark.slow]


@pytest.mark.parametrize("is_interrupted", [False, True], ids=["to the end", "interrupted"])
def test_nothing_is_left(tmp_path: Path, *, is_interrupted: bool) -> None:
    """The page has each command, and a receipt of each cluster."""
    results = tmp_path / "AWS.md"
    words = [sys.executable, "-m", "bench.aws", "--cloud", "sandbox", "--yes", "--results", str(results)]
    env = {**os.environ, "XDG_STATE_HOME": str(tmp_path)}
    with subprocess.Popen(
        words, cwd=REPOSITORY, env=env, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if is_interrupted and line.startswith("cpu$ cluster up --yes"):
                os.killpg(process.pid, signal.SIGINT)  # as Ctrl-C does
                break
        rest = process.stdout.read()
    text = results.read_text()
    assert (process.returncode, "interrupted" in text) == (int(is_interrupted), is_interrupted), rest
    receipts = [json.loads(line.partition(": ")[2]) for line in text.splitlines() if line.startswith("- receipt of")]
    assert [(receipt["gone"], receipt["left"]) for receipt in receipts] == [(True, [])] * 2
    assert is_interrupted or "| cpu: `cluster logs --follow --plain" in text
