"""The copy of $CLUSTER_OUTPUT_DIR to S3 in the process: whole files alone, with faults of S3."""

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from http_server import Asked, Refusal, judging_proxy
from node.agent.work_folder import count_new
from node.job_folder import path as job_path
from node.protocol import SAVED_AT, NewFiles
from node.staging import outputs, s3, s3_store
from node.staging.local_data import LocalData
from node.staging.outputs import Outputs
from s3_server import REGION, S3Server, serve_s3_alone

JOB, PREFIX = "20261128-120000-abcdef", "r/JOB/output/node-1/"


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with serve_s3_alone() as server:
        yield server


@pytest.fixture
def bucket(server: S3Server, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """A new bucket, and a home folder with the job's folder on this node."""
    monkeypatch.setenv("HOME", str(tmp_path))
    Path(job_path(JOB, "output")).mkdir(parents=True)
    monkeypatch.setattr(outputs, "RETRY_S", 0.1)
    name = f"b{abs(hash(request.node.name))}"
    server.put(name, {})
    return name


def make_env(url: str, bucket: str) -> dict[str, str]:
    given = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing", "S3_REGION": REGION}
    job = {"CLUSTER_OUTPUT_URL": f"s3://{bucket}/r/JOB/", "CLUSTER_OUTPUT_DIR": job_path(JOB, "output")}
    return {**given, **job, "AWS_ENDPOINT_URL": url, "CLUSTER_HOST": "node-1"}


def write(name: str, content: bytes, age_s: float = 60.0) -> Path:
    """A file of the job, last changed so long ago."""
    file = Path(job_path(JOB, "output", name))
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)
    os.utime(file, (time.time() - age_s,) * 2)
    return file


@contextmanager
def refusing(server: S3Server, refused: threading.Event) -> Iterator[str]:
    """S3, which refuses everything while the event is set."""

    def judge(_: Asked) -> Refusal | None:
        return Refusal(status=403, code="AccessDenied", message="no") if refused.is_set() else None

    with judging_proxy(server.url, judge, lambda _, body: body) as proxy:
        yield proxy.url


def copy_all(env: dict[str, str], message: Callable[[str], None]) -> None:
    copy = Outputs(JOB, env, message)
    copy.begin()
    copy.finish()
    copy.report_left()


def read(server: S3Server, bucket: str) -> dict[str, bytes]:
    return {key.removeprefix(PREFIX): content for key, content in server.read(bucket).items()}


def test_complete_files_are_copied_while_the_job_runs(server: S3Server, bucket: str) -> None:
    copy = Outputs(JOB, make_env(server.url, bucket), print)
    copy.begin()
    write("net/a.params", b"old")
    write("fresh", b"just written", age_s=-600.0)  # never quiet, however slow this machine is
    with write("open", b"half").open("ab") as file:
        os.utime(file.fileno(), (1.0, 1.0))
        assert sorted(copy.copy()) == ["fresh", "open"]
        assert read(server, bucket) == {"net/a.params": b"old"}
        file.write(b" and half")
    copy.finish()
    assert read(server, bucket) == {"net/a.params": b"old", "fresh": b"just written", "open": b"half and half"}
    assert count_new(JOB, "node-1", copy.is_copied) == NewFiles(host="node-1", count=0, copied=3)
    write("fresh", b"changed")
    assert count_new(JOB, "node-1", copy.is_copied).count == 1


def test_a_file_that_is_replaced_all_the_time_is_copied(server: S3Server, bucket: str) -> None:
    """Such as the list of checkpoints. One that is written in place, such as a table, has to be quiet."""
    copy = Outputs(JOB, make_env(server.url, bucket), print)
    file = write("list", b"1", age_s=0.0)
    assert copy.copy() == ["list"]
    write("draft", b"2", age_s=0.0).rename(file)
    with file.open("r+b"):
        assert copy.copy() == ["list"]
    write("draft", b"3", age_s=0.0).rename(file)
    assert copy.copy() == []
    write("list", b"4", age_s=0.0)
    assert copy.copy() == ["list"]
    assert read(server, bucket) == {"list": b"3"}


