"""Temporary keys of users and roles."""

import pytest

from ec2_client import client, refused_as
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


def test_only_users_can_open_sessions(phantom: RunningSandbox) -> None:
    assert "session credentials" in refused(role("sts").get_session_token)
    keys = user("sts").get_session_token(DurationSeconds=900)["Credentials"]
    assert "session credentials" in refused(client_of("sts", keys).get_session_token)
    assert client_of("ec2", keys).describe_vpcs()["Vpcs"]
    assert keys["AccessKeyId"] != user("sts").get_session_token()["Credentials"]["AccessKeyId"]


def test_a_federated_user_is_a_caller_of_its_own(phantom: RunningSandbox) -> None:
    federate = client("sts").get_federation_token
    keys = federate(Name="job", Policy=document(allow("s3:GetObject")))["Credentials"]
    assert client_of("sts", keys).get_caller_identity()["Arn"] == f"arn:aws:sts::{ACCOUNT}:federated-user/job"
    assert client_of("ec2", keys).describe_vpcs()["Vpcs"]
    with refused_as("ValidationError"):
        federate(Name="job", DurationSeconds=36 * 3600 + 1)
