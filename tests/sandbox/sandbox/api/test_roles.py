"""Temporary keys of users and roles."""

from collections.abc import Mapping
from typing import Any

import pytest

from ec2_client import Client, client, refused_as
from iam_steps import (
    ACCOUNT,
    allow,
    client_of,
    document,
    refused,
    role,
    user,
)
from sandbox_steps import RunningSandbox

pytestmark = pytest.mark.sandbox


# --- whose keys


def test_only_users_can_open_sessions(phantom: RunningSandbox) -> None:
    assert "session credentials" in refused(role("sts").get_session_token)
    keys = user("sts").get_session_token(DurationSeconds=900)["Credentials"]
    assert "session credentials" in refused(client_of("sts", keys).get_session_token)
    assert client_of("ec2", keys).describe_vpcs()["Vpcs"]
    assert keys["AccessKeyId"] != user("sts").get_session_token()["Credentials"]["AccessKeyId"]


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
