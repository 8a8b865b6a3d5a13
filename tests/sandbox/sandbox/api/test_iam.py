"""Instance profiles, and regions."""

import uuid
from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError

from ec2_client import Client, client, code_of, ids_of, live, run
from iam_steps import ACCOUNT, make_profile
from sandbox_steps import RunningSandbox

pytestmark = pytest.mark.sandbox

EC2_ARN = f"arn:aws:ec2:us-east-1:{ACCOUNT}"
LAUNCH_KINDS = ("instance", "volume", "network-interface", "security-group", "subnet")
MANY_TAGS = [{"Key": f"key-{number}", "Value": ""} for number in range(60)]
OURS = {"Key": "cluster:name", "Value": "demo"}


@pytest.fixture
def ec2(phantom: RunningSandbox) -> Client:
    return client("ec2")


@pytest.fixture
def group_id(ec2: Client) -> Iterator[str]:
    made = ec2.create_security_group(GroupName=f"group-{uuid.uuid4().hex[:8]}", Description="x")["GroupId"]
    yield made
    ec2.delete_security_group(GroupId=made)


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


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        ({"BlockDeviceMappings": [{"DeviceName": "/dev/sdf", "Ebs": {"SnapshotId": "snap-00000000000000000"}}]},
         "InvalidSnapshot.NotFound"),
        ({"TagSpecifications": [{"ResourceType": "instance", "Tags": MANY_TAGS}]}, "TagLimitExceeded"),
    ],
)  # fmt: skip
def test_late_errors_launch_nothing(ec2: Client, asked: dict[str, Any], code: str) -> None:
    assert refusal(ec2, **asked)[0] == code
    assert not live(ec2)
    in_use = {"Name": "status", "Values": ["in-use"]}
    assert not ec2.describe_network_interfaces(Filters=[in_use])["NetworkInterfaces"]


def test_every_instance_of_a_launch_has_the_profile(ec2: Client) -> None:
    launched = run(ec2, 3, **make_profile(f"profile-{uuid.uuid4().hex[:8]}"))
    found = ec2.describe_iam_instance_profile_associations()["IamInstanceProfileAssociations"]
    assert {one["InstanceId"] for one in found} >= set(ids_of(launched))


# --- another region


@pytest.mark.parametrize(
    ("service", "call"),
    [
        ("ec2", lambda c: c.describe_instances()),
        ("ssm", lambda c: c.get_parameter(Name="/x")),
        ("service-quotas", lambda c: c.list_service_quotas(ServiceCode="ec2")),
    ],
)
def test_a_call_to_another_region_names_the_sandboxs_region(phantom: RunningSandbox, service: Any, call: Any) -> None:
    with pytest.raises(ClientError) as caught:
        call(boto3.client(service, region_name="eu-west-1"))
    assert caught.value.response["Error"]["Code"] == "InvalidRegion"
    assert caught.value.response["Error"]["Message"] == (
        "the sandbox of this folder runs in us-east-1, not in eu-west-1"
    )


def test_global_services_work_in_every_region(phantom: RunningSandbox) -> None:
    assert boto3.client("sts", region_name="eu-west-1").get_caller_identity()["Account"] == ACCOUNT
    assert boto3.client("iam", region_name="eu-west-1").list_users()["Users"]
