"""pack, split and fetch are killed at random moments: visible files are complete, and the next run finishes the work.

Its result is byte for byte that of an uninterrupted run.
"""

import os
import random
import subprocess
import time
from pathlib import Path

import pytest

from folders import read_files
from kills import Kills
from photos import photo
from project import CLUSTER, Project
from record_files import image_record, write_uneven
from s3_server import S3Server
from waits import until

FOLDER, BUCKET = "out", "s3://bucket/out/"
RUN = {
    "pack": ("data", "pack", "photos", "DST", "--resize", "64", "--shards", "6", "--processes", "2"),
    "split": ("data", "split", "records", "DST", "--shard-size", "60kB"),
    "split large": ("data", "split", "large", "DST", "--shard-size", "20MB"),
    "fetch": ("data", "fetch", "digits", "DST", "--shards", "3"),
}
SLOW = pytest.mark.slow
MANY = int(os.environ.get("KILLS", "25"))


def write_sources(folder: Path, command: str) -> None:
    if command == "pack":
        for number in range(48):
            path = folder / "photos" / str(number % 3) / f"{number}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            photo(300, 200, number).save(path)
    elif command == "split":
        write_uneven(folder / "records", (40, 3, 50))
    elif command == "split large":
        source = random.Random(3)
        (folder / "large").mkdir()
        records = [image_record(number, extra=source.randbytes(1_000_000)) for number in range(38)]
        (folder / "large" / "all.rec").write_bytes(b"".join(records))


class Series:
    """Repeated runs of a command, and its result without a kill."""

    def __init__(self, project: Project, server: S3Server, command: str, where: str) -> None:
        self.project, self.server = project, server
        self._command, self._where = command, where
        self._folder = project.directory
        (self._folder / "tmp").mkdir()
        project.env |= {"TMPDIR": str(self._folder / "tmp"), "XDG_CACHE_HOME": str(self._folder / "cache")}
        server.put("bucket", {})
        write_sources(self._folder, command)
        words = tuple(where if word == "DST" else word for word in RUN[command])
        began = time.monotonic()
        project.run(*words)
        self.whole_s = time.monotonic() - began
        self.expected = self._stored()
        self._again = words if command == "fetch" else (*words, "--replace")

    def start(self) -> "subprocess.Popen[bytes]":
        """Starts the command again, to replace its result."""
        if self._command == "fetch":
            self._delete()
        return subprocess.Popen(
            [CLUSTER, *self._again], cwd=self._folder, env=self.project.environment(), stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip

    def check_after(self, process: "subprocess.Popen[bytes]") -> None:
        """Checks the files that a killed run left, and the result of the next run."""
        until(lambda: not session_of(process.pid), "a process outlives the one that was killed", timeout_s=20)
        seen = self._stored()
        finished = {name: content for name, content in seen.items() if not name.startswith(".cluster-")}
        assert finished.items() <= self.expected.items()
        self.project.run(*self._again)
        assert self._stored() == self.expected
        assert self.server.unfinished("bucket") == []
        assert not list((self._folder / "tmp").iterdir())
        assert not list(self._folder.rglob(".cluster-*"))
        packing = self._folder / "cache" / "cluster" / "packing"
        assert not packing.exists() or not list(packing.iterdir())
        assert not list((self._folder / "state" / "cluster" / "transfers").glob("*.json"))

    def _stored(self) -> dict[str, bytes]:
        if self._where == FOLDER:
            return read_files(self._folder / FOLDER)
        return {name.removeprefix("out/"): content for name, content in self.server.read("bucket").items()}

    def _delete(self) -> None:
        for name in self._stored():
            if self._where == FOLDER:
                (self._folder / FOLDER / name).unlink()
            else:
                self.server.client.delete_object(Bucket="bucket", Key=f"out/{name}")


def session_of(pid: int) -> list[str]:
    told = subprocess.run(["ps", "-o", "args=", "-s", str(pid)], capture_output=True, text=True, check=False).stdout
    return [line for line in told.splitlines() if "<defunct>" not in line]


@pytest.mark.parametrize(
    ("command", "where", "times"),
    [
        ("pack", FOLDER, 1),
        *(
            pytest.param(command, where, MANY, marks=SLOW)
            for command in ("pack", "split", "fetch")
            for where in (FOLDER, BUCKET)
        ),
    ],
)
def test_killed_at_any_moment(project: Project, server: S3Server, command: str, where: str, times: int) -> None:
    series = Series(project, server, command, where)
    kills = Kills(times, seed=5, whole_s=series.whole_s)
    for _ in kills.rounds():
        process = series.start()
        if kills.kill(process):
            series.check_after(process)
