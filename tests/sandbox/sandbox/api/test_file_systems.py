"""EFS and FSx as clients see them through the sandbox's server: signed calls, named in the API log."""

import json

import boto3
import pytest
from botocore.exceptions import ClientError

from ec2_sandbox.paths import paths_of
from provision.aws.clients import make_clients
from provision.volumes.file_systems import find_file_system
from sandbox_steps import REGION, RunningSandbox

pytestmark = pytest.mark.sandbox


def test_both_are_described_by_signed_calls(phantom: RunningSandbox) -> None:
    ec2, efs, fsx = boto3.client("ec2"), boto3.client("efs"), boto3.client("fsx")
    subnet = ec2.describe_subnets()["Subnets"][0]
    efs_id = efs.create_file_system(CreationToken="shared")["FileSystemId"]
    efs.create_mount_target(FileSystemId=efs_id, SubnetId=subnet["SubnetId"])
    fsx_id = fsx.create_file_system(FileSystemType="LUSTRE", StorageCapacity=1200, SubnetIds=[subnet["SubnetId"]])[
        "FileSystem"
    ]["FileSystemId"]
    log = paths_of(phantom.project_dir).api_log
    before = len(log.read_text().splitlines())

    found = [find_file_system(make_clients(REGION), each) for each in (efs_id, fsx_id)]

    assert [each.kind for each in found] == ["efs", "lustre"]
    calls = [json.loads(line) for line in log.read_text().splitlines()[before:]]
    assert {(call["service"], call["action"]) for call in calls if call["service"] != "ec2"} == {
        ("elasticfilesystem", "DescribeFileSystems"),
        ("fsx", "DescribeFileSystems"),
    }
    assert all(call["caller"] for call in calls)
    with pytest.raises(ClientError, match="FileSystemNotFound"):
        efs.describe_file_systems(FileSystemId="fs-0123abcd")
