"""Calls that other programs make and this project does not."""

import json
from typing import Any

import boto3
import pytest
from botocore.awsrequest import AWSResponse
from botocore.exceptions import ClientError

from ec2_sandbox.paths import paths_of
from sandbox_steps import REGION, RunningSandbox

pytestmark = pytest.mark.sandbox


@pytest.mark.parametrize(
    ("service", "operation", "arguments"),
    [
        ("ec2", "describe_instance_event_windows", {}),
        ("ec2", "copy_image", {"Name": "copied", "SourceImageId": "ami-1", "SourceRegion": REGION}),
        ("iam", "simulate_principal_policy", {"PolicySourceArn": "arn:aws:iam::1:user/x", "ActionNames": ["s3:Get"]}),
        ("sts", "decode_authorization_message", {"EncodedMessage": "x"}),
        ("ssm", "list_associations", {}),
        ("braket", "search_devices", {"filters": []}),
    ],
)
def test_unsupported_calls_fail_at_once(
    phantom: RunningSandbox, service: Any, operation: str, arguments: dict[str, Any]
) -> None:
    log = paths_of(phantom.project_dir).api_log
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


@pytest.mark.parametrize("service", ["ec2", "ssm"])
def test_a_call_to_another_region_names_the_sandboxs_region(phantom: RunningSandbox, service: Any) -> None:
    elsewhere = boto3.client(service, region_name="eu-west-1")
    with pytest.raises(
        ClientError, match=r"InvalidRegion.*the sandbox of this folder runs in us-east-1, not in eu-west-1"
    ):
        elsewhere.describe_instances() if service == "ec2" else elsewhere.get_parameter(Name="/x")
