"""What a put takes of memory."""

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from project import REPOSITORY

MEMORY_BYTES = 192 * 2**20


PUT = """
import sys
from pathlib import Path
from foundation.progress import silent
from train.s3 import operations as s3
s3.put([sys.argv[1]], "s3://bench/x/", region="us-east-1", report=silent)
print(next(line.split()[1] for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")))
"""


@pytest.mark.parametrize("big_files", [0, 1], ids=["small", "mixed"])
def test_memory_of_many_at_once(tmp_path: Path, big_files: int) -> None:
    """The largest files that many threads send, to an S3 that takes its time, so that all are under way."""
    local = tmp_path / "local"
    local.mkdir()
    content = random.Random(1).randbytes(2**19)
    for number in range(150):
        (local / f"{number}").write_bytes(content)
    for number in range(big_files):
        (local / f"big{number}").write_bytes(content * 40)
    words = [sys.executable, "-m", "bench.s3_sink", str(local / "0"), "--latency-ms", "20"]
    with subprocess.Popen(words, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True) as sink:
        try:
            assert sink.stdout is not None
            keys = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "XDG_STATE_HOME": str(tmp_path / "state")}
            url = f"http://127.0.0.1:{int(sink.stdout.readline())}"
            env = {**os.environ, **keys, "AWS_ENDPOINT_URL": url}
            said = subprocess.check_output(
                [sys.executable, "-c", PUT, f"{local}/"], cwd=REPOSITORY, env=env, text=True, timeout=60
            )
        finally:
            sink.terminate()
    assert int(said) * 1024 < MEMORY_BYTES
