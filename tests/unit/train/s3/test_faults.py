"""put and get with a busy S3, flipped bits and killed processes: the right bytes or an error, and nothing left over."""

import random
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from folders import read_files
from foundation.errors import ClusterError
from foundation.progress import silent
from http_server import Asked, Refusal, judging_proxy
from kills import Kills
from project import REPOSITORY
from s3_server import REGION, S3Server
from train.s3 import operations as s3
from train.s3.transfer import PART_BYTES

BUCKET = "datasets"
FLIPPED = 100_000  # the byte of a body that is damaged
SIZES = {"small": 300_000, "middle": 3_000_000, "large": PART_BYTES * 2 + 500_000}


@dataclass(slots=True)
class Faults:
    """How many faults of each kind a proxy still has.

    busy: answers with 503 SlowDown. sent, received: flips one bit of a body.
    """

    busy: int = 0
    sent: int = 0
    received: int = 0
    done: int = 0
    lock: Any = field(default_factory=threading.Lock)

    def take(self, kind: str) -> bool:
        with self.lock:
            left: int = getattr(self, kind)
            setattr(self, kind, max(left - 1, 0))
            self.done += left > 0
            return left > 0

    def judge(self, _: Asked) -> Refusal | None:
        return (
            Refusal(status=503, code="SlowDown", message="Please reduce your request rate.")
            if self.take("busy")
            else None
        )

    def flip(self, kind: str, body: bytes) -> bytes:
        return flip_bit(body) if len(body) > FLIPPED and self.take(kind) else body


def flip_bit(body: bytes) -> bytes:
    flipped = bytearray(body)
    flipped[FLIPPED] ^= 0x10
    return bytes(flipped)


def copy(server: S3Server, folder: Path, verb: str, faults: Faults) -> None:
    """Puts or gets one file through a faulty proxy."""
    path, url = str(folder / "x"), f"s3://{BUCKET}/x"
    with judging_proxy(
        server.url,
        faults.judge,
        lambda _, body: faults.flip("received", body),
        lambda _, body: faults.flip("sent", body),
    ):
        if verb == "put":
            s3.put([path], url, region=REGION, report=silent)
        else:
            s3.get([url], path, region=REGION)


def prepare(server: S3Server, folder: Path, verb: str, size: str) -> bytes:
    """Creates the source of a copy; returns its content."""
    content = random.Random(1).randbytes(SIZES[size])
    server.put(BUCKET, {})
    if verb == "put":
        (folder / "x").write_bytes(content)
    else:
        server.client.put_object(Bucket=BUCKET, Key="x", Body=content)
    return content


@pytest.mark.parametrize("size", ["small", pytest.param("middle", marks=pytest.mark.slow), "large"])
@pytest.mark.parametrize(
    ("verb", "faults"),
    [
        ("put", {"busy": 3}),
        ("get", {"busy": 3}),
    ],
    ids=str,
)
def test_copy_through_faults(server: S3Server, tmp_path: Path, verb: str, faults: dict[str, int], size: str) -> None:
    content = prepare(server, tmp_path, verb, size)
    done = Faults(**faults)
    copy(server, tmp_path, verb, done)
    assert done.done
    assert server.read(BUCKET) == {"x": content}
    assert read_files(tmp_path) == {"x": content}
    assert server.unfinished(BUCKET) == []


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("verb", "faults"), [("put", {"sent": 10**6}), ("get", {"received": 10**6})], ids=str)
def test_damage_is_an_error(server: S3Server, tmp_path: Path, verb: str, faults: dict[str, int], size: str) -> None:
    content = prepare(server, tmp_path, verb, size)
    with pytest.raises(ClusterError):
        copy(server, tmp_path, verb, Faults(**faults))
    assert server.read(BUCKET) == ({} if verb == "put" else {"x": content})
    assert read_files(tmp_path) == ({"x": content} if verb == "put" else {})


COMMAND = """
import sys
from train.s3 import operations as s3
from foundation.progress import silent
verb, source, destination = sys.argv[1:]
more = {"report": silent} if verb == "put" else {}
getattr(s3, verb)([source], destination, region="eu-west-1", **more)
"""


def start(verb: str, source: str, destination: str) -> "subprocess.Popen[bytes]":
    """Starts put or get in its own process."""
    return subprocess.Popen([sys.executable, "-c", COMMAND, verb, source, destination], cwd=REPOSITORY)


@pytest.mark.parametrize(
    "times", [pytest.param(1), pytest.param(50, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])]
)
@pytest.mark.parametrize("verb", ["put", "get"])
def test_killed_at_random_moments(
    server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str, times: int
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    generator = random.Random(5)
    sizes = [100, 500_000, 3_000_000, 9_000_000, *generator.choices(range(30_000), k=30)]  # sizes of every tier
    contents = {f"{number}.rec": generator.randbytes(size) for number, size in enumerate(sizes)}
    local = tmp_path / "local"
    local.mkdir()
    server.put(BUCKET, {})
    for name, content in contents.items():
        (local / name).write_bytes(content)
        if verb == "get":
            server.client.put_object(Bucket=BUCKET, Key=f"there/{name}", Body=content)
    began = time.monotonic()
    assert start(verb, *_ends(verb, local, tmp_path, 0)).wait() == 0
    kills = Kills(times, seed=5, whole_s=time.monotonic() - began)
    for number in kills.rounds():
        ends = _ends(verb, local, tmp_path, number)
        killed = kills.kill(start(verb, *ends))
        assert _read(verb, server, tmp_path, number).items() <= contents.items()  # visible files are complete
        if killed and kills.killed < times:
            kills.kill(start(verb, *ends), from_start=False)
        assert start(verb, *ends).wait() == 0
        assert _read(verb, server, tmp_path, number) == contents
        if verb == "put":
            assert server.unfinished(BUCKET) == []
            objects = [{"Key": f"{number}/{name}"} for name in contents]
            server.client.delete_objects(Bucket=BUCKET, Delete={"Objects": objects})
        else:
            assert {path.name for path in (tmp_path / f"out{number}").iterdir()} == contents.keys()
        noted = (tmp_path / "state" / "cluster" / "transfers").glob("*.json")
        assert [path.read_text() for path in noted] == []
    assert kills.killed == times


def _ends(verb: str, local: Path, tmp_path: Path, number: int) -> tuple[str, str]:
    if verb == "put":
        return f"{local}/", f"s3://{BUCKET}/{number}/"
    return f"s3://{BUCKET}/there/", str(tmp_path / f"out{number}")


def _read(verb: str, server: S3Server, tmp_path: Path, number: int) -> dict[str, bytes]:
    """The visible files at a destination."""
    if verb == "put":
        prefix = f"{number}/"
        listed = server.client.list_objects_v2(Bucket=BUCKET, Prefix=prefix).get("Contents", [])
        keys = [item["Key"] for item in listed]
        read = {key: server.client.get_object(Bucket=BUCKET, Key=key)["Body"].read() for key in keys}
        return {key.removeprefix(prefix): content for key, content in read.items()}
    folder = tmp_path / f"out{number}"
    found = folder.iterdir() if folder.is_dir() else ()
    return {path.name: path.read_bytes() for path in found if not path.name.startswith(".cluster-get-")}
