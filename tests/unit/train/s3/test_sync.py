"""put and get (unchanged files, --delete, --exclude, declined plans), with moto's S3."""

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from folders import read_files, write_files
from foundation.errors import UsageError
from foundation.progress import silent
from foundation.user_folders import state_folder
from s3_server import REGION, S3Server
from train.s3 import operations as s3
from train.s3.run_journal import Run, noted
from train.s3.transfer import PART_BYTES
from train.s3.transfer_plan import Download, Upload

BUCKET = "datasets"
TREE = {"a.rec": b"aaa", "sub/b.rec": b"bbb", "sub/c.txt": b"c", "notes.txt": b"n"}


@pytest.fixture(autouse=True)
def _bucket(server: S3Server) -> None:
    server.put(BUCKET, {})


@pytest.fixture
def local(tmp_path: Path) -> Path:
    write_files(tmp_path / "local", TREE)
    return tmp_path / "local"


def put(source: Path, url: str, **more: Any) -> s3.Done:
    return s3.put([str(source)], url, region=REGION, report=silent, **more)


def get(url: str, target: Path, **more: Any) -> s3.Done:
    return s3.get([url], str(target), region=REGION, **more)


def test_unchanged_files_are_not_sent_again(server: S3Server, local: Path) -> None:
    big = os.urandom(2 * PART_BYTES + 5)
    write_files(local, {"big.rec": big})
    assert len(put(local, f"s3://{BUCKET}/in/").plan.transfers) == 5
    for path in local.rglob("*.*"):
        os.utime(path, (1, 1))
    done = put(local, f"s3://{BUCKET}/in/")
    assert (done.plan.transfers, len(done.plan.unchanged)) == ((), 5)
    write_files(local, {"a.rec": b"AAA", "big.rec": big[:-1] + bytes([big[-1] ^ 1])})
    done = put(local, f"s3://{BUCKET}/in/")
    assert {item.source.name for item in done.plan.transfers if isinstance(item, Upload)} == {"a.rec", "big.rec"}


def test_unchanged_files_are_not_fetched_again(server: S3Server, local: Path, tmp_path: Path) -> None:
    put(local, f"s3://{BUCKET}/in/")
    assert len(get(f"s3://{BUCKET}/in/", tmp_path / "out").plan.transfers) == 4
    write_files(tmp_path / "out", {"a.rec": b"xxx"})
    done = get(f"s3://{BUCKET}/in/", tmp_path / "out")
    assert [item.destination.name for item in done.plan.transfers if isinstance(item, Download)] == ["a.rec"]
    assert read_files(tmp_path / "out") == TREE


def test_checksums_are_compared_if_the_etag_is_useless(server: S3Server, local: Path) -> None:
    server.client.put_object(
        Bucket=BUCKET, Key="in/a.rec", Body=b"aaa", ServerSideEncryption="aws:kms", ChecksumAlgorithm="CRC32"
    )
    assert len(put(local, f"s3://{BUCKET}/in/").plan.unchanged) == 1


def test_put_deletes_what_the_source_lacks(server: S3Server, local: Path) -> None:
    server.put("other", {"in/x": b""})
    put(local, f"s3://{BUCKET}/in/")
    for key in ("in/old.rec", "in/old/x.log", "inside", "in/marker/", "x"):
        server.client.put_object(Bucket=BUCKET, Key=key, Body=b"")
    put(local, f"s3://{BUCKET}/in/", delete=True, exclude=["*.log"])
    assert set(server.read(BUCKET)) == {*(f"in/{name}" for name in TREE), "in/old/x.log", "inside", "in/marker/", "x"}
    assert server.read("other") == {"in/x": b""}


def test_get_deletes_only_in_the_folder(server: S3Server, local: Path, tmp_path: Path) -> None:
    put(local, f"s3://{BUCKET}/in/")
    write_files(tmp_path / "elsewhere", {"kept": b"1"})
    write_files(tmp_path / "out", {"old": b"", "sub/old": b"", "keep.log": b""})
    (tmp_path / "out" / "link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "out" / "file").symlink_to(tmp_path / "elsewhere" / "kept")
    get(f"s3://{BUCKET}/in/", tmp_path / "out", delete=True, exclude=["*.log"])
    assert (tmp_path / "elsewhere" / "kept").read_bytes() == b"1"
    (tmp_path / "out" / "link").unlink()
    assert read_files(tmp_path / "out") == {**TREE, "keep.log": b""}


def test_delete_is_for_whole_folders(server: S3Server, local: Path, tmp_path: Path) -> None:
    put(local, f"s3://{BUCKET}/in/")
    for source in (local / "a.rec", local / "*.rec"):
        with pytest.raises(UsageError, match="--delete would delete everything else"):
            put(source, f"s3://{BUCKET}/in/", delete=True)
    for url in ("in/a.rec", "in/*"):
        with pytest.raises(UsageError, match="--delete would delete everything else"):
            get(f"s3://{BUCKET}/{url}", tmp_path / "out", delete=True)
    with pytest.raises(UsageError, match="the destination is empty"):  # and not the current folder
        s3.get([f"s3://{BUCKET}/in/"], "", region=REGION, delete=True)
    assert len(server.read(BUCKET)) == 4


def test_exclude(server: S3Server, local: Path) -> None:
    write_files(local, {"deep/x/d": b"d"})
    put(local, f"s3://{BUCKET}/", exclude=["sub/*.rec", "notes.*", "x"])
    assert set(server.read(BUCKET)) == {"a.rec", "sub/c.txt"}


def leave_killed(run: Run) -> None:
    """Leaves a run's file in the journal, unlocked, as a killed run does."""
    with suppress(ZeroDivisionError), noted(run):
        raise ZeroDivisionError


def test_only_uploads_of_killed_runs_are_aborted(server: S3Server, local: Path) -> None:
    for key in ("out/x", "in/theirs", "in/elsewhere", "in/at-work"):
        server.client.create_multipart_upload(Bucket=BUCKET, Key=key)
    leave_killed(Run(endpoint=server.url, bucket=BUCKET, keys=("out/x",)))
    leave_killed(Run(endpoint="https://another", bucket=BUCKET, keys=("in/elsewhere",)))
    leave_killed(Run(endpoint=server.url, bucket="gone", keys=("x",)))
    unwritten = state_folder() / "transfers" / "killed-before-it-was-written.json"
    unwritten.touch()
    with noted(Run(endpoint=server.url, bucket=BUCKET, keys=("in/at-work",))):
        put(local, f"s3://{BUCKET}/in/")
    assert sorted(server.unfinished(BUCKET)) == ["in/at-work", "in/elsewhere", "in/theirs"]
    assert not unwritten.exists()
