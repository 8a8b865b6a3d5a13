"""Temporary keys of users and roles, and presigned URLs."""

import http.client
import json
import ssl
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import SplitResult, urlsplit

import pytest

from ec2_client import Client, client, refused_as
from iam_steps import (
    ACCOUNT,
    allow,
    client_of,
    document,
    instance_profile,
    make_bucket,
    refused,
    role,
    role_keys,
    user,
)
from sandbox_steps import RunningSandbox, Ssh, launch
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


READ_ROLE = """
import json, urllib.request as r
base = "http://169.254.169.254/latest/"
token = r.urlopen(r.Request(base + "api/token", method="PUT",
                            headers={"X-aws-ec2-metadata-token-ttl-seconds": "60"})).read().decode()
def read(path):
    asked = r.Request(base + "meta-data/iam/security-credentials/" + path, headers={"X-aws-ec2-metadata-token": token})
    return r.urlopen(asked).read().decode()
found = json.loads(read(read("")))
print(json.dumps({"AccessKeyId": found["AccessKeyId"], "SecretAccessKey": found["SecretAccessKey"],
                  "SessionToken": found["Token"]}))
"""


@pytest.fixture
def host_profile(sandbox: RunningSandbox) -> Iterator[dict[str, Any]]:
    with instance_profile("of-a-host") as profile:
        yield profile


def test_keys_of_a_hosts_role(host_profile: dict[str, Any], ssh: Ssh) -> None:
    s3 = client("s3", s3={"addressing_style": "path"})
    s3.create_bucket(Bucket="of-a-host")
    s3.put_object(Bucket="of-a-host", Key="digits/part-0", Body=b"records")
    [host] = launch(ssh, 1, **host_profile)
    keys = json.loads(ssh.run(host["PublicIpAddress"], "/usr/bin/python3 -", stdin=READ_ROLE).stdout)
    mine = client_of("s3", keys, signature_version="s3v4")
    assert client_of("sts", keys).get_caller_identity()["Arn"].endswith(f"/of-a-host/{host['InstanceId']}")
    url = mine.generate_presigned_url("get_object", Params={"Bucket": "of-a-host", "Key": "digits/part-0"})
    fetch = "import sys, urllib.request as r; print(r.urlopen(sys.stdin.read()).read().decode())"
    done = ssh.run(host["PublicIpAddress"], f"/usr/bin/python3 -c '{fetch}'", stdin=url)
    assert done.stdout == "records\n"