def test_what_a_killed_program_was_writing_replaces_nothing(
    server: S3Server, bucket: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("net", "log", "closed"):
        server.client.put_object(Bucket=bucket, Key=f"{PREFIX}{name}", Body=b"old")
    copy = Outputs(JOB, make_env(server.url, bucket), print)
    copy.begin()
    with write("net", b"half").open("r+b") as _, write("log", b"line").open("ab") as _:
        copy.note_open()  # then the program is killed
    write("closed", b"new")
    copy.finish()
    names = {"net": b"old", "net.incomplete": b"half", "log": b"line", "closed": b"new"}
    assert read(server, bucket) == names
    assert f"node-1: net is copied as s3://{bucket}/{PREFIX}net.incomplete: its program was" in capsys.readouterr().out
    copy_all(make_env(server.url, bucket), print)  # the next attempt does not copy a part under the file's name
    assert read(server, bucket)["net"] == b"old"


def test_a_file_may_be_a_part_if_something_else_killed_its_program(server: S3Server, bucket: str) -> None:
    copy = Outputs(JOB, make_env(server.url, bucket), print)
    with write("open", b"half").open("r+b") as _, write("log", b"line").open("ab") as _:
        copy.copy()
    write("new", b"half", age_s=-1)
    write("old", b"whole")
    copy.note_killed()
    copy.begin()
    copy.finish()
    names = {"open.incomplete": b"half", "log": b"line", "new.incomplete": b"half", "old": b"whole"}
    assert read(server, bucket) == names


@pytest.mark.parametrize("size", [1000, pytest.param(s3.ONE_PUT_BYTES + 1, marks=pytest.mark.slow)])
def test_a_file_that_changes_meanwhile_is_not_copied(server: S3Server, bucket: str, size: int) -> None:
    store = s3.Store(make_env(server.url, bucket))
    file = write("net", bytes(size))
    with pytest.raises(s3_store.Changed):
        store.put_file(str(file), f"s3://{bucket}/net", (size, file.stat().st_mtime_ns - 1))
    assert server.read(bucket) == {}
    store.put_file(str(file), f"s3://{bucket}/net", (size, file.stat().st_mtime_ns))
    assert server.read(bucket) == {"net": bytes(size)}


def test_large_files_have_no_more_parts_than_s3_allows(
    server: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3, "ONE_PUT_BYTES", 1)
    monkeypatch.setattr(s3, "PART_BYTES", 1 << 20)
    monkeypatch.setattr(s3_store, "MAX_PARTS", 2)
    content = bytes((10 << 20) + 1)
    etag = s3.Store(make_env(server.url, bucket)).put_file(str(write("net", content)), f"s3://{bucket}/net")
    assert etag.endswith('-2"')
    assert server.read(bucket) == {"net": content}


def fetch(env: dict[str, str]) -> tuple[Outputs, list[str]]:
    """Brings what S3 has, as an agent does. Returns the names of the files that were fetched."""
    copy = Outputs(JOB, env, print)
    saved = copy.find_saved()
    with closing(LocalData(env, print)) as data:
        data.bring([], saved)
    copy.note_saved(saved)
    return copy, sorted(Path(path).name for _, path in saved)


def test_what_a_job_saves_at_a_url_is_there_for_its_next_attempt(server: S3Server, bucket: str, tmp_path: Path) -> None:
    url = f"s3://{bucket}/models/net"
    for name in ("net-1", "net-2", "net/of-a-folder", "other"):
        server.client.put_object(Bucket=bucket, Key=f"models/{name}", Body=b"old")
    server.client.put_object(Bucket=bucket, Key="models/net-removed", Body=b"")
    env = {**make_env(server.url, bucket), SAVED_AT: url, "CLUSTER_DATA_CACHE_DIR": str(tmp_path / "cache")}
    copy, names = fetch(env)
    assert names == ["net-1", "net-2", "of-a-folder"]
    modified = server.client.head_object(Bucket=bucket, Key="models/net-1")["LastModified"]
    assert Path(f"{copy.paths[url]}-1").stat().st_mtime == modified.timestamp()
    assert copy.copy() == []
    prefix = copy.paths[url]
    write(f"s3/{bucket}/models/net-2", b"new")
    write(f"s3/{bucket}/models/stray", b"1")
    server.client.put_object(Bucket=bucket, Key="models/net-1", Body=b"of another node")
    again, names = fetch(env)
    assert names == ["net-1"]
    assert Path(f"{prefix}-1").read_bytes() == b"of another node"
    assert Path(f"{prefix}-2").read_bytes() == b"new"
    again.copy()
    assert read(server, bucket) == {
        "models/net-1": b"of another node",
        "models/net-2": b"new",
        "models/net-removed": b"",
        "models/net/of-a-folder": b"old",
        "models/other": b"old",
        f"s3/{bucket}/models/stray": b"1",
    }
    assert fetch(env)[1] == []


def test_s3_that_is_away_for_a_while_gets_all_files(server: S3Server, bucket: str) -> None:
    messages: list[str] = []
    refused = threading.Event()
    refused.set()
    write("net", b"1")
    with refusing(server, refused) as url:
        copy = Outputs(JOB, make_env(url, bucket), messages.append)
        copy.begin()
        assert copy.copy() == ["net"]
        refused.clear()
        copy.finish()
    assert read(server, bucket) == {"net": b"1"}
    assert len(messages) == 1
    assert "node-1: $CLUSTER_OUTPUT_DIR cannot be copied now: " in messages[0]


@pytest.mark.parametrize(("there", "name"), [(False, "net"), (True, "two\nlines")])
def test_the_end_does_not_wait_in_vain(server: S3Server, bucket: str, name: str, *, there: bool) -> None:
    """For a bucket that does not exist, and for a name that no object can have."""
    messages: list[str] = []
    write(name, b"1")
    began = time.monotonic()
    copy_all(make_env(server.url, bucket if there else "no-such-bucket"), messages.append)
    assert time.monotonic() - began < outputs.GIVE_UP_S / 2
    assert "not copied to" in messages[-1]


def test_files_that_are_not_copied_are_named(server: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outputs, "GIVE_UP_S", 0.0)
    messages: list[str] = []
    refused = threading.Event()
    refused.set()
    for number in range(7):
        write(f"f-{number}", b"1", age_s=60 - number)
    with refusing(server, refused) as url:
        copy_all(make_env(url, bucket), messages.append)
    assert messages[-1] == (
        f"node-1: not copied to s3://{bucket}/{PREFIX}: f-0, f-1, f-2, f-3, f-4 and 2 more; they are in "
        f"{job_path(JOB, 'output')}"
    )
