"""A job's data as S3 lists it, and the data's owner."""

from collections.abc import Iterator
from typing import Any, Final

import boto3
import pytest
from botocore.exceptions import ClientError, EndpointConnectionError
from moto import mock_aws

from provision.aws.clients import Clients, make_clients
from train.job.survey import Data, Survey, Surveyor, find_data, find_owner

REGION: Final = "eu-west-1"
FOUND = Data(region=REGION)


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
        for key, body in (("x/", b""), ("x/c.rec", b"c"), ("xy/a.rec", b"a")):
            s3.put_object(Bucket="bucket", Key=key, Body=body)
        yield make_clients(REGION)


@pytest.mark.parametrize(
    ("url", "wanted"),
    [
        ("s3://bucket/x", FOUND),
        ("s3://bucket", FOUND),
        ("s3://bucket/nothing/", Data(is_empty=True, region=REGION)),
        ("s3://another/x/", Data(exists=False)),
    ],
)
def test_what_is_below_a_url(clients: Clients, url: str, wanted: Data) -> None:
    assert find_data(clients, url) == wanted


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
    assert found.data == FOUND
    assert Surveyor(clients, url=None).result() == Survey(owner=found.owner, region=REGION)
    assert Surveyor(clients, url=None, results="s3://none/").result().results == Data(exists=False)
