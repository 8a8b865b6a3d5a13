"""The bucket of a put: its owner, and how many of its objects stay in memory."""

import gc
from pathlib import Path

import pytest

from folders import write_files
from foundation.errors import ClusterError, NotFoundError
from foundation.progress import Event, silent
from http_server import Asked, Refusal, judging_proxy
from s3_server import REGION, S3Server
from train.s3 import operations as s3
from train.s3.connection import Connection
from train.s3.plan import Plan
from train.s3.url import S3Object, S3Url

BUCKET = "datasets"
URL = f"s3://{BUCKET}/in/"
NOT_ALLOWED = Refusal(status=403, code="AccessDenied", message="no")


@pytest.fixture
def local(tmp_path: Path) -> Path:
    write_files(tmp_path / "local", {"a": b"a", "b": b"b"})
    return tmp_path / "local"


def put(source: Path, *, create_bucket: bool = True, decide: s3.Decide = s3.yes) -> list[Event]:
    events: list[Event] = []
    s3.put([str(source)], URL, region=REGION, create_bucket=create_bucket, report=events.append, decide=decide)
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


def test_a_name_of_another_account_is_an_error(server: S3Server, local: Path) -> None:
    """S3 says that another account's bucket exists, and nothing else."""
    events: list[Event] = []
    with (
        judging_proxy(server.url, lambda _: NOT_ALLOWED),
        pytest.raises(ClusterError, match="s3:PutObject is needed"),
    ):
        s3.put([str(local)], URL, region=REGION, create_bucket=True, report=events.append)
    assert [event.kind for event in events] == ["warn"]


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


# With an empty object, obstore's answer is uncertain, so botocore lists the objects.
@pytest.mark.parametrize("empty_one", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.parametrize("delete", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_put_keeps_only_its_own_objects_in_memory(
    server: S3Server, local: Path, *, empty_one: bool, delete: bool
) -> None:
    others = {f"in/{number:05}": b"x" for number in range(3000)}
    server.put(BUCKET, {**others, "in/b": b"b", **({"in/empty": b""} if empty_one else {})})
    gc.collect()
    earlier = [item for item in gc.get_objects() if isinstance(item, S3Object)]  # keeps them alive: ids are not reused
    known = {id(item) for item in earlier}
    kept = []

    def decide(plan: Plan) -> bool:
        gc.collect()
        kept.append(sum(isinstance(item, S3Object) and id(item) not in known for item in gc.get_objects()))
        assert [str(upload.destination) for upload in plan.transfers] == [f"{URL}a"]
        assert len(plan.deletions) == (3000 + empty_one if delete else 0)
        return False

    s3.put([f"{local}/"], URL, region=REGION, delete=delete, report=silent, decide=decide)
    assert kept == [3001 + empty_one if delete else 1]


def test_a_listing_of_some_names(server: S3Server) -> None:
    server.put(BUCKET, {"in/b": b"b", "in/a": b"a", "in/c": b"c"})
    wanted = {S3Url(bucket=BUCKET, key="in/c"), S3Url(bucket=BUCKET, key="in/a"), S3Url(bucket=BUCKET, key="in/none")}
    found = Connection(region=REGION).list_objects(S3Url(bucket=BUCKET, key="in/"), only=wanted)
    assert [item.url.key for item in found] == ["in/a", "in/c"]
