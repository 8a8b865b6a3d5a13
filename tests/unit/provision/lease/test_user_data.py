"""The user data that arms the lease."""

import gc
import gzip
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from node.lease.terms import Lease, render_lease
from provision.lease import user_data
from provision.lease.user_data import MAX_BYTES, render_program, render_user_data
from real_mxnet import VERSIONS, find_python

EC2 = "https://ec2.us-east-1.amazonaws.com"
FULL = Lease(
    set_at=1.8e9, until=1.9e9, idle_s=1800.0, budget_usd=123456.78, then="stop", usd_per_hour=1234.567891,
    stopped_usd_per_hour=12.345678, spent_usd=98765.432101,
)  # fmt: skip


def test_it_fits_and_is_the_same_each_time() -> None:
    packed = render_user_data(FULL, cluster="a" * 32, endpoint=EC2)
    assert gzip.decompress(packed).startswith(b"#cloud-boothook\n#!/bin/sh\n")
    assert len(packed) <= MAX_BYTES - 1000  # leaves room for later additions
    again = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys; from provision.lease.user_data import render_program; sys.stdout.write(render_program())",
        ],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[4],
    ).stdout
    assert again == render_program()


def test_threads_render_it_at_once() -> None:
    """`up` rehearses its requests in threads.

    Python 3.11 fails if a garbage collection lets two threads parse at once.
    """

    def let_others_run(phase: str, info: object) -> None:
        time.sleep(0)

    whole = render_program()
    gc.callbacks.append(let_others_run)
    try:
        user_data._render_program.cache_clear()
        with ThreadPoolExecutor(4) as pool:
            assert list(pool.map(lambda _: render_program(), range(4))) == [whole] * 4
    finally:
        gc.callbacks.remove(let_others_run)


@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_it_is_a_shell_script(shell: str) -> None:
    text = gzip.decompress(render_user_data(FULL, cluster="demo", endpoint=EC2)).decode()
    assert subprocess.run([shell, "-n"], input=text, text=True, check=False).returncode == 0
    head = text[: text.index("\n# Ends this node") + 1]
    said = subprocess.run(
        [shell], input=f'{head}printf "%s|" "$cluster" "$lease" "$endpoint" "$program"', text=True, capture_output=True,
        check=True,
    )  # fmt: skip
    assert said.stdout == f"demo|{render_lease(FULL)}|{EC2}|{render_program()}|"


@pytest.mark.parametrize("version", VERSIONS)
def test_the_packed_program_runs(tmp_path: Path, version: str) -> None:
    interpreter = find_python(version)
    if interpreter is None:
        pytest.skip(f"there is no Python {version} here")
    (tmp_path / "lease.py").write_text(render_program())
    done = subprocess.run([interpreter, "-Es", str(tmp_path / "lease.py")], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "IndexError" in done.stderr  # the program gets no verb
