"""The memory that put and get use."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from folders import write_files
from project import REPOSITORY, Project

LARGE_BYTES = 256 * 2**20
# Runs the command, and prints its peak memory in KiB at the end.
MEASURED = """
import sys
from pathlib import Path
from cluster.main import main
try:
    main()
finally:
    lines = Path("/proc/self/status").read_text().splitlines()
    print(next(line.split()[1] for line in lines if line.startswith("VmHWM")))
"""


@contextmanager
def serve_file(object_file: Path, *options: str) -> Iterator[str]:
    """Serves an S3 that is faster than moto's; yields its URL. All of its objects have this file's content."""
    words = [sys.executable, "-m", "bench.s3.sink", str(object_file), *options]
    with subprocess.Popen(words, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True) as sink:
        try:
            assert sink.stdout is not None
            yield f"http://127.0.0.1:{int(sink.stdout.readline())}"
        finally:
            sink.terminate()


def peak_bytes(folder: Path, url: str, *words: str) -> int:
    """Runs `cluster data WORDS...` in this folder; returns its peak memory."""
    keys = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
    project = Project(folder, {"AWS_ENDPOINT_URL": url, **keys})
    project.write('name = "x"\ncloud = "aws"\n[provision]\nregion = "us-east-1"\n')
    said = subprocess.check_output(
        [sys.executable, "-c", MEASURED, "data", *words],
        cwd=folder,
        env=project.environment(),
        text=True,
        stderr=subprocess.DEVNULL,
        timeout=60,
    )
    return int(said) * 1024


def test_memory_of_a_large_file(tmp_path: Path) -> None:
    with (tmp_path / "zeros").open("wb") as file:
        file.truncate(LARGE_BYTES)
    with serve_file(tmp_path / "zeros") as url:
        assert peak_bytes(tmp_path, url, "put", "zeros", "s3://bucket/in/") < 192 * 2**20
        assert peak_bytes(tmp_path, url, "get", "s3://bucket/in/zeros", "back") < 192 * 2**20


@pytest.mark.parametrize("big_files", [pytest.param(0, marks=pytest.mark.slow), 1], ids=["small", "mixed"])
def test_memory_of_many_at_once(tmp_path: Path, big_files: int) -> None:
    """Many threads send the largest files of their tier to a slow S3, so that all are under way at once."""
    content = bytes(range(256)) * 2**11
    files = {f"{number}": content for number in range(150)} | {
        f"big{number}": content * 40 for number in range(big_files)
    }
    write_files(tmp_path / "local", files)
    with serve_file(tmp_path / "local" / "0", "--latency-ms", "20") as url:
        assert peak_bytes(tmp_path, url, "put", "local/", "s3://bench/x/") < 192 * 2**20
