"""The bucket of a put: whose it is, how it is made private, and how much of what is in it is remembered."""

import gc
from pathlib import Path

import pytest

from folders import write_files
from foundation.errors import AwsError, ClusterError, NotFoundError
from foundation.progress import Event, silent
from http_server import Asked, Refusal, judging_proxy
from s3_server import REGION, S3Server
from train.s3 import operations as s3
from train.s3.client import S3Object
from train.s3.connection import Connection
from train.s3.sources import Listing
from train.s3.url import S3Url

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


def is_private(server: S3Server) -> bool:
    try:
        block = server.client.get_public_access_block(Bucket=BUCKET)["PublicAccessBlockConfiguration"]
    except server.client.exceptions.ClientError:
        return False
    rules = server.client.get_bucket_encryption(Bucket=BUCKET)["ServerSideEncryptionConfiguration"]["Rules"]
    return set(block.values()) == {True} and bool(rules)


def test_a_bucket_is_made_only_on_request_private_and_encrypted(server: S3Server, local: Path) -> None:
    with pytest.raises(NotFoundError, match="bucket datasets does not exist") as caught:
        put(local, create_bucket=False)
    assert "--create-bucket" in str(caught.value.hint)
    (event,) = put(local)
    assert (event.kind, event.where, event.what) == (
        "done", f"s3://{BUCKET}", "created the bucket, private to this account",
    )  # fmt: skip
    assert put(local) == []
    assert is_private(server)
    rules = server.client.get_bucket_encryption(Bucket=BUCKET)["ServerSideEncryptionConfiguration"]["Rules"]
    assert rules[0]["ApplyServerSideEncryptionByDefault"]["SSEAlgorithm"] == "AES256"
    [rule] = server.client.get_bucket_lifecycle_configuration(Bucket=BUCKET)["Rules"]
    assert rule["AbortIncompleteMultipartUpload"] == {"DaysAfterInitiation": 7}
    assert server.client.get_bucket_location(Bucket=BUCKET)["LocationConstraint"] == REGION


@pytest.mark.parametrize("one", [True, False], ids=["file", "folder"])
def test_a_name_that_another_account_has_is_said(
    server: S3Server, local: Path, monkeypatch: pytest.MonkeyPatch, *, one: bool
) -> None:
    """As S3 answers who asks for another account's bucket; moto says 403 to CreateBucket, too."""
    taken = Refusal(status=409, code="BucketAlreadyExists", message="The requested bucket name is not available.")

    def judge(asked: Asked) -> Refusal | None:
        if asked.path == "/":
            return None
        return taken if asked.method == "PUT" and asked.path == f"/{BUCKET}" else NOT_ALLOWED

    source = local / "a" if one else local
    with judging_proxy(server.url, judge) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        with pytest.raises(AwsError, match=f"s3://{BUCKET}/: .*BucketAlreadyExists") as caught:
            put(source)
        assert "another account has this name: choose another" in str(caught.value.hint)
        assert not [asked for asked in proxy.asked if "/in/" in asked.path and asked.method == "PUT"]
        with pytest.raises(ClusterError, match="s3:PutObject is needed"):
            put(source, create_bucket=False)


def judge_listing(asked: Asked) -> Refusal | None:
    """Nothing may be listed or looked at, and the caller may not make buckets."""
    if asked.method == "HEAD" or "list-type=2" in asked.query:
        return NOT_ALLOWED
    return NOT_ALLOWED if asked.method == "PUT" and asked.path == f"/{BUCKET}" and not asked.query else None


@pytest.mark.parametrize("may_list_buckets", [True, False])
@pytest.mark.parametrize("may_make", [True, False])
def test_who_may_only_write_to_ones_own_bucket_writes_to_it(
    server: S3Server, local: Path, monkeypatch: pytest.MonkeyPatch, *, may_make: bool, may_list_buckets: bool
) -> None:
    server.put(BUCKET, {})

    def judge(asked: Asked) -> Refusal | None:
        if asked.path == "/":
            return None if may_list_buckets else NOT_ALLOWED
        if may_make and asked.method == "PUT" and asked.path == f"/{BUCKET}":
            return None
        return judge_listing(asked)

    with judging_proxy(server.url, judge) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        assert put(local) == []
        made = [asked for asked in proxy.asked if asked.method == "PUT" and asked.path == f"/{BUCKET}"]
        assert bool(made) is not may_list_buckets
    assert set(server.read(BUCKET)) == {"in/a", "in/b"}
    assert not is_private(server)  # as it was


