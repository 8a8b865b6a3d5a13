"""The bucket of a put: who creates it, and what a put may do there."""

from pathlib import Path

import pytest

from folders import write_files
from foundation.errors import NotFoundError
from foundation.progress import Event
from http_server import Asked, Refusal, judging_proxy
from s3_server import REGION, S3Server
from train.s3 import operations as s3

BUCKET = "datasets"
URL = f"s3://{BUCKET}/in/"
NOT_ALLOWED = Refusal(status=403, code="AccessDenied", message="no")


@pytest.fixture
def local(tmp_path: Path) -> Path:
    write_files(tmp_path / "local", {"a": b"a", "b": b"b"})
    return tmp_path / "local"


def put(source: Path, *, create_bucket: bool = True) -> list[Event]:
    events: list[Event] = []
    s3.put([str(source)], URL, region=REGION, create_bucket=create_bucket, report=events.append)
    return events


def test_a_bucket_is_created_only_on_request(server: S3Server, local: Path) -> None:
    with pytest.raises(NotFoundError, match="bucket datasets does not exist") as caught:
        put(local, create_bucket=False)
    assert "--create-bucket" in str(caught.value.hint)
    (event,) = put(local)
    assert (event.kind, event.where, event.what) == (
        "done", f"s3://{BUCKET}", "created the bucket, private to this account",
    )  # fmt: skip
    assert put(local) == []
    [rule] = server.client.get_bucket_lifecycle_configuration(Bucket=BUCKET)["Rules"]
    assert rule["AbortIncompleteMultipartUpload"] == {"DaysAfterInitiation": 7}
    assert server.client.get_bucket_location(Bucket=BUCKET)["LocationConstraint"] == REGION


def judge_listing(asked: Asked) -> Refusal | None:
    """Refuses a caller who may neither list nor look at objects, nor create buckets."""
    if asked.method == "HEAD" or "list-type=2" in asked.query:
        return NOT_ALLOWED
    return NOT_ALLOWED if asked.method == "PUT" and asked.path == f"/{BUCKET}" and not asked.query else None


def test_put_needs_only_write_permission(server: S3Server, local: Path) -> None:
    server.put(BUCKET, {})
    with judging_proxy(server.url, judge_listing):
        assert [event.kind for event in put(local)] == ["warn"]
    assert set(server.read(BUCKET)) == {"in/a", "in/b"}
