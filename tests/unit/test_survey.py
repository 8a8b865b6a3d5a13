"""What a job's data is, as S3 lists it, and whose job it is."""

from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError, EndpointConnectionError
from moto import mock_aws

from provision.aws import Clients, make_clients
from train import survey
from train.survey import Data, Surveyor, find_data, find_owner

REGION = "eu-west-1"


@pytest.fixture(scope="module")
def clients() -> Iterator[Clients]:
    """Of moto, with a bucket of a few objects."""
    with pytest.MonkeyPatch.context() as patch, mock_aws():
        for name in ("AWS_ENDPOINT_URL", "AWS_CA_BUNDLE", "AWS_PROFILE", "AWS_SESSION_TOKEN"):
            patch.delenv(name, raising=False)
        patch.setenv("AWS_ACCESS_KEY_ID", "AKIATEST")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        s3 = boto3.client("s3", region_name=REGION)
        s3.create_bucket(Bucket="bucket", CreateBucketConfiguration={"LocationConstraint": REGION})
        for key in ("x/train/a.rec", "x/train/b.rec", "x/val/a.rec", "x/c.rec", "x/train/", "x/labels.txt", "xy/a.rec"):
            s3.put_object(Bucket="bucket", Key=key, Body=b"")
        yield make_clients(REGION)


@pytest.mark.parametrize(
    ("url", "wanted"),
    [
        ("s3://bucket/x/", Data(objects=5, records=3, in_train=2)),
        ("s3://bucket/x", Data(objects=5, records=3, in_train=2)),
        ("s3://bucket/x/train/", Data(objects=2, records=2)),
        ("s3://bucket", Data(objects=6, records=5)),
        ("s3://bucket/nothing/", Data(objects=0, records=0)),
        ("s3://another/x/", Data(objects=0, records=0, bucket_exists=False)),
    ],
)
def test_what_lies_below_a_url_is_counted(clients: Clients, url: str, wanted: Data) -> None:
    assert find_data(clients, url) == wanted


def test_a_long_listing_is_read_in_pages_and_not_to_its_end(clients: Clients, monkeypatch: pytest.MonkeyPatch) -> None:
    listing = clients.s3.list_objects_v2

    def by_twos(**request: Any) -> Any:
        return listing(**request, MaxKeys=2)

    monkeypatch.setattr(clients.s3, "list_objects_v2", by_twos)
    assert find_data(clients, "s3://bucket/x/") == Data(objects=5, records=3, in_train=2)
    monkeypatch.setattr(survey, "MAX_PAGES", 2)
    cut = find_data(clients, "s3://bucket/x/")
    assert cut is not None
    assert (cut.complete, cut.objects) == (False, 3)


@pytest.mark.parametrize(
    "error",
    [
        ClientError({"Error": {"Code": "AccessDenied", "Message": "no"}}, "ListObjectsV2"),
        EndpointConnectionError(endpoint_url="https://s3"),
        OSError("Could not find a suitable TLS CA certificate bundle"),
    ],
)
def test_what_may_not_be_listed_is_not_known(
    clients: Clients, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(**_: Any) -> None:
        raise error

    monkeypatch.setattr(clients.s3, "list_objects_v2", refuse)
    monkeypatch.setattr(clients.sts, "get_caller_identity", refuse)
    assert find_data(clients, "s3://bucket/x/") is None
    assert find_owner(clients) is None
    assert Surveyor(clients, url="s3://bucket/x/").result() == survey.Survey()


def test_a_survey_has_both(clients: Clients) -> None:
    found = Surveyor(clients, url="s3://bucket/x/").result()
    assert found.owner is not None
    assert found.owner.startswith("arn:aws:")
    assert found.data == Data(objects=5, records=3, in_train=2)
    assert Surveyor(clients, url=None).result() == survey.Survey(owner=found.owner)
