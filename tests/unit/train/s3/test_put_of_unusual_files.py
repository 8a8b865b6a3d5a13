"""`cluster data put` of files that grow."""

import subprocess
import sys

import pytest

from project import Project
from s3_server import S3Server

APPEND = """
import sys, time
with open(sys.argv[1], "ab", 0) as file:
    while True:
        file.write(b"0123456789" * 100)
        time.sleep(0.0005)
"""


@pytest.mark.parametrize("size_bytes", [0, 100_000, 3_000_000, 20_000_000])
def test_a_growing_file_arrives_up_to_a_point_or_not_at_all(
    project: Project, server: S3Server, size_bytes: int
) -> None:
    server.put("bucket", {})
    path = project.directory / "growing"
    path.write_bytes(bytes(size_bytes))
    with subprocess.Popen([sys.executable, "-c", APPEND, str(path)]) as writer:
        try:
            done = project.run("data", "put", "growing", "s3://bucket/", code=None)
        finally:
            writer.kill()
    content = path.read_bytes()
    there = server.read("bucket")
    assert done.returncode in {0, 1}
    if done.returncode:
        assert "it was changed while it was read" in done.stderr
        assert there == {}
    else:
        assert len(there["growing"]) >= size_bytes
        assert content.startswith(there["growing"])
    assert server.unfinished("bucket") == []
