"""Each fault of the API, as botocore's client sees it; armed by the command's own function."""

import json
from typing import Any

import boto3
import pytest
from botocore.exceptions import (
    ClientError,
    ConnectionClosedError,
    IncompleteReadError,
    ResponseStreamingError,
    SSLError,
)

from ec2_client import Client, client, code_of, ids_of, live, refused_as, run
from ec2_sandbox import control
from ec2_sandbox.errors import SandboxError
from sandbox_steps import RunningSandbox, wait_for

pytestmark = pytest.mark.sandbox

MIB = 1 << 20


@pytest.fixture
def ec2(phantom: RunningSandbox) -> Client:
    return client("ec2")


@pytest.fixture
def s3(phantom: RunningSandbox) -> Client:
    made = client("s3", s3={"addressing_style": "path"})
    made.create_bucket(Bucket="faults")
    made.put_object(Bucket="faults", Key="digits/0", Body=b"x" * MIB)
    return made


def arm(sandbox: RunningSandbox, text: str) -> str:
    return str(control.cause_fault(sandbox.project_dir, text)["id"])


def refused(ec2: Client, count: int = 1, **asked: Any) -> str:
    with pytest.raises(ClientError) as caught:
        run(ec2, count, **asked)
    return code_of(caught)


# --- capacity


def test_ending_instances_give_capacity_back(ec2: Client, phantom: RunningSandbox) -> None:
    arm(phantom, "capacity zone=us-east-1b free=2")
    here = {"AvailabilityZone": "us-east-1b"}
    first, second = ids_of(run(ec2, 2, Placement=here))
    waiter = boto3.client("ec2")
    wait_for(waiter, "instance_running", [first, second])
    assert refused(ec2, Placement=here) == "InsufficientInstanceCapacity"
    ec2.stop_instances(InstanceIds=[first])
    wait_for(waiter, "instance_stopped", [first])
    ec2.terminate_instances(InstanceIds=[second])
    wait_for(waiter, "instance_terminated", [second])
    [third] = ids_of(run(ec2, Placement=here))
    ec2.start_instances(InstanceIds=[first])
    assert refused(ec2, Placement=here) == "InsufficientInstanceCapacity"
    wait_for(waiter, "instance_running", [first, third])
    ec2.terminate_instances(InstanceIds=[first, third])
    wait_for(waiter, "instance_terminated", [first, third])
    [fault] = control.list_faults(phantom.project_dir)
    assert fault["parameters"]["free"] == "2"


# --- quotas


@pytest.mark.parametrize(
    ("market", "code"), [("on-demand", "VcpuLimitExceeded"), ("spot", "MaxSpotInstanceCountExceeded")]
)
def test_vcpu_limit(ec2: Client, phantom: RunningSandbox, market: str, code: str) -> None:
    arm(phantom, f"vcpu-limit market={market} count=1")
    asked: dict[str, Any] = {"InstanceMarketOptions": {"MarketType": "spot"}} if market == "spot" else {}
    assert refused(ec2, **asked) == code
    run(ec2, **asked)


# --- refused calls


def test_the_next_calls_are_throttled(ec2: Client, phantom: RunningSandbox) -> None:
    arm(phantom, "throttle action=Describe* count=2")
    ec2.create_security_group(GroupName="not-throttled", Description="x")
    for _ in range(2):
        with refused_as("RequestLimitExceeded") as caught:
            ec2.describe_instances()
        assert caught.value.response["ResponseMetadata"]["HTTPStatusCode"] == 503
    ec2.describe_instances()
    ec2.delete_security_group(GroupName="not-throttled")


def test_slow_answers(ec2: Client, phantom: RunningSandbox) -> None:
    arm(phantom, "slow service=ec2 action=DescribeVpcs ms=30")
    ec2.describe_vpcs()
    last = json.loads(control.api_log(phantom.project_dir).read_text().splitlines()[-1])
    assert (last["fault"], last["duration_ms"] >= 30) == ("slow service=ec2 action=DescribeVpcs ms=30", True)


@pytest.mark.parametrize(
    ("kind", "service", "call", "code"),
    [
        ("throttle", "ssm", lambda c: c.get_parameter(Name="/x"), "ThrottlingException"),
        ("internal-error", "ec2", lambda c: c.describe_vpcs(), "InternalError"),
        ("unauthorized", "ec2", lambda c: c.describe_vpcs(), "UnauthorizedOperation"),
        ("unauthorized", "service-quotas", lambda c: c.list_service_quotas(ServiceCode="ec2"), "AccessDeniedException"),
    ],
)
def test_each_service_has_its_own_error_code(
    phantom: RunningSandbox, kind: str, service: str, call: Any, code: str
) -> None:
    arm(phantom, f"{kind} count=1")
    with refused_as(code):
        call(client(service))
    assert not control.list_faults(phantom.project_dir)


def test_a_call_with_an_internal_error_has_no_effect(ec2: Client, phantom: RunningSandbox) -> None:
    arm(phantom, "internal-error action=RunInstances")
    assert refused(ec2, ClientToken="internal") == "InternalError"
    assert not live(ec2)
    run(ec2, ClientToken="internal")


# --- S3


def test_s3_slows_down_for_an_operation(s3: Client, phantom: RunningSandbox) -> None:
    arm(phantom, "s3-503 operation=CreateMultipartUpload")
    s3.head_bucket(Bucket="faults")
    with refused_as("SlowDown") as caught:
        s3.create_multipart_upload(Bucket="faults", Key="digits/2")
    assert caught.value.response["ResponseMetadata"]["HTTPStatusCode"] == 503
    s3.create_multipart_upload(Bucket="faults", Key="digits/2")


def test_a_download_is_cut(s3: Client, phantom: RunningSandbox) -> None:
    arm(phantom, f"s3-cut operation=GetObject after_bytes={MIB}")
    body = s3.get_object(Bucket="faults", Key="digits/0")["Body"]
    got = bytearray()
    with pytest.raises((IncompleteReadError, ResponseStreamingError)):
        got.extend(piece for part in iter(lambda: body.read(100), b"") for piece in part)
    assert len(got) <= MIB - 1
    assert len(s3.get_object(Bucket="faults", Key="digits/0")["Body"].read()) == MIB


def test_an_upload_is_cut_and_leaves_no_object(s3: Client, phantom: RunningSandbox) -> None:
    arm(phantom, "s3-cut operation=PutObject after_bytes=1000")
    with pytest.raises((ConnectionClosedError, SSLError)):  # the client may notice the cut at different moments
        s3.put_object(Bucket="faults", Key="cut", Body=b"y" * MIB)
    assert "cut" not in {entry["Key"] for entry in s3.list_objects_v2(Bucket="faults")["Contents"]}
    s3.put_object(Bucket="faults", Key="cut", Body=b"y" * MIB)
    s3.delete_object(Bucket="faults", Key="cut")


# --- hosts


def test_a_fault_of_hosts_needs_hosts(phantom: RunningSandbox) -> None:
    with pytest.raises(SandboxError, match="this sandbox has no hosts"):
        arm(phantom, "freeze instance=i-1")
