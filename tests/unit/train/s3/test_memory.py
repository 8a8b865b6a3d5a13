"""The memory that put and get use: some parts of a large file, and never the whole file."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from project import REPOSITORY, Project

LARGE_BYTES = 144 * 2**20
MOST_BYTES = 160 * 2**20
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
def serve_file(object_file: Path) -> Iterator[str]:
    """Serves an S3 that is faster than moto's; yields its URL. All of its objects have this file's content."""
    words = [sys.executable, "-m", "bench.s3.sink", str(object_file)]
    with subprocess.Popen(words, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True) as sink:
        try:
            yield f"http://127.0.0.1:{int(sink.stdout.readline())}"
        finally:
            sink.terminate()


def peak_bytes(folder: Path, url: str, *words: str) -> int:
    """Runs `cluster data WORDS...` in this folder; returns its peak memory."""
    keys = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
    project = Project(folder, {"AWS_ENDPOINT_URL": url, **keys})
    project.write('name = "x"\ncloud = "aws"\n[provision]\nregion = "us-east-1"\n')
    output = subprocess.check_output(
        [sys.executable, "-c", MEASURED, "data", *words],
        cwd=folder,
        env=project.environment(),
        text=True,
        stderr=subprocess.DEVNULL,
        timeout=60,
    )
    return int(output) * 1024


def test_memory_of_a_large_file(tmp_path: Path) -> None:
    with (tmp_path / "zeros").open("wb") as file:
        file.truncate(LARGE_BYTES)
    with serve_file(tmp_path / "zeros") as url:
        assert peak_bytes(tmp_path, url, "put", "zeros", "s3://bucket/in/") < MOST_BYTES
        assert peak_bytes(tmp_path, url, "get", "s3://bucket/in/zeros", "back") < MOST_BYTES
