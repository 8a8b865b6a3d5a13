"""Uploads in parts of which S3's answers are lost, and notes of them: nothing that S3 bills for is left behind."""

import os
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from bootstrap.shelf import BundleFile, describe_file
from faulty_s3 import Trouble, troubled_proxy
from provision.errors import ClusterError
from provision.progress import Event, silent
from s3_server import REGION, S3Server, serve_s3_alone
from train.s3 import operations as s3
from train.s3 import wire
from train.s3.journal import Begun, Journal, find_journal
from train.s3.store import S3Store
from train.s3.transfer import PART_BYTES, Unwatched

BUCKET = "datasets"
CONTENT = os.urandom(2 * PART_BYTES + 5)
CREATE = ("POST", "uploads")
COMPLETE = ("POST", "uploadId=")
LIST_PARTS = ("GET", "uploadId=")
DAY_S = 24 * 3600


@pytest.fixture(scope="module")
def shared_server() -> Iterator[S3Server]:
    with serve_s3_alone() as server:
        yield server


@pytest.fixture
def server(shared_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(wire, "ATTEMPTS", 2)  # else what always fails takes a quarter of a minute
    shared_server.put(BUCKET, {})
    yield shared_server
    shared_server.reset()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "x.rec"
    path.write_bytes(CONTENT)
    return path


def put(source: Path, destination: str = f"s3://{BUCKET}/in/") -> list[Event]:
    events: list[Event] = []
    s3.put([str(source)], destination, region=REGION, report=events.append, watch=lambda _: Unwatched())
    return events


def notes() -> list[Path]:
    return sorted(Path(os.environ["XDG_STATE_HOME"]).rglob("*.upload"))


def note(server: S3Server, key: str, *, bucket: str = BUCKET, age_s: float = 0, source: Path | None = None) -> str:
    """Begin an upload as a run does that is killed soon after; its id."""
    status = source.stat() if source else None
    begun = Begun(
        endpoint=server.url,
        bucket=bucket,
        key=key,
        source=str(source or "/nowhere"),
        size_bytes=status.st_size if status else 1,
        mtime_ns=status.st_mtime_ns if status else 1,
        others=[],
    )
    before = set(notes())
    entry = find_journal().begin(begun)
    upload_id = str(server.client.create_multipart_upload(Bucket=bucket, Key=key)["UploadId"])
    entry.note_id(upload_id)
    entry.release()
    (path,) = set(notes()) - before
    os.utime(path, (time.time() - age_s,) * 2)
    return upload_id


@pytest.mark.parametrize("kind", ["lose", "belie"])
@pytest.mark.parametrize("request_", [CREATE, COMPLETE], ids=["create", "complete"])
def test_an_answer_that_is_lost_once(
    server: S3Server,
    source: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    request_: tuple[str, str],
) -> None:
    theirs = server.client.create_multipart_upload(Bucket=BUCKET, Key="in/x.rec")["UploadId"]
    trouble = Trouble(kind, *request_, times=1)
    with troubled_proxy(server.url, trouble) as url:
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        put(source)
    assert trouble.done == 1
    assert server.read(BUCKET) == {"in/x.rec": CONTENT}
    assert server.upload_ids(BUCKET) == [theirs]
    assert notes() == []


@pytest.mark.parametrize("kind", ["refuse", "lose", "belie"])
@pytest.mark.parametrize("request_", [CREATE, COMPLETE], ids=["create", "complete"])
def test_answers_that_are_lost_again_and_again(
    server: S3Server,
    source: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    request_: tuple[str, str],
) -> None:
    theirs = server.client.create_multipart_upload(Bucket=BUCKET, Key="in/x.rec")["UploadId"]
    trouble = Trouble(kind, *request_)
    with troubled_proxy(server.url, trouble) as url:
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        with pytest.raises(ClusterError, match="1 of 1 files failed"):
            put(source)
        assert trouble.done == 2
        assert server.read(BUCKET) in ({}, {"in/x.rec": CONTENT})
        assert len(notes()) == 1
        trouble.times = trouble.done  # it is over, and the same command is run again
        assert put(source) == []
    assert server.read(BUCKET) == {"in/x.rec": CONTENT}
    assert server.upload_ids(BUCKET) == [theirs]
    assert notes() == []


def test_an_upload_stays_known_where_s3_cannot_say_what_is_there_of_it(
    server: S3Server, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trouble = Trouble("refuse", *COMPLETE)
    with troubled_proxy(server.url, trouble) as url:
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        with pytest.raises(ClusterError):
            put(source)
        (begun,) = server.upload_ids(BUCKET)
        trouble.method, trouble.query = LIST_PARTS
        asked = trouble.done
        with pytest.raises(ClusterError):
            put(source)
        assert trouble.done == asked + 2
        assert server.upload_ids(BUCKET) == [begun]
        trouble.times = trouble.done
        put(source)
    assert server.read(BUCKET) == {"in/x.rec": CONTENT}
    assert server.upload_ids(BUCKET) == []
    assert notes() == []


def test_what_another_program_sends_meanwhile_is_left_alone(
    server: S3Server, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It cannot be told from ours by its name, but ours have no parts."""
    trouble = Trouble("refuse", *CREATE)
    with troubled_proxy(server.url, trouble) as url:
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        with pytest.raises(ClusterError):
            put(source)
        target = {"Bucket": BUCKET, "Key": "in/x.rec"}
        theirs = server.client.create_multipart_upload(**target)["UploadId"]
        server.client.upload_part(**target, UploadId=theirs, PartNumber=1, Body=b"x")
        trouble.times = trouble.done
        put(source)
    assert server.upload_ids(BUCKET) == [theirs]


def test_a_refusal_leaves_no_note(server: S3Server, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with server.caller_who_may("s3:ListBucket", "s3:ListBucketMultipartUploads") as (key_id, secret):
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", key_id)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret)
        with pytest.raises(ClusterError, match="s3:PutObject is needed"):
            put(source)
    assert notes() == []


def test_what_was_begun_elsewhere_is_ended_after_a_day(server: S3Server, source: Path) -> None:
    server.put("other", {})
    at_once = [note(server, "in/y")]
    young = [note(server, "out/z"), note(server, "z", bucket="other"), note(server, "inside/z")]
    old = [note(server, "out/z", age_s=DAY_S + 60), note(server, "z", bucket="other", age_s=DAY_S + 60)]
    assert put(source) == []
    left = {*server.upload_ids(BUCKET), *server.upload_ids("other")}
    assert left == set(young)
    assert not left & {*at_once, *old}


def test_what_is_gone_on_with_is_young_again(server: S3Server, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = note(server, "in/x.rec", age_s=DAY_S + 60, source=source)
    trouble = Trouble("refuse", *COMPLETE)
    (path,) = notes()
    with troubled_proxy(server.url, trouble) as url:
        path.write_text(path.read_text().replace(server.url, url))
        os.utime(path, (1, 1))
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        with pytest.raises(ClusterError):
            put(source)
        (source.parent / "else").touch()
        put(source.parent / "else", f"s3://{BUCKET}/elsewhere/")
    assert server.upload_ids(BUCKET) == [begun]


def test_what_cannot_be_ended_is_said_and_kept(server: S3Server, source: Path) -> None:
    server.put("other", {})
    note(server, "z", bucket="other", age_s=DAY_S + 60)
    note(server, "gone", bucket="other", age_s=DAY_S + 60)
    with (
        server.caller_who_may("s3:ListBucket", "s3:PutObject", "s3:ListBucketMultipartUploads") as (key_id, secret),
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("AWS_ACCESS_KEY_ID", key_id)
        patch.setenv("AWS_SECRET_ACCESS_KEY", secret)
        events = put(source)
    assert {(event.kind, event.where) for event in events} == {("warn", "s3://other/z"), ("warn", "s3://other/gone")}
    assert "s3:AbortMultipartUpload is needed" in events[0].what
    assert len(notes()) == 2
    assert put(source) == []
    assert notes() == []


@pytest.mark.parametrize(
    "text",
    [
        '{"endpoint": "cut o\n',
        "[1]\n",
        "null\n",
        '{"format": 2}\n',
        '{"endpoint": "x", "bucket": "b", "key": 5, "source": "s", "size_bytes": 1, "mtime_ns": 1, "others": null}\n',
        '{"endpoint": "x", "bucket": "b", "key": "k", "source": "s", "size_bytes": 1, "mtime_ns": 1, "others": 3}\n',
        "\udcff\udcfe\n",
        None,
    ],
)
def test_a_note_that_cannot_be_read_is_told_of_and_left(
    server: S3Server, source: Path, tmp_path: Path, text: str | None
) -> None:
    ours = note(server, "in/y")
    path = tmp_path / "state" / "cluster" / "uploads" / "0.upload"
    if text is None:
        path.mkdir()
    else:
        path.write_bytes(text.encode(errors="surrogateescape"))
    (event,) = put(source)
    assert (event.kind, event.where) == ("warn", str(path))
    assert path.exists()
    assert text is None or path.read_bytes() == text.encode(errors="surrogateescape")
    assert server.read(BUCKET) == {"in/x.rec": CONTENT}
    assert ours not in server.upload_ids(BUCKET)


def test_an_id_that_was_noted_in_part_is_none(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    begun = Begun(endpoint="e", bucket="b", key="k", source="s", size_bytes=1, mtime_ns=1, others=["o"])
    journal.begin(begun).release()
    (path,) = tmp_path.iterdir()
    whole = path.read_text()
    path.write_text(whole + "half")
    (entry,) = journal.take_abandoned(endpoint="e", report=silent)
    assert asdict(entry.begun) == asdict(begun)
    entry.release()
    path.write_text(whole + "whole\n")
    (entry,) = journal.take_abandoned(endpoint="e", report=silent)
    assert entry.begun.upload_id == "whole"
    entry.release()


@pytest.fixture
def wheel(source: Path) -> BundleFile:
    return describe_file(source)


def share(wheel: BundleFile) -> list[Event]:
    events: list[Event] = []
    S3Store(f"s3://{BUCKET}/wheels", region=REGION, report=events.append).share([wheel], lambda file: file.path)
    return events


def test_wheels_of_an_up_that_was_killed_are_gone_on_with(
    server: S3Server, wheel: BundleFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    trouble = Trouble("refuse", *COMPLETE)
    with troubled_proxy(server.url, trouble) as url:
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        with pytest.raises(ClusterError):
            share(wheel)
        assert len(server.upload_ids(BUCKET)) == 1
        trouble.method, trouble.query = CREATE  # which is not asked for
        asked = trouble.done
        share(wheel)
        assert trouble.done == asked
    assert server.read(BUCKET) == {f"wheels/{wheel.sha256}/x.rec": CONTENT}
    assert server.upload_ids(BUCKET) == []
    assert notes() == []


def test_wheels_that_are_not_wanted_any_more_are_ended(server: S3Server, wheel: BundleFile) -> None:
    share(wheel)
    note(server, "wheels/0123/old.whl")
    assert share(wheel) == []
    assert server.upload_ids(BUCKET) == []
    assert notes() == []
