"""pack and split, killed at random moments: the next run's result is byte for byte that of one which was not."""

import os
import random
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kills import Kills
from photos import contents, photo
from project import CLUSTER, Project
from record_files import image_record, write_uneven
from s3_server import S3Server, serve_s3
from train.s3.transfer import PART_BYTES

BUCKET = "s3://bucket/out/"
RUN = {
    "pack": ("data", "pack", "photos", "DST", "--resize", "64", "--shards", "6", "--processes", "2"),
    "split": ("data", "split", "records", "DST", "--shard-size", "60kB"),
    "split large": ("data", "split", "large", "DST", "--shard-size", "20MB"),
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


def start(project: Project, words: tuple[str, ...]) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [CLUSTER, *words], cwd=project.directory, env=project.environment(), stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip


def wait_for_children(process: "subprocess.Popen[bytes]") -> None:
    """A command's own processes end by themselves when it was killed."""
    until = time.monotonic() + 20
    while session_of(process.pid):
        assert time.monotonic() < until, "a process outlives the one that was killed"
        time.sleep(0.05)


def session_of(pid: int) -> list[str]:
    told = subprocess.run(["ps", "-o", "args=", "-s", str(pid)], capture_output=True, text=True, check=False).stdout
    return [line for line in told.splitlines() if "<defunct>" not in line]


def stored(project: Project, server: S3Server, where: str) -> dict[str, bytes]:
    if where == BUCKET:
        return {name.removeprefix("out/"): content for name, content in server.read("bucket").items()}
    return contents(project.directory / "out")


def write_sources(folder: Path, command: str) -> None:
    if command == "pack":
        for number in range(48):
            path = folder / "photos" / str(number % 3) / f"{number}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            photo(300, 200, number).save(path)
    elif command == "split":
        write_uneven(folder / "records", (40, 3, 50))
    else:
        source = random.Random(3)
        (folder / "large").mkdir()
        records = [image_record(number, extra=source.randbytes(1_000_000)) for number in range(38)]
        (folder / "large" / "all.rec").write_bytes(b"".join(records))


class Series:
    """A command, and what it makes where it is not killed."""

    def __init__(self, made: tuple[Project, S3Server], command: str, where: str) -> None:
        self.project, self.server = made
        self.where = where
        write_sources(self.project.directory, command)
        words = tuple(where if word == "DST" else word for word in RUN[command])
        began = time.monotonic()
        self.project.run(*words)
        self.whole_s = time.monotonic() - began
        self.expected = stored(self.project, self.server, where)
        self._again = (*words, "--replace")

    def start(self) -> "subprocess.Popen[bytes]":
        """The command once more, to replace what it has made."""
        return start(self.project, self._again)

    def check_after(self, process: "subprocess.Popen[bytes]") -> None:
        """What a killed run has left, and what the next one makes of it."""
        wait_for_children(process)
        for name, content in stored(self.project, self.server, self.where).items():  # what can be seen is whole
            if not name.startswith(".cluster-pack/"):
                assert content in (self.expected.get(name), b"")
        self.project.run(*self._again)
        assert stored(self.project, self.server, self.where) == self.expected
        assert self.server.unfinished("bucket") == []
        packing = self.project.directory / "cache" / "cluster" / "packing"
        assert not packing.exists() or [path.name for path in packing.iterdir()] == ["lock"]
        noted = (self.project.directory / "state" / "cluster" / "uploads").glob("*")
        # What is empty was killed while it was made; a run a second later takes it away.
        assert [path.read_text() for path in noted if path.stat().st_size] == []


def kill_and_run_again(made: tuple[Project, S3Server], command: str, where: str, times: int) -> None:
    series = Series(made, command, where)
    kills = Kills(times, seed=5, whole_s=series.whole_s)
    for _ in kills.rounds():
        process = series.start()
        if kills.kill(process):
            series.check_after(process)
    assert kills.killed == times


def test_pack_killed_once(project: tuple[Project, S3Server]) -> None:
    kill_and_run_again(project, "pack", "out", times=1)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("where", ["out", BUCKET])
@pytest.mark.parametrize("command", ["pack", "split"])
def test_killed_at_any_moment(project: tuple[Project, S3Server], command: str, where: str) -> None:
    kill_and_run_again(project, command, where, times=int(os.environ.get("KILLS", "25")))


@pytest.mark.parametrize("times", [1, pytest.param(25, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])])
def test_killed_while_a_large_shard_is_on_its_way(project: tuple[Project, S3Server], times: int) -> None:
    """The upload in parts that was begun is gone on with, or ended."""
    series = Series(project, "split large", BUCKET)
    assert max(map(len, series.expected.values())) > PART_BYTES
    source = random.Random(8)
    killed = 0
    for _ in range(3 * times + 5):
        process = series.start()
        while process.poll() is None and not series.server.unfinished("bucket"):
            pass
        time.sleep(source.uniform(0, 0.1))
        process.kill()
        process.wait()
        begun = series.server.unfinished("bucket")
        series.check_after(process)
        killed += bool(begun)
        if killed == times:
            return
    pytest.fail(f"only {killed} runs were killed while an upload in parts was on its way")
