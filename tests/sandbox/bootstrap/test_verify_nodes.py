"""The real `cluster verify`: healthy nodes, and each fault with its cause and the next command."""

import json
import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import boto3
import pytest

from job_steps import ec2_of
from project import Project

if TYPE_CHECKING:
    from mypy_boto3_ec2.client import EC2Client
    from mypy_boto3_s3.client import S3Client

pytestmark = pytest.mark.sandbox

BUCKET = "cluster-demo"
FOLDER = "verify"
KEY = f"{FOLDER}/verify.rec"
RECORD = struct.pack("<II", 0xCED7230A, 5) + b"hello\0\0\0"


@pytest.fixture(autouse=True)
def own_folder(two_nodes: Project) -> Iterator[None]:
    """Sets [data] url to a folder that other tests do not use."""
    path = two_nodes.directory / "cluster.toml"
    text = path.read_text()
    path.write_text(text.replace(f"s3://{BUCKET}/digits/", f"s3://{BUCKET}/{FOLDER}/"))
    yield
    path.write_text(text)


@pytest.fixture
def ec2(two_nodes: Project, monkeypatch: pytest.MonkeyPatch) -> "EC2Client":
    """EC2 of the two nodes' sandbox, at which all AWS clients of this process are pointed."""
    return ec2_of(two_nodes, monkeypatch)


@pytest.fixture
def record(ec2: "EC2Client") -> "Iterator[S3Client]":
    """[data] url holds one object, with one record of 5 bytes."""
    s3 = boto3.client("s3")
    exists = BUCKET in [bucket["Name"] for bucket in s3.list_buckets()["Buckets"]]
    if not exists:
        s3.create_bucket(Bucket=BUCKET)
    s3.put_object(Bucket=BUCKET, Key=KEY, Body=RECORD)
    yield s3
    s3.delete_object(Bucket=BUCKET, Key=KEY)
    if not exists:
        s3.delete_bucket(Bucket=BUCKET)


def verified(project: Project, code: int = 0) -> tuple[list[dict[str, Any]], str]:
    """Runs `cluster verify`; returns all checks, and stderr."""
    done = project.run("verify", "--json", code=code)
    return json.loads(done.stdout), done.stderr


def failures(checks: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(check["node"], check["check"]) for check in checks if check["status"] == "failed"]


@pytest.mark.usefixtures("record")
def test_healthy_nodes_pass_every_check(two_nodes: Project) -> None:
    checks, _ = verified(two_nodes)
    kinds = ("health", "compute", "s3", "ports", "clock", "disk")
    assert [(check["node"], check["check"], check["status"]) for check in checks] == [
        (node, kind, "ok") for node in ("node-0", "node-1") for kind in kinds
    ]
    computed = [check for check in checks if check["check"] == "compute"]
    assert [(check["subject"], check["result"]) for check in computed] == [
        ("cpu(0)", "MXNet 1.7.0: ones((2,3))*2+1 == 3")
    ] * 2
    read = [check for check in checks if check["check"] == "s3"]
    assert {check["subject"] for check in read} == {f"s3://{BUCKET}/{KEY}"}
    assert {check["result"] for check in read} == {"read by MXNet, a record of 5 bytes"}


@pytest.mark.slow
def test_a_blocking_security_group_is_reported_and_repaired(two_nodes: Project, ec2: "EC2Client") -> None:
    [group] = ec2.describe_security_groups(Filters=[{"Name": "tag:cluster:name", "Values": ["*"]}])["SecurityGroups"]
    rules = [rule for rule in group["IpPermissions"] if rule["UserIdGroupPairs"]]
    ec2.revoke_security_group_ingress(GroupId=group["GroupId"], IpPermissions=rules)
    try:
        checks, output = verified(two_nodes, code=1)
    finally:
        two_nodes.run("up")
    assert failures(checks) == [("node-0", "ports"), ("node-1", "ports")]
    assert "node-0, node-1: ports, from every other node: timed out" in output
    assert "try: cluster up" in output
    table = two_nodes.run("verify").stdout
    assert table.count("open for 1 other node") == 2
