"""Calls that other programs make and this project does not."""

import json
import os
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError

from ec2_sandbox.paths import find_daemon, paths_of
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


@pytest.mark.parametrize("service", ["ec2", "ssm"])
def test_a_call_to_another_region_names_the_sandboxs_region(phantom: RunningSandbox, service: Any) -> None:
    elsewhere = boto3.client(service, region_name="eu-west-1")
    with pytest.raises(
        ClientError, match=r"InvalidRegion.*the sandbox of this folder runs in us-east-1, not in eu-west-1"
    ):
        elsewhere.describe_instances() if service == "ec2" else elsewhere.get_parameter(Name="/x")


@pytest.mark.parametrize(("wanted", "part"), [("1-2", slice(1, 3)), ("-3", slice(-3, None))])
def test_a_range_of_an_object_is_read_alone(phantom: RunningSandbox, wanted: str, part: slice) -> None:
    """A download in parts would otherwise take a time that grows with the square of the object's size."""
    s3, content = boto3.client("s3"), os.urandom(32 << 20)
    s3.create_bucket(Bucket="ranges")
    s3.put_object(Bucket="ranges", Key="large", Body=content)
    before = read_by_daemon(phantom)
    found = s3.get_object(Bucket="ranges", Key="large", Range=f"bytes={wanted}")["Body"].read()
    assert found == content[part]
    assert read_by_daemon(phantom) - before < 1 << 20
    assert s3.get_object(Bucket="ranges", Key="large")["Body"].read() == content


def read_by_daemon(sandbox: RunningSandbox) -> int:
    """The bytes that the sandbox's daemon has read."""
    daemon = find_daemon(paths_of(sandbox.project_dir))
    assert daemon is not None
    return int(Path(f"/proc/{daemon.pid}/io").read_text().split()[1])
