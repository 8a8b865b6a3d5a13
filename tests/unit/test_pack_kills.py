"""pack and split, killed at random moments: the next run's result is byte for byte that of one which was not."""

import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from project import CLUSTER, Project
from record_files import write_uneven
from s3_server import S3Server, serve_s3
from test_pack import contents, photo

RUN = {
    "pack": ("data", "pack", "photos", "DST", "--resize", "64", "--shards", "6", "--processes", "2"),
    "split": ("data", "split", "records", "DST", "--shard-size", "60kB"),
}


@pytest.fixture
def project(tmp_path: Path) -> Iterator[tuple[Project, S3Server]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", "testing")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
        with serve_s3() as server:
            env = {
                "AWS_ENDPOINT_URL": server.url, "AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing",
                "XDG_CACHE_HOME": str(tmp_path / "cache"), "HOME": str(tmp_path),
            }  # fmt: skip
            made = Project(tmp_path, env)
            made.write('name = "x"\ncloud = "aws"\n')
            server.put("bucket", {})
            yield made, server
            server.reset()


def kill_at(project: Project, words: tuple[str, ...], after_s: float) -> None:
    """Start the command, and kill it as a machine out of memory would; its own processes end by themselves."""
    process = subprocess.Popen(
        [CLUSTER, *words], cwd=project.directory, env=project.environment(), stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    time.sleep(after_s)
    process.send_signal(signal.SIGKILL)
    process.wait()
    until = time.monotonic() + 20
    while session_of(process.pid):
        assert time.monotonic() < until, "a process outlives the one that was killed"
        time.sleep(0.05)


def session_of(pid: int) -> list[str]:
    told = subprocess.run(["ps", "-o", "args=", "-s", str(pid)], capture_output=True, text=True, check=False).stdout
    return [line for line in told.splitlines() if "<defunct>" not in line]


def stored(project: Project, server: S3Server, where: str) -> dict[str, bytes]:
    if where == "s3://bucket/out/":
        assert server.unfinished("bucket") == []
        return {name.removeprefix("out/"): content for name, content in server.read("bucket").items()}
    return contents(project.directory / "out")


def kill_and_run_again(made: tuple[Project, S3Server], command: str, where: str, kills: int) -> None:
    project, server = made
    for number in range(48):
        path = project.directory / "photos" / str(number % 3) / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        photo(300, 200, number).save(path)
    write_uneven(project.directory / "records", (40, 3, 50))
    source = random.Random(5)
    words = tuple(where if word == "DST" else word for word in RUN[command])
    began = time.monotonic()
    project.run(*words)
    whole_s = time.monotonic() - began
    expected = stored(project, server, where)
    for _ in range(kills):
        kill_at(project, (*words, "--replace"), source.uniform(0.3, 1.1) * whole_s)
        found = stored(project, server, where)
        for name, content in found.items():  # what can be seen is whole
            if not name.startswith(".cluster-pack/"):
                assert content in (expected.get(name), b"")
        project.run(*words, "--replace")
        assert stored(project, server, where) == expected
        packing = project.directory / "cache" / "cluster" / "packing"
        assert not packing.exists() or [path.name for path in packing.iterdir()] == ["lock"]


def test_pack_killed_once(project: tuple[Project, S3Server]) -> None:
    kill_and_run_again(project, "pack", "out", kills=1)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("where", ["out", "s3://bucket/out/"])
@pytest.mark.parametrize("command", ["pack", "split"])
def test_killed_at_any_moment(project: tuple[Project, S3Server], command: str, where: str) -> None:
    kill_and_run_again(project, command, where, kills=int(os.environ.get("KILLS", "25")))
