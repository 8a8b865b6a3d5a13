"""The memory that put and get use: some parts of a large file, and never the whole file."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from preloaded import Completed
from project import REPOSITORY, Project

LARGE_BYTES = 144 * 2**20
MOST_KIB = 100 << 10
"""Beside the modules of the command, which have 60 MiB."""


@contextmanager
def serve_file(object_file: Path) -> Iterator[str]:
    """Serves an S3 that is faster than moto's; yields its URL. All of its objects have this file's content."""
    words = [sys.executable, "-m", "bench.s3.sink", str(object_file)]
    with subprocess.Popen(words, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True) as sink:
        try:
            yield f"http://127.0.0.1:{int(sink.stdout.readline())}"
        finally:
            sink.terminate()


def test_memory_of_a_large_file(tmp_path: Path) -> None:
    with (tmp_path / "zeros").open("wb") as file:
        file.truncate(LARGE_BYTES)
    with serve_file(tmp_path / "zeros") as url:
        keys = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
        project = Project(tmp_path, {"AWS_ENDPOINT_URL": url, **keys})
        project.write('name = "x"\ncloud = "aws"\n[provision]\nregion = "us-east-1"\n')
        for words in (("put", "zeros", "s3://bucket/in/"), ("get", "s3://bucket/in/zeros", "back")):
            done = project.run("data", *words)
            assert isinstance(done, Completed)
            assert done.peak_kib < MOST_KIB