def test_a_bucket_that_was_not_made_private_in_the_end_is_made_so_by_the_next_put(
    server: S3Server, local: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def judge(asked: Asked) -> Refusal | None:
        is_last = asked.method == "PUT" and asked.query.startswith(("publicAccessBlock", "encryption"))
        return NOT_ALLOWED if is_last else None

    with judging_proxy(server.url, judge) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        with pytest.raises(AwsError, match="s3:PutBucketPublicAccessBlock is needed"):
            put(local)
        assert not is_private(server)
        assert server.read(BUCKET) == {}
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
    assert [(event.kind, event.where) for event in put(local)] == [("done", f"s3://{BUCKET}")]
    assert is_private(server)
    assert set(server.read(BUCKET)) == {"in/a", "in/b"}


def test_a_bucket_in_use_stays_as_it_is(server: S3Server, local: Path) -> None:
    server.put(BUCKET, {"elsewhere/x": b"x"})
    assert put(local) == []
    assert not is_private(server)


def test_an_empty_bucket_stays_as_somebody_has_set_it(server: S3Server, local: Path) -> None:
    server.put(BUCKET, {})
    rule = {"ApplyServerSideEncryptionByDefault": {"SSEAlgorithm": "aws:kms"}}
    server.client.put_bucket_encryption(Bucket=BUCKET, ServerSideEncryptionConfiguration={"Rules": [rule]})
    names = ("BlockPublicAcls", "IgnorePublicAcls", "BlockPublicPolicy", "RestrictPublicBuckets")
    block = {name: name != "BlockPublicPolicy" for name in names}
    server.client.put_public_access_block(Bucket=BUCKET, PublicAccessBlockConfiguration=block)
    assert put(local) == []
    assert server.client.get_public_access_block(Bucket=BUCKET)["PublicAccessBlockConfiguration"] == block
    (found,) = server.client.get_bucket_encryption(Bucket=BUCKET)["ServerSideEncryptionConfiguration"]["Rules"]
    assert found["ApplyServerSideEncryptionByDefault"]["SSEAlgorithm"] == "aws:kms"


def test_where_an_empty_bucket_may_not_be_looked_at_it_is_said_and_written_to(
    server: S3Server, local: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.put(BUCKET, {})
    with judging_proxy(server.url, lambda asked: NOT_ALLOWED if "publicAccessBlock" in asked.query else None) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        (event,) = put(local)
    assert event.kind == "warn"
    assert "s3:GetBucketPublicAccessBlock is needed" in event.what
    assert set(server.read(BUCKET)) == {"in/a", "in/b"}


def test_a_dry_run_sets_nothing(server: S3Server, local: Path) -> None:
    assert put(local, decide=lambda _: False) == []
    server.put(BUCKET, {})
    assert put(local, decide=lambda _: False) == []
    assert not is_private(server)


@pytest.mark.parametrize("empty_one", [True, False])  # what obstore is not sure of, so that botocore lists
@pytest.mark.parametrize("delete", [True, False])
def test_of_a_large_bucket_only_what_is_put_is_remembered(
    server: S3Server, local: Path, *, empty_one: bool, delete: bool
) -> None:
    others = {f"in/{number:05}": b"x" for number in range(3000)}
    server.put(BUCKET, {**others, "in/b": b"b", **({"in/empty": b""} if empty_one else {})})
    gc.collect()  # what earlier tests left behind is held on to, as ids are used again
    earlier = [item for item in gc.get_objects() if isinstance(item, S3Object)]
    known = {id(item) for item in earlier}
    remembered = []

    def decide(plan: s3.Plan) -> bool:
        gc.collect()
        remembered.append(sum(isinstance(item, S3Object) and id(item) not in known for item in gc.get_objects()))
        assert [str(upload.destination) for upload in plan.transfers] == [f"{URL}a"]
        assert len(plan.deletions) == (3000 + empty_one if delete else 0)
        return False

    s3.put([f"{local}/"], URL, region=REGION, delete=delete, report=silent, decide=decide)
    assert remembered == [3001 + empty_one if delete else 1]


def test_a_listing_of_some_names(server: S3Server) -> None:
    server.put(BUCKET, {"in/b": b"b", "in/a": b"a", "in/c": b"c"})
    wanted = {S3Url(bucket=BUCKET, key="in/c"), S3Url(bucket=BUCKET, key="in/a"), S3Url(bucket=BUCKET, key="in/none")}
    found = Listing(Connection(region=REGION)).list_objects(S3Url(bucket=BUCKET, key="in/"), only=wanted)
    assert [item.url.key for item in found] == ["in/a", "in/c"]
