"""put and get with a busy S3, bits that turn, processes that are killed: right bytes or an error; nothing is left."""

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from foundation.errors import ClusterError
from foundation.progress import silent
from kills import Kills
from project import REPOSITORY
from s3_proxies import Faults, faulty_proxy
from s3_server import REGION, S3Server
from train.s3 import operations as s3
from train.s3.transfer import PART_BYTES

BUCKET = "datasets"
SIZES = {"small": 300_000, "middle": 3_000_000, "large": PART_BYTES * 2 + 500_000}


def put(source: Path, destination: str) -> None:
    s3.put([str(source)], destination, region=REGION, report=silent)


def get(source: str, destination: Path) -> None:
    s3.get([source], str(destination), region=REGION)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    "faults", [{"busy": 3}, {"sent": 1}, pytest.param({"sent": 2}, marks=pytest.mark.slow)], ids=str
)
def test_put_through_faults(
    server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: str, faults: dict[str, int]
) -> None:
    content = random.Random(1).randbytes(SIZES[size])
    (tmp_path / "x").write_bytes(content)
    server.put(BUCKET, {})
    done = Faults(**faults)
    with faulty_proxy(server.url, done) as url:
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        put(tmp_path / "x", f"s3://{BUCKET}/x")
    assert done.done
    assert server.read(BUCKET) == {"x": content}
    assert server.unfinished(BUCKET) == []


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    "faults", [{"busy": 3}, {"received": 1}, pytest.param({"received": 2}, marks=pytest.mark.slow)], ids=str
)
def test_get_through_faults(
    server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: str, faults: dict[str, int]
) -> None:
    content = random.Random(1).randbytes(SIZES[size])
    server.put(BUCKET, {})
    server.client.put_object(Bucket=BUCKET, Key="x", Body=content)
    done = Faults(**faults)
    with faulty_proxy(server.url, done) as url:
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        get(f"s3://{BUCKET}/x", tmp_path / "x")
    assert done.done
    assert (tmp_path / "x").read_bytes() == content
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


@pytest.mark.parametrize("size", SIZES)
def test_what_is_always_damaged_is_an_error(
    server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: str
) -> None:
    content = random.Random(1).randbytes(SIZES[size])
    server.put(BUCKET, {})
    (tmp_path / "up").write_bytes(content)
    with faulty_proxy(server.url, Faults(sent=10**6)) as url:
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        with pytest.raises(ClusterError):
            put(tmp_path / "up", f"s3://{BUCKET}/x")
    assert server.read(BUCKET) == {}
    server.client.put_object(Bucket=BUCKET, Key="x", Body=content)
    with faulty_proxy(server.url, Faults(received=10**6)) as url:
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        with pytest.raises(ClusterError):
            get(f"s3://{BUCKET}/x", tmp_path / "x")
    assert not (tmp_path / "x").exists()


COMMAND = """
import sys
from train.s3 import operations as s3
from foundation.progress import silent
verb, source, destination = sys.argv[1:]
more = {"report": silent} if verb == "put" else {}
getattr(s3, verb)([source], destination, region="eu-west-1", **more)
"""


def start(verb: str, source: str, destination: str) -> "subprocess.Popen[bytes]":
    """put or get in a process of its own."""
    return subprocess.Popen([sys.executable, "-c", COMMAND, verb, source, destination], cwd=REPOSITORY)


@pytest.mark.parametrize(
    "times", [pytest.param(3), pytest.param(50, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])]
)
@pytest.mark.parametrize("verb", ["put", "get"])
def test_killed_at_random_moments(
    server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str, times: int
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    generator = random.Random(5)
    sizes = [100, 500_000, 3_000_000, 9_000_000, *generator.choices(range(30_000), k=30)]  # small ones go another way
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
        assert _read(verb, server, tmp_path, number).items() <= contents.items()  # what can be seen is whole
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
    """What can be seen at a destination."""
    if verb == "put":
        prefix = f"{number}/"
        listed = server.client.list_objects_v2(Bucket=BUCKET, Prefix=prefix).get("Contents", [])
        keys = [item["Key"] for item in listed]
        read = {key: server.client.get_object(Bucket=BUCKET, Key=key)["Body"].read() for key in keys}
        return {key.removeprefix(prefix): content for key, content in read.items()}
    folder = tmp_path / f"out{number}"
    found = folder.iterdir() if folder.is_dir() else ()
    return {path.name: path.read_bytes() for path in found if not path.name.startswith(".cluster-get-")}
