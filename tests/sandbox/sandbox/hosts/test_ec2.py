"""EC2 with hosts as botocore's client sees it, where plain moto would be wrong."""

import ipaddress
from typing import TYPE_CHECKING, Any

import boto3
import pytest

from ec2_sandbox.paths import paths_of
from sandbox_steps import (
    RunningSandbox,
    describe,
    find_image,
    open_ssh,
    wait_for,
)

if TYPE_CHECKING:
    from mypy_boto3_ec2.client import EC2Client

pytestmark = pytest.mark.sandbox


@pytest.fixture
def ec2(sandbox: RunningSandbox) -> "EC2Client":
    client = boto3.client("ec2")
    open_ssh(client)
    return client


def run(ec2: "EC2Client", **changes: Any) -> list[str]:
    asked: dict[str, Any] = {"ImageId": find_image(), "InstanceType": "t3.micro", "MinCount": 1, "MaxCount": 1}
    reservation = ec2.run_instances(**asked | changes)
    return [instance["InstanceId"] for instance in reservation["Instances"]]


def test_addresses_are_in_the_sandboxs_ranges(sandbox: RunningSandbox, ec2: "EC2Client") -> None:
    private, public = (ipaddress.IPv4Network(c) for c in (sandbox.info.private_cidr, sandbox.info.public_cidr))
    [vpc] = ec2.describe_vpcs(Filters=[{"Name": "is-default", "Values": ["true"]}])["Vpcs"]
    assert vpc["CidrBlock"] == str(private)
    for subnet in ec2.describe_subnets()["Subnets"]:
        assert ipaddress.IPv4Network(subnet["CidrBlock"]).subnet_of(private)
    zones = [zone["ZoneName"] for zone in ec2.describe_availability_zones()["AvailabilityZones"]][:2]
    ids = [run(ec2, Placement={"AvailabilityZone": zone})[0] for zone in zones]
    for instance, zone in zip(describe(ec2, ids), zones, strict=True):
        assert instance["Placement"]["AvailabilityZone"] == zone
        assert ipaddress.ip_address(instance["PrivateIpAddress"]) in private
        assert ipaddress.ip_address(instance["PublicIpAddress"]) in public
        assert instance["VpcId"] == vpc["VpcId"]


def test_a_host_that_does_not_boot_terminates_with_a_reason(ec2: "EC2Client", sandbox: RunningSandbox) -> None:
    hosts_dir = paths_of(sandbox.project_dir).hosts_dir
    hosts_dir.rename(hosts_dir.with_suffix(".away"))
    hosts_dir.write_text("a file, so that no host can have a folder in it")
    try:
        ids = run(ec2)
        wait_for(ec2, "instance_terminated", ids)
    finally:
        hosts_dir.unlink()
        hosts_dir.with_suffix(".away").rename(hosts_dir)
    reason = describe(ec2, ids)[0]["StateReason"]
    assert reason["Code"] == "Server.InternalError"
    assert "hosts" in reason["Message"]
