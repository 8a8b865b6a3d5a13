"""put and get are killed at random moments: nothing is lost, doubled or left, and the next run completes the copy."""

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from folders import read_files, write_files
from project import REPOSITORY
from s3_server import S3Server

KILLS = 50
BUCKET = "faults"
SIZES = (100, 500_000, 3_000_000, 9_000_000, *range(0, 30_000, 1000))  # of every tier of train.s3.transfer
COPY = """
import sys
from train.s3 import operations as s3
from foundation.progress import silent
verb, source, destination = sys.argv[1:]
more = {"report": silent} if verb == "put" else {}
getattr(s3, verb)([source], destination, region="eu-west-1", **more)
"""


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["put", "get"])
def test_killed_at_random_moments(server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    moments = random.Random(5)
    contents = {f"{number}.rec": random.Random(number).randbytes(size) for number, size in enumerate(SIZES)}
    write_files(tmp_path / "in", contents)
    server.put(BUCKET, {f"in/{name}": content for name, content in contents.items()} if verb == "get" else {})

    def start(number: int) -> "subprocess.Popen[bytes]":
        here, there = (str(tmp_path / "in"), f"s3://{BUCKET}/{number}")
        if verb == "get":
            here, there = (f"s3://{BUCKET}/in", str(tmp_path / str(number)))
        return subprocess.Popen([sys.executable, "-c", COPY, verb, f"{here}/", f"{there}/"], cwd=REPOSITORY)

    def read(number: int) -> dict[str, bytes]:
        """The visible files at a destination."""
        if verb == "put":
            found = {name: content for name, content in server.read(BUCKET).items() if name.startswith(f"{number}/")}
            return {name.removeprefix(f"{number}/"): content for name, content in found.items()}
        found = read_files(tmp_path / str(number)) if (tmp_path / str(number)).is_dir() else {}
        return {name: content for name, content in found.items() if not name.startswith(".cluster-get-")}

    began = time.monotonic()
    assert start(0).wait() == 0
    whole_s, killed, number = time.monotonic() - began, 0, 0
    while killed < KILLS:
        number += 1
        assert number < 4 * KILLS, f"only {killed} of {number} runs were killed"
        copy = start(number)
        try:
            copy.wait(moments.uniform(0.2, 1.0) * whole_s)
        except subprocess.TimeoutExpired:
            copy.kill()
        killed += copy.wait() != 0
        assert read(number).items() <= contents.items()  # visible files are complete
        assert start(number).wait() == 0
        assert read(number) == contents
        assert server.unfinished(BUCKET) == []
        assert not list((tmp_path / "state").rglob("*.json"))
        if verb == "put":
            keys = [{"Key": f"{number}/{name}"} for name in contents]
            server.client.delete_objects(Bucket=BUCKET, Delete={"Objects": keys})
