"""A job's data as S3 lists it, and the data's owner."""

from collections.abc import Iterator
from typing import Any, Final

import boto3
import pytest
from botocore.exceptions import ClientError, EndpointConnectionError
from moto import mock_aws
from msgspec.structs import replace

from mxnet_cluster.recordio import encode_record
from provision.aws.clients import Clients, make_clients
from train.job import survey
from train.job.survey import Data, Survey, Surveyor, count, find_data, find_owner

REGION: Final = "eu-west-1"
FOUND = Data(objects=6, in_train=2)


@pytest.fixture(scope="module")
def clients() -> Iterator[Clients]:
    """Clients of moto, with a bucket of a few objects."""
    with pytest.MonkeyPatch.context() as patch, mock_aws():
        for name in ("AWS_ENDPOINT_URL", "AWS_CA_BUNDLE", "AWS_PROFILE", "AWS_SESSION_TOKEN"):
            patch.delenv(name, raising=False)
        patch.setenv("AWS_ACCESS_KEY_ID", "AKIATEST")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        s3 = boto3.client("s3", region_name=REGION)
        s3.create_bucket(Bucket="bucket", CreateBucketConfiguration={"LocationConstraint": REGION})
        for key in ("x/train/a.rec", "x/train/b.rec", "x/val/a.rec", "x/c.rec", "x/labels.txt", "xy/a.rec"):
            s3.put_object(Bucket="bucket", Key=key, Body=encode_record(key.encode()))
        for key in ("x/train/", "x/train/empty.rec"):
            s3.put_object(Bucket="bucket", Key=key, Body=b"")
        yield make_clients(REGION)


@pytest.mark.parametrize(
    ("url", "wanted"),
    [
        ("s3://bucket/x", FOUND),
        ("s3://bucket/x/train/", Data(objects=3)),
        ("s3://bucket", Data(objects=7)),
        ("s3://bucket/nothing/", Data(objects=0)),
        ("s3://another/x/", Data(objects=0, exists=False)),
    ],
)
def test_objects_below_a_url_are_counted(clients: Clients, url: str, wanted: Data) -> None:
    assert find_data(clients, url) == replace(wanted, region=REGION if wanted.exists else None)


@pytest.mark.parametrize(
    ("names", "others"),
    [
        # MXNet reads neither folders inside the folder nor empty files.
        (["train/a.rec", "train/b/c.rec", "train/b/d.txt", "train/empty"], ()),
        (["train/a.rec", "train/a.idx", "train/a.lst", "labels.txt"], ("train/a.idx", "train/a.lst")),
        (["a.rec", "labels.txt", "val/a.rec"], ("labels.txt",)),
        (["train-images-idx3-ubyte", "val/a.rec"], ()),
    ],
)
def test_files_next_to_records(names: list[str], others: tuple[str, ...]) -> None:
    assert count([(name, 0 if "empty" in name else 8) for name in names], complete=True).others == others


def test_the_buckets_region_is_found_from_any_region(clients: Clients) -> None:
    found = find_data(make_clients("us-west-2"), "s3://bucket/x/")
    assert (found.region, found.at_aws) == (REGION, True)


@pytest.mark.parametrize(("call", "what"), [("list_objects_v2", "listed"), ("get_object", "read")])
def test_a_refusal_of_s3(clients: Clients, call: str, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_: Any) -> None:
        raise ClientError({"Error": {"Code": "AccessDenied", "Message": "no"}}, call)

    monkeypatch.setattr(clients.s3, call, refuse)
    found = find_data(clients, "s3://bucket/x/")
    where = "s3://bucket/x/" if what == "listed" else "s3://bucket/x/c.rec"
    assert found.refused == f"{where} cannot be {what}: AccessDenied: no"
    assert not found.complete


def test_only_the_first_pages_of_a_long_listing_are_read(clients: Clients, monkeypatch: pytest.MonkeyPatch) -> None:
    listing = clients.s3.list_objects_v2

    def by_twos(**request: Any) -> Any:
        return listing(**request, MaxKeys=2)

    monkeypatch.setattr(clients.s3, "list_objects_v2", by_twos)
    assert find_data(clients, "s3://bucket/x/") == replace(FOUND, region=REGION)
    monkeypatch.setattr(survey, "MAX_PAGES", 2)
    cut = find_data(clients, "s3://bucket/x/")
    assert (cut.complete, cut.objects) == (False, 3)


@pytest.mark.parametrize(
    "error",
    [
        ClientError({"Error": {"Code": "SlowDown", "Message": "no"}}, "ListObjectsV2"),
        EndpointConnectionError(endpoint_url="https://s3"),
        OSError("Could not find a suitable TLS CA certificate bundle"),
    ],
)
def test_errors_of_aws_mean_unknown(clients: Clients, error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_: Any) -> None:
        raise error

    monkeypatch.setattr(clients.s3, "list_objects_v2", refuse)
    monkeypatch.setattr(clients.sts, "get_caller_identity", refuse)
    assert find_data(clients, "s3://bucket/x/") is None
    assert find_owner(clients) is None
    assert Surveyor(clients, url="s3://bucket/x/").result() == Survey(region=REGION)


def test_a_survey_has_data_and_owner(clients: Clients) -> None:
    found = Surveyor(clients, url="s3://bucket/x/").result()
    assert found.owner.startswith("arn:aws:")
    assert found.data == replace(FOUND, region=REGION)
    assert Surveyor(clients, url=None).result() == Survey(owner=found.owner, region=REGION)
    assert Surveyor(clients, url=None, results="s3://bucket/r/").result().results is None
    assert Surveyor(clients, url=None, results="s3://other/r/").result().results == "s3://other/r/"
