"""Calls that other programs make and this project does not."""

import json
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.awsrequest import AWSResponse
from botocore.exceptions import ClientError

from sandbox.place import place_of
from sandbox_steps import REGION, RunningSandbox

pytestmark = pytest.mark.sandbox


@pytest.mark.parametrize(
    ("service", "operation", "arguments"),
    [
        ("ec2", "describe_instance_event_windows", {}),
        ("ec2", "describe_spot_datafeed_subscription", {}),
        ("ec2", "monitor_instances", {"InstanceIds": ["i-0123456789abcdef0"]}),
        ("iam", "simulate_principal_policy", {"PolicySourceArn": "arn:aws:iam::1:user/x", "ActionNames": ["s3:Get"]}),
        ("sts", "decode_authorization_message", {"EncodedMessage": "x"}),
        ("ssm", "list_associations", {}),
        ("fsx", "describe_volumes", {}),
        ("health", "describe_events", {}),
        ("braket", "search_devices", {"filters": []}),
    ],
)
def test_unsupported_calls_fail_at_once(
    phantom: RunningSandbox, service: Any, operation: str, arguments: dict[str, Any]
) -> None:
    log = place_of(phantom.project_dir).api_log
    before = len(log.read_text().splitlines())
    with pytest.raises(ClientError) as caught:
        getattr(boto3.client(service), operation)(**arguments)
    assert caught.value.response["Error"]["Code"] == "UnsupportedOperation"
    assert "cannot do this" in caught.value.response["Error"]["Message"]
    calls = [json.loads(line) for line in log.read_text().splitlines()[before:]]
    assert [call["status"] for call in calls] == [400]


def test_ec2s_answers_have_a_namespace_and_errors_have_none(phantom: RunningSandbox) -> None:
    """Libcloud compares names including their namespace, which ends with a slash on AWS."""
    seen: list[bytes] = []

    def keep(http_response: AWSResponse, **_: Any) -> None:
        seen.append(http_response.content)

    ec2 = boto3.client("ec2")
    ec2.meta.events.register("after-call.ec2", keep)
    ec2.describe_vpcs()
    with pytest.raises(ClientError, match=r"InvalidVpcID\.NotFound"):
        ec2.describe_vpcs(VpcIds=["vpc-0123456789abcdef0"])
    assert b'<DescribeVpcsResponse xmlns="http://ec2.amazonaws.com/doc/2016-11-15/">' in seen[0]
    assert b"<Response><Errors><Error>" in seen[1]
    ec2.delete_tags(Resources=["vpc-0123456789abcdef0"], Tags=[{"Key": "a"}])
    assert seen[2].count(b"<return>true</return>") == 1  # of a call that returns nothing else
    assert b"<return>" not in seen[0]


def test_the_only_region_is_the_sandboxs(phantom: RunningSandbox) -> None:
    ec2 = boto3.client("ec2")
    assert [one["RegionName"] for one in ec2.describe_regions()["Regions"]] == [REGION]
    assert [one["RegionName"] for one in ec2.describe_regions(RegionNames=[REGION])["Regions"]] == [REGION]
    with pytest.raises(ClientError, match="Invalid region provided: eu-west-3"):
        ec2.describe_regions(RegionNames=["eu-west-3"])


def test_a_policy_needs_no_version(phantom: RunningSandbox) -> None:
    """SkyPilot's policy has none."""
    iam = boto3.client("iam")
    iam.create_user(UserName="old")
    statement = {"Effect": "Allow", "Action": "ec2:DescribeVpcs", "Resource": "*"}
    iam.put_user_policy(UserName="old", PolicyName="old", PolicyDocument=json.dumps({"Statement": [statement]}))
    key = iam.create_access_key(UserName="old")["AccessKey"]
    user = boto3.Session(key["AccessKeyId"], key["SecretAccessKey"])
    assert user.client("ec2").describe_vpcs()["Vpcs"]


def test_config_files_are_empty(phantom: RunningSandbox) -> None:
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        path = Path(phantom.environment[name])
        assert path.is_file()
        assert path.read_bytes() == b""
