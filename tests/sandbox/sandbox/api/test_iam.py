"""Instance profiles, and regions."""

from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError

from ec2_client import Client, client, code_of, live, run
from iam_steps import ACCOUNT
from sandbox_steps import RunningSandbox

pytestmark = pytest.mark.sandbox


@pytest.fixture
def ec2(phantom: RunningSandbox) -> Client:
    return client("ec2")


# --- instance profiles


def refusal(ec2: Client, **asked: Any) -> tuple[str, str]:
    with pytest.raises(ClientError) as caught:
        run(ec2, 2, **asked)
    return code_of(caught), caught.value.response["Error"]["Message"]


@pytest.mark.parametrize("dry", [False, True])
def test_a_missing_profile_launches_nothing(ec2: Client, dry: bool) -> None:  # noqa: FBT001 -- pytest's parameter
    assert refusal(ec2, IamInstanceProfile={"Name": "nobody"}, DryRun=dry) == (
        "InvalidParameterValue",
        "Value (nobody) for parameter iamInstanceProfile.name is invalid. Invalid IAM Instance Profile name",
    )
    arn = f"arn:aws:iam::{ACCOUNT}:instance-profile/nobody"
    code, message = refusal(ec2, IamInstanceProfile={"Arn": arn}, DryRun=dry)
    assert code == "InvalidParameterValue"
    assert message.startswith(f"Value ({arn}) for parameter iamInstanceProfile.arn is invalid.")
    assert not live(ec2)


def test_a_profile_without_a_role_launches_nothing(ec2: Client) -> None:
    client("iam").create_instance_profile(InstanceProfileName="empty")
    code, message = refusal(ec2, IamInstanceProfile={"Name": "empty"})
    assert code == "InvalidParameterValue"
    assert message.endswith('instance-profile/empty" has no associated IAM Roles')
    assert not live(ec2)


def test_late_errors_launch_nothing(ec2: Client) -> None:
    unknown = {"DeviceName": "/dev/sdf", "Ebs": {"SnapshotId": "snap-00000000000000000"}}
    assert refusal(ec2, BlockDeviceMappings=[unknown])[0] == "InvalidSnapshot.NotFound"
    assert not live(ec2)
    in_use = {"Name": "status", "Values": ["in-use"]}
    assert not ec2.describe_network_interfaces(Filters=[in_use])["NetworkInterfaces"]


# --- another region


@pytest.mark.parametrize(
    ("service", "call"),
    [
        ("ec2", lambda c: c.describe_instances()),
        ("ssm", lambda c: c.get_parameter(Name="/x")),
    ],
)
def test_a_call_to_another_region_names_the_sandboxs_region(phantom: RunningSandbox, service: Any, call: Any) -> None:
    with pytest.raises(ClientError) as caught:
        call(boto3.client(service, region_name="eu-west-1"))
    assert caught.value.response["Error"]["Code"] == "InvalidRegion"
    assert caught.value.response["Error"]["Message"] == (
        "the sandbox of this folder runs in us-east-1, not in eu-west-1"
    )
