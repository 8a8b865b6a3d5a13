"""Temporary keys: what GetFederationToken and session policies leave of somebody's rights, and whom roles trust."""

import uuid
from collections.abc import Mapping
from typing import Any

import pytest

from ec2_client import Client, client, refused_as
from iam_steps import ACCOUNT, TRUST, allow, client_of, document, make_bucket, refused, trust, user
from sandbox_steps import RunningSandbox

pytestmark = pytest.mark.sandbox

READ = document(allow("s3:GetObject"))


@pytest.fixture
def bucket(phantom: RunningSandbox) -> str:
    return make_bucket()


def federate(sts: Client, policy: str | None = READ, **more: Any) -> Mapping[str, Any]:
    given = {} if policy is None else {"Policy": policy}
    keys: Mapping[str, Any] = sts.get_federation_token(**{"Name": "job", **given, **more})["Credentials"]
    return keys


def make_role(trusts: str, *statements: Mapping[str, Any], **more: Any) -> str:
    iam, name = client("iam"), f"role-{uuid.uuid4().hex[:8]}"
    arn: str = iam.create_role(RoleName=name, AssumeRolePolicyDocument=trusts, **more)["Role"]["Arn"]
    if statements:
        iam.put_role_policy(RoleName=name, PolicyName="all", PolicyDocument=document(*statements))
    return arn


def assume(sts: Client, role: str, **more: Any) -> Mapping[str, Any]:
    keys: Mapping[str, Any] = sts.assume_role(RoleArn=role, RoleSessionName="test", **more)["Credentials"]
    return keys


def test_a_federated_user_may_do_what_both_the_user_and_the_policy_allow(bucket: str) -> None:
    owner = user("sts", allow("sts:*"), allow(["s3:GetObject", "s3:PutObject"]))
    s3 = client_of("s3", federate(owner, document(allow(["s3:GetObject", "s3:DeleteObject"]))))
    assert s3.get_object(Bucket=bucket, Key="beside")["Body"].read() == b"records"
    refused(s3.put_object, Bucket=bucket, Key="beside", Body=b"x")  # the policy does not allow it
    said = refused(s3.delete_object, Bucket=bucket, Key="beside")  # the user may not
    assert f"User: arn:aws:sts::{ACCOUNT}:federated-user/job is not authorized" in said


def test_a_federated_user_without_a_policy_may_do_nothing(bucket: str) -> None:
    s3 = client_of("s3", federate(client("sts"), None))
    refused(s3.get_object, Bucket=bucket, Key="beside")


def test_a_federated_user_has_no_iam_and_of_sts_only_who_it_is(phantom: RunningSandbox) -> None:
    keys = federate(client("sts"), document(allow("*")))
    sts = client_of("sts", keys)
    assert sts.get_caller_identity()["Arn"] == f"arn:aws:sts::{ACCOUNT}:federated-user/job"
    assert client_of("ec2", keys).describe_vpcs()["Vpcs"]
    assert "session credentials" in refused(sts.get_session_token)
    assert "session credentials" in refused(sts.get_federation_token, Name="other", Policy=READ)
    role = make_role(trust("*"))
    refused(sts.assume_role, RoleArn=role, RoleSessionName="test")
    with refused_as("InvalidClientTokenId"):
        client_of("iam", keys).list_users()


def test_federating_takes_a_permission_for_the_name(phantom: RunningSandbox) -> None:
    named = f"arn:aws:sts::{ACCOUNT}:federated-user/job-*"
    sts = user("sts", allow("sts:GetFederationToken", named))
    federate(sts, Name="job-1")
    assert f"sts:GetFederationToken on resource: arn:aws:sts::{ACCOUNT}:federated-user/x1" in refused(
        sts.get_federation_token, Name="x1", Policy=READ
    )


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        ({"Name": "a b"}, "ValidationError"),
        ({"Name": "x" * 33}, "ValidationError"),
        ({"DurationSeconds": 36 * 3600 + 1}, "ValidationError"),
        ({"Policy": "x" * 2049}, "ValidationError"),
        ({"Policy": "{}"}, "MalformedPolicyDocument"),
    ],
)
def test_what_is_no_federation_token_is_refused(phantom: RunningSandbox, asked: Mapping[str, Any], code: str) -> None:
    with refused_as(code):
        client("sts").get_federation_token(**{"Name": "job", "Policy": READ, **asked})


def test_a_role_is_assumed_by_those_whom_it_trusts(phantom: RunningSandbox) -> None:
    stranger, allowed = user("sts"), user("sts", allow("sts:AssumeRole"))
    mine = stranger.get_caller_identity()["Arn"]
    assume(stranger, make_role(trust(mine)))  # who is named needs no permission of their own
    of_account = make_role(TRUST)
    assume(allowed, of_account)
    refused(assume, sts=stranger, role=of_account)
    refused(assume, sts=allowed, role=make_role(trust()))  # EC2 alone
    refused(assume, sts=client("sts"), role=make_role(trust(mine)))


def test_a_role_may_assume_itself_where_it_trusts_itself_and_then_for_an_hour(bucket: str) -> None:
    iam = client("iam")
    arn = make_role(TRUST, allow("s3:*"), MaxSessionDuration=12 * 3600)
    keys = assume(client("sts"), arn, DurationSeconds=12 * 3600)
    sts = client_of("sts", keys)
    refused(assume, sts=sts, role=arn)  # it may not, and is not named
    iam.update_assume_role_policy(RoleName=arn.rpartition("/")[2], PolicyDocument=trust(arn))
    narrow = assume(sts, arn, Policy=READ)
    client_of("s3", narrow).get_object(Bucket=bucket, Key="beside")
    refused(client_of("s3", narrow).delete_object, Bucket=bucket, Key="beside")
    refused(assume, sts=client_of("sts", narrow), role=arn)  # its policy limits that, too
    with refused_as("ValidationError"):
        assume(sts, arn, DurationSeconds=3601)


def test_a_trust_policy_that_is_not_understood_trusts_nobody_and_says_so(phantom: RunningSandbox) -> None:
    odd = TRUST.replace('"Action"', '"Condition": {"StringEquals": {"sts:ExternalId": "x"}}, "Action"')
    assert '"Condition" is not understood' in refused(assume, sts=client("sts"), role=make_role(odd))
