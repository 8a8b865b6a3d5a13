"""Jobs as S3 has them, by the real s3fs against moto's S3 over HTTP."""

import io
import json
from collections.abc import Iterator
from typing import Any

import pytest

from foundation.errors import ClusterError, NotFoundError
from job_channels import LOG
from s3_server import REGION, S3Server, serve_s3_alone
from train.job import s3_jobs
from train.job.s3_jobs import fetch_s3_log, read_s3_records

RESULTS = "s3://results/jobs/"


@pytest.fixture(scope="module")
def shared_server() -> Iterator[S3Server]:
    with serve_s3_alone() as server:
        yield server


@pytest.fixture
def server(shared_server: S3Server) -> Iterator[S3Server]:
    yield shared_server
    shared_server.reset()


def document(job: str) -> dict[str, Any]:
    times = {"submitted_at": 1.0, "started_at": None, "ended_at": None}
    counts = {"workers": 2, "servers": 2, "exit_code": None, "error": None}
    return {"id": job, "name": "mine", "state": "queued", **times, **counts}


def record(job: str) -> bytes:
    return json.dumps(document(job)).encode()


def test_records_are_found_and_other_things_are_left_out(server: S3Server) -> None:
    objects = {f"jobs/2026112{day}-0/record.json": record(f"2026112{day}-0") for day in range(1, 4)}
    others = {
        "jobs/models/x.params": b"x",
        "jobs/broken/record.json": b"{",
        "jobs/other/record.json": b'{"id": 1}',
        "jobs/list/record.json": b"[1]",
        "jobs/file": b"",
    }
    server.put("results", {**objects, **others})
    records = read_s3_records(RESULTS, region=REGION)
    assert [found.id for found in records] == ["20261123-0", "20261122-0", "20261121-0"]
    assert {found.source for found in records} == {"s3"}


def test_a_damaged_record_is_told_and_hides_no_other(server: S3Server) -> None:
    damaged = {"000000": b"{", "000001": b"[" * 10**5, "000002": b"{}", "000003": b" " * (3 << 20)}
    objects = {f"jobs/20261121-{time}-abcdef/record.json": text for time, text in damaged.items()}
    server.put("results", {**objects, "jobs/20261120-0/record.json": record("20261120-0")})
    *others, good = read_s3_records(RESULTS, region=REGION)
    assert (good.id, good.state) == ("20261120-0", "queued")
    assert sorted((found.id, found.state) for found in others) == [
        (f"20261121-{time}-abcdef", "damaged") for time in damaged
    ]
    assert any("longer than 1 MiB" in str(found.error) for found in others)


def test_the_newest_records_are_read_where_there_are_many(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3_jobs, "MAX_RECORDS", 2)
    server.put("results", {f"jobs/2026112{day}/record.json": record(f"2026112{day}") for day in range(5)})
    assert [found.id for found in read_s3_records(RESULTS, region=REGION)] == ["20261124", "20261123"]


@pytest.mark.usefixtures("server")
def test_a_bucket_that_does_not_exist_has_no_jobs() -> None:
    assert read_s3_records(RESULTS, region=REGION) == ()
    with pytest.raises(NotFoundError):
        fetch_s3_log(RESULTS, "j1", region=REGION, into=io.BytesIO())


def test_a_log_comes_whole(server: S3Server) -> None:
    server.put("results", {"jobs/j1/events": LOG})
    into = io.BytesIO()
    fetch_s3_log(RESULTS, "j1", region=REGION, into=into)
    assert into.getvalue() == LOG
    with pytest.raises(NotFoundError, match="jobs/j2/events"):
        fetch_s3_log(RESULTS, "j2", region=REGION, into=io.BytesIO())


def test_a_bucket_that_may_not_be_listed_is_said(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    server.put("results", {"jobs/j1/record.json": record("j1")})
    with server.caller_who_may("s3:GetObject") as (key, secret):
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", key)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret)
        with pytest.raises(ClusterError, match="s3:ListBucket is needed"):
            read_s3_records(RESULTS, region=REGION)
