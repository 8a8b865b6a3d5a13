"""cluster data fetch, killed at random moments: what can be seen is whole, and the next run finishes the work."""

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kills import Kills
from project import CLUSTER, Project
from s3_server import S3Server, serve_s3_alone

SLOW = [pytest.mark.slow, pytest.mark.timeout(3600)]
FOLDER, BUCKET = "out", "s3://bucket/out/"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[S3Server]:
    with serve_s3_alone() as server:
        server.put("bucket", {})
        yield server
        server.reset()


@pytest.fixture
def project(server: S3Server, tmp_path: Path) -> Project:
    env = {
        "AWS_ENDPOINT_URL": server.url, "AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing",
        "HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache"), "TMPDIR": str(tmp_path / "tmp"),
    }  # fmt: skip
    (tmp_path / "tmp").mkdir()
    made = Project(tmp_path, env)
    made.write('name = "x"\ncloud = "aws"\n')
    return made


def start(project: Project, words: tuple[str, ...]) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [CLUSTER, *words], cwd=project.directory, env=project.environment(), stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip


def read(folder: Path) -> dict[str, bytes]:
    """Every file, hidden ones too."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def find(project: Project, server: S3Server, where: str) -> dict[str, bytes]:
    if where == FOLDER:
        return read(project.directory / FOLDER)
    return {name.removeprefix("out/"): content for name, content in server.read("bucket").items()}


@pytest.mark.parametrize(
    ("where", "times"), [(BUCKET, 1), *(pytest.param(where, 25, marks=SLOW) for where in (FOLDER, BUCKET))]
)
def test_killed_at_any_moment(project: Project, server: S3Server, where: str, times: int) -> None:
    words = ("data", "fetch", "digits", where, "--shards", "3")
    began = time.monotonic()
    project.run(*words)
    kills = Kills(int(os.environ.get("KILLS", str(times))), seed=11, whole_s=time.monotonic() - began)
    expected = find(project, server, where)
    assert len(expected) == 8
    for _ in kills.rounds():
        if where == FOLDER:
            for name in expected:
                (project.directory / FOLDER / name).unlink()
        else:
            server.client.delete_objects(
                Bucket="bucket", Delete={"Objects": [{"Key": f"out/{name}"} for name in expected]}
            )
        kills.kill(start(project, words))
        seen = find(project, server, where)
        assert {name: content for name, content in seen.items() if not name.startswith(".cluster-fetch/")}.items() <= (
            expected.items()
        )
        project.run(*words)
        assert find(project, server, where) == expected
        assert server.upload_ids("bucket") == []
        assert not list((project.directory / "tmp").iterdir())
        assert not list(project.directory.rglob(".cluster-fetch*"))
        assert not list((project.directory / "state" / "cluster").glob("uploads/*"))
