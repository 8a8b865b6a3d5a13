"""pack, split and fetch are killed while they write: visible files are complete, and the next run finishes the work.

Its result is byte for byte that of an uninterrupted run.
"""

import subprocess
from pathlib import Path

import pytest

from folders import read_files
from photos import photo
from project import CLUSTER, Project
from record_files import write_uneven
from s3_server import S3Server
from waits import until

RUN = {
    "pack": ("pack", "photos", "out", "--resize", "64", "--shards", "6", "--processes", "2"),
    "split": ("split", "records", "s3://bucket/out/", "--shard-size", "60kB"),
    "fetch": ("fetch", "digits", "out", "--shards", "3"),
}


def write_sources(folder: Path) -> None:
    for number in range(24):
        path = folder / "photos" / str(number % 3) / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        photo(300, 200, number).save(path)
    write_uneven(folder / "records", (40, 3, 50))


def session_of(pid: int) -> list[str]:
    told = subprocess.run(["ps", "-o", "args=", "-s", str(pid)], capture_output=True, text=True, check=False).stdout
    return [line for line in told.splitlines() if "<defunct>" not in line]


@pytest.mark.parametrize(
    "command", ["pack", pytest.param("split", marks=pytest.mark.slow), pytest.param("fetch", marks=pytest.mark.slow)]
)
def test_killed_while_it_writes(project: Project, server: S3Server, command: str) -> None:
    folder = project.directory
    (folder / "tmp").mkdir()
    project.env |= {"TMPDIR": str(folder / "tmp"), "XDG_CACHE_HOME": str(folder / "cache")}
    server.put("bucket", {})
    write_sources(folder)

    def stored() -> dict[str, bytes]:
        if command == "split":
            return {name.removeprefix("out/"): content for name, content in server.read("bucket").items()}
        return read_files(folder / "out")

    words = ("data", *RUN[command])
    project.run(*words)
    expected = stored()
    again = words if command == "fetch" else (*words, "--replace")
    process = subprocess.Popen(
        [CLUSTER, *again], cwd=folder, env=project.environment(), stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    packing = folder / "cache" / "cluster" / "packing"
    until(lambda: [*(folder / "out").glob(".cluster-*/*"), *packing.glob("*/*")])
    process.kill()
    assert process.wait() < 0
    until(lambda: not session_of(process.pid), "a process outlives the one that was killed", timeout_s=20)
    finished = {name: content for name, content in stored().items() if not name.startswith(".cluster-")}
    assert finished.items() <= expected.items()
    project.run(*again)
    assert stored() == expected
    assert server.unfinished("bucket") == []
    left = [*(folder / "tmp").iterdir(), *folder.rglob(".cluster-*"), *packing.glob("*")]
    assert [*left, *(folder / "state" / "cluster" / "transfers").glob("*.json")] == []
