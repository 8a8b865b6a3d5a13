"""`cluster data put` of files whose size is wrong, and of files that grow."""

import subprocess
import sys
from pathlib import Path

import pytest

from project import Project
from s3_server import S3Server

LARGER_THAN_ITS_SIZE = "/proc/self/status"  # 0 bytes, like all files in /proc
SMALLER_THAN_ITS_SIZE = "/sys/kernel/mm/transparent_hugepage/enabled"  # 4096 bytes, like all files in /sys
APPEND = """
import sys, time
with open(sys.argv[1], "ab", 0) as file:
    while True:
        file.write(b"0123456789" * 100)
        time.sleep(0.0005)
"""


@pytest.mark.parametrize(
    ("path", "said"),
    [
        (LARGER_THAN_ITS_SIZE, "it has more bytes than its size of 0"),
        (SMALLER_THAN_ITS_SIZE, "it has fewer bytes than its size of 4096"),
    ],
)
def test_a_file_whose_size_is_wrong_is_an_error(project: Project, server: S3Server, path: str, said: str) -> None:
    if not Path(path).exists():
        pytest.skip(f"there is no {path} here")
    name = Path(path).name
    server.put("bucket", {})
    folder = project.directory / "in"
    folder.mkdir()
    (folder / "empty").touch()
    (folder / "lying").symlink_to(path)
    stderr = project.run("data", "put", path, "s3://bucket/", code=1).stderr
    assert (
        f"{path} -> s3://bucket/{name}: {said}, like files in /proc and /sys: copy it to a regular file first" in stderr
    )
    stderr = project.run("data", "put", "in", "s3://bucket/in/", code=1).stderr
    assert f"1 of 2 files failed, the others are done:\n  in/lying -> s3://bucket/in/lying: {said}" in stderr
    assert server.read("bucket") == {"in/empty": b""}


def test_an_object_that_was_put_empty_differs(project: Project, server: S3Server) -> None:
    server.put("bucket", {"status": b""})
    assert "failed" in project.run("data", "put", LARGER_THAN_ITS_SIZE, "s3://bucket/", code=1).stderr
    assert "content   status" in project.run(
        "data", "verify", "s3://bucket/status", LARGER_THAN_ITS_SIZE, code=1
    ).stdout  # fmt: skip


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
