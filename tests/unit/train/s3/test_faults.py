"""put and get with a busy S3, flipped bits and killed processes: the right bytes or an error, and nothing left over."""

import random
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from folders import read_files, write_files
from foundation.errors import ClusterError
from foundation.progress import silent
from http_server import Asked, Faults, Refusal, judging_proxy
from project import REPOSITORY
from s3_server import REGION, S3Server
from train.s3 import operations as s3
from train.s3.transfer import PART_BYTES

BUCKET = "datasets"
FLIPPED = 100_000  # the byte of a body that is damaged
SIZES = {"small": 300_000, "middle": 3_000_000, "large": PART_BYTES * 2 + 500_000}


def flip(faults: Faults, kind: str, body: bytes) -> bytes:
    if len(body) <= FLIPPED or not faults.take(kind):
        return body
    return body[:FLIPPED] + bytes([body[FLIPPED] ^ 0x10]) + body[FLIPPED + 1 :]


def copy(server: S3Server, folder: Path, verb: str, faults: Faults) -> None:
    """faults: "busy" answers 503, "sent" and "received" flip one bit of a body."""

    def judge(_: Asked) -> Refusal | None:
        return Refusal(status=503, code="SlowDown", message="Slower.") if faults.take("busy") else None

    path, url = str(folder / "x"), f"s3://{BUCKET}/x"
    received, sent = (lambda _, body, kind=kind: flip(faults, kind, body) for kind in ("received", "sent"))
    with judging_proxy(server.url, judge, received, sent):
        if verb == "put":
            s3.put([path], url, region=REGION, report=silent)
        else:
            s3.get([url], path, region=REGION)


def prepare(server: S3Server, folder: Path, verb: str, size: str) -> bytes:
    content = random.Random(1).randbytes(SIZES[size])
    server.put(BUCKET, {})
    if verb != "get":
        (folder / "x").write_bytes(content)
    if verb == "get":
        server.client.put_object(Bucket=BUCKET, Key="x", Body=content)
    if verb == "get what was put":  # its digests are of its parts
        s3.put([str(folder / "x")], f"s3://{BUCKET}/x", region=REGION, report=silent)
        (folder / "x").unlink()
    return content


@pytest.mark.parametrize(("verb", "size"), [("put", "large"), ("get", "small")])
def test_a_busy_s3_is_asked_again(server: S3Server, tmp_path: Path, verb: str, size: str) -> None:
    content = prepare(server, tmp_path, verb, size)
    done = Faults(busy=3)
    copy(server, tmp_path, verb, done)
    assert done.done
    assert server.read(BUCKET) == {"x": content}
    assert read_files(tmp_path) == {"x": content}
    assert server.unfinished(BUCKET) == []


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("verb", ["put", "get", "get what was put"])
def test_damage_is_an_error(server: S3Server, tmp_path: Path, verb: str, size: str) -> None:
    content = prepare(server, tmp_path, verb, size)
    with pytest.raises(ClusterError):
        copy(server, tmp_path, verb, Faults(sent=10**6, received=10**6))
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


@pytest.mark.parametrize("verb", ["put", "get"])
def test_killed_while_it_copies(server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str) -> None:
    """What is visible is complete, and the next run copies the rest and removes what the killed one left."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    contents = {f"{number}.rec": random.Random(number).randbytes(size) for number, size in enumerate(SIZES.values())}
    server.put(BUCKET, {})
    write_files(tmp_path / "in", contents)
    begun, go_on = threading.Event(), threading.Event()

    def hold(asked: Asked) -> None:
        if "partNumber=2" in asked.query or (asked.from_byte or 0) > 0:
            begun.set()
            go_on.wait()

    source, target = (
        (f"{tmp_path / 'in'}/", f"s3://{BUCKET}/") if verb == "put" else (f"s3://{BUCKET}/", str(tmp_path / "out"))
    )
    if verb == "get":
        for name, content in contents.items():
            server.put_object(BUCKET, name, content)
    words = [sys.executable, "-c", COMMAND, verb, source, target]
    with judging_proxy(server.url, hold):
        killed = subprocess.Popen(words, cwd=REPOSITORY)
        assert begun.wait(60)
        killed.kill()
        killed.wait()
        go_on.set()
        seen = server.read(BUCKET) if verb == "put" else read_files(tmp_path / "out")
        visible = {name: content for name, content in seen.items() if not name.startswith(".cluster-get-")}
        assert visible.items() < contents.items()
        subprocess.run(words, cwd=REPOSITORY, check=True)
    assert (server.read(BUCKET) if verb == "put" else read_files(tmp_path / "out")) == contents
    assert server.unfinished(BUCKET) == []
    assert list((tmp_path / "state").rglob("*.json")) == []


KILLS = 50
MANY = (100, 500_000, 3_000_000, 9_000_000, *range(0, 30_000, 1000))  # bytes, of every tier of train.s3.transfer


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["put", "get"])
def test_killed_at_random_moments(server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    moments = random.Random(5)
    contents = {f"{number}.rec": random.Random(number).randbytes(size) for number, size in enumerate(MANY)}
    write_files(tmp_path / "in", contents)
    server.put(BUCKET, {f"in/{name}": content for name, content in contents.items()} if verb == "get" else {})

    def start(number: int) -> "subprocess.Popen[bytes]":
        here, there = (str(tmp_path / "in"), f"s3://{BUCKET}/{number}")
        if verb == "get":
            here, there = (f"s3://{BUCKET}/in", str(tmp_path / str(number)))
        return subprocess.Popen([sys.executable, "-c", COMMAND, verb, f"{here}/", f"{there}/"], cwd=REPOSITORY)

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
