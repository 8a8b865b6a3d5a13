"""Temporary keys of users and roles, and presigned URLs."""

import http.client
import ssl
from collections.abc import Mapping
from typing import Any
from urllib.parse import SplitResult, urlsplit

import pytest

from ec2_client import Client, client, refused_as
from iam_steps import (
    ACCOUNT,
    allow,
    client_of,
    document,
    make_bucket,
    refused,
    role,
    role_keys,
    user,
)
from sandbox_steps import RunningSandbox
from waits import until

pytestmark = pytest.mark.sandbox


@pytest.fixture
def bucket(phantom: RunningSandbox) -> str:
    return make_bucket()


# --- whose keys


def test_only_users_can_open_sessions(phantom: RunningSandbox) -> None:
    assert "session credentials" in refused(role("sts").get_session_token)
    keys = user("sts").get_session_token(DurationSeconds=900)["Credentials"]
    assert "session credentials" in refused(client_of("sts", keys).get_session_token)
    assert client_of("ec2", keys).describe_vpcs()["Vpcs"]
    assert keys["AccessKeyId"] != user("sts").get_session_token()["Credentials"]["AccessKeyId"]


def test_presigned_urls_work_until_they_expire(phantom: RunningSandbox, bucket: str) -> None:
    s3 = client_of("s3", role_keys(), signature_version="s3v4")
    trusted = ssl.create_default_context(cafile=phantom.info.ca_bundle)

    def sign(key: str, expires_s: int = 60) -> SplitResult:
        asked = {"Bucket": bucket, "Key": key}
        url: str = s3.generate_presigned_url("get_object", Params=asked, ExpiresIn=expires_s)
        return urlsplit(url)

    def read(url: SplitResult) -> tuple[int, bytes]:
        connection = http.client.HTTPSConnection(url.netloc, context=trusted, timeout=10)
        connection.request("GET", f"{url.path}?{url.query}")
        answer = connection.getresponse()
        return answer.status, answer.read()

    assert read(sign("digits/part-0")) == (200, b"records")
    url = sign("digits/part-0", expires_s=1)
    until(lambda: b"Request has expired" in read(url)[1], "the URL does not expire")
    assert read(url)[0] == 403


# --- temporary keys


READ = document(allow("s3:GetObject"))


def federate(sts: Client, policy: str | None = READ, **more: Any) -> Mapping[str, Any]:
    given = {} if policy is None else {"Policy": policy}
    keys: Mapping[str, Any] = sts.get_federation_token(**{"Name": "job", **given, **more})["Credentials"]
    return keys


def test_a_federated_user_may_not_use_iam_and_sts(phantom: RunningSandbox) -> None:
    keys = federate(client("sts"), READ)
    sts = client_of("sts", keys)
    assert sts.get_caller_identity()["Arn"] == f"arn:aws:sts::{ACCOUNT}:federated-user/job"
    assert client_of("ec2", keys).describe_vpcs()["Vpcs"]
    assert "session credentials" in refused(sts.get_session_token)
    assert "session credentials" in refused(sts.get_federation_token, Name="other", Policy=READ)
    refused(sts.assume_role, RoleArn=f"arn:aws:iam::{ACCOUNT}:role/any", RoleSessionName="test")
    with refused_as("InvalidClientTokenId"):
        client_of("iam", keys).list_users()


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        ({"Name": "a b"}, "ValidationError"),
        ({"DurationSeconds": 36 * 3600 + 1}, "ValidationError"),
        ({"Policy": "{}"}, "MalformedPolicyDocument"),
    ],
)
def test_invalid_federation_requests_are_refused(phantom: RunningSandbox, asked: Mapping[str, Any], code: str) -> None:
    with refused_as(code):
        client("sts").get_federation_token(**{"Name": "job", "Policy": READ, **asked})


# --- on a host
