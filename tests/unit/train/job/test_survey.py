"""A job's data as S3 lists it, and the data's owner."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

import boto3
import pytest
from botocore.exceptions import ClientError, EndpointConnectionError
from moto import mock_aws

from mxnet_cluster.recordio import encode_record
from provision.aws.clients import Clients, make_clients
from train.job import survey
from train.job.survey import Data, Refusal, Survey, Surveyor, count, find_data, find_owner

REGION: Final = "eu-west-1"
SIZES = (24, 24)  # of a record with the content x/train/a.rec
FOUND = Data(objects=6, records=3, in_train=2, folder="train/", sizes=SIZES)


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
        ("s3://bucket/x/", FOUND),
        ("s3://bucket/x", FOUND),
        ("s3://bucket/x/train/", Data(objects=3, records=2, sizes=SIZES)),
        ("s3://bucket", Data(objects=7, records=5, folder="x/train/", sizes=SIZES)),
        ("s3://bucket/nothing/", Data(objects=0, records=0)),
        ("s3://another/x/", Data(objects=0, records=0, bucket_exists=False, region=None)),
    ],
)
def test_objects_below_a_url_are_counted(clients: Clients, url: str, wanted: Data) -> None:
    assert find_data(clients, url) == replace(wanted, region=REGION if wanted.bucket_exists else None)


@pytest.mark.parametrize(
    ("names", "folder", "sizes", "others"),
    [
        # The folder that the project's scripts read, else the files at the top, else the folder with the most files.
        (["train/a.rec", "a.rec", "b.rec"], "train/", 1, ()),
        (["a.rec", "more/a.rec", "more/b.rec"], "", 1, ()),
        (["one/a.rec", "more/a.rec", "more/b.rec", "val/a.rec"], "more/", 2, ()),
        # MXNet reads neither folders inside the folder nor empty files.
        (["train/a.rec", "train/b/c.rec", "train/b/d.txt", "train/empty"], "train/", 1, ()),
        (["train/a.rec", "train/a.idx", "train/a.lst", "labels.txt"], "train/", 1, ("a.idx", "a.lst")),
        (["a.rec", "labels.txt", "train-images-idx3-ubyte"], "", 1, ("labels.txt", "train-images-idx3-ubyte")),
        (["train-images-idx3-ubyte", "val/a.rec"], "", 0, ()),
    ],
)
def test_the_folder_of_training_data(names: list[str], folder: str, sizes: int, others: tuple[str, ...]) -> None:
    data = count([(name, 0 if "empty" in name else 8) for name in names], complete=True)
    assert (data.folder, data.sizes, data.others) == (folder, (8,) * sizes, others)


def test_an_incomplete_file_is_recognised_by_its_size() -> None:
    assert count([("train/a.rec", 8), ("train/b.rec", 9), ("val/c.rec", 7)], complete=True).cut_short == "train/b.rec"
    assert count([("train/a.rec", 8), ("train/a.idx", 9)], complete=True).cut_short is None


def test_a_file_that_is_not_recordio_is_named(clients: Clients) -> None:
    clients.s3.put_object(Bucket="bucket", Key="bad/train/a.rec", Body=b"<html>not found</html>")
    found = find_data(clients, "s3://bucket/bad/")
    assert found.not_records == "s3://bucket/bad/train/a.rec"
    clients.s3.delete_object(Bucket="bucket", Key="bad/train/a.rec")


def test_the_buckets_region_is_found_from_any_region(clients: Clients) -> None:
    found = find_data(make_clients("us-west-2"), "s3://bucket/x/")
    assert (found.region, found.at_aws) == (REGION, True)


@pytest.mark.parametrize(("call", "what"), [("list_objects_v2", "listed"), ("get_object", "read")])
def test_a_refusal_of_s3(clients: Clients, call: str, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_: Any) -> None:
        raise ClientError({"Error": {"Code": "AccessDenied", "Message": "no"}}, call)

    monkeypatch.setattr(clients.s3, call, refuse)
    found = find_data(clients, "s3://bucket/x/")
    assert found is not None
    where = "s3://bucket/x/" if what == "listed" else "s3://bucket/x/train/a.rec"
    assert found.refused == Refusal(what=what, where=where, code="AccessDenied", words="no")
    assert found.complete == (what == "read")


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
