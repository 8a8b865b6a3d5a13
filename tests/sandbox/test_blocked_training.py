"""A security group without the rule between its members stops distributed training, and with it the job runs."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import boto3
import pytest
from mypy_boto3_ec2.client import EC2Client

from project import Project
from sandbox import control
from sandbox_steps import RunningSandbox, enter

pytestmark = pytest.mark.sandbox

PROGRAM = """
import mxnet as mx
kv = mx.kv.create("dist_sync")
kv.init("a", mx.nd.zeros((2, 3)))
kv.push("a", mx.nd.ones((2, 3)))
out = mx.nd.zeros((2, 3))
kv.pull("a", out=out)
print("sum", out.asnumpy().sum())
"""


@pytest.fixture
def ec2(two_nodes: Project, monkeypatch: pytest.MonkeyPatch) -> EC2Client:
    info = control.find_running(two_nodes.directory)
    assert info is not None
    enter(
        RunningSandbox(project_dir=two_nodes.directory, info=info, environment=control.environment(info)), monkeypatch
    )
    assert os.environ["AWS_ENDPOINT_URL"] == info.endpoint_url
    return boto3.client("ec2")


@contextmanager
def without_the_rule_between_members(ec2: EC2Client) -> Iterator[None]:
    named = [{"Name": "tag:cluster:name", "Values": ["*"]}]
    [group] = ec2.describe_security_groups(Filters=named)["SecurityGroups"]
    rules = [rule for rule in group["IpPermissions"] if rule["UserIdGroupPairs"]]
    assert rules
    ec2.revoke_security_group_ingress(GroupId=group["GroupId"], IpPermissions=rules)
    try:
        yield
    finally:
        ec2.authorize_security_group_ingress(GroupId=group["GroupId"], IpPermissions=rules)


def test_training_with_ssh_alone_between_members_names_the_blocked_port(two_nodes: Project, ec2: EC2Client) -> None:
    named = [{"Name": "tag:cluster:name", "Values": ["*"]}]
    [group] = ec2.describe_security_groups(Filters=named)["SecurityGroups"]
    members = [{"GroupId": group["GroupId"]}]
    ssh = [{"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22, "UserIdGroupPairs": members}]
    with without_the_rule_between_members(ec2):
        ec2.authorize_security_group_ingress(GroupId=group["GroupId"], IpPermissions=ssh)  # type: ignore[arg-type]
        try:
            failed = two_nodes.run("train", "--", "python", "-c", PROGRAM, code=1)
        finally:
            ec2.revoke_security_group_ingress(GroupId=group["GroupId"], IpPermissions=ssh)  # type: ignore[arg-type]
    assert "the scheduler's port 909" in failed.stdout
    assert "cannot be reached from here" in failed.stdout
    assert "node-1" in failed.stderr


def test_training_needs_the_rule_between_members(two_nodes: Project, ec2: EC2Client) -> None:
    with without_the_rule_between_members(ec2):
        failed = two_nodes.run("train", "--", "python", "-c", PROGRAM, code=None)
        assert failed.returncode != 0
        assert "sum" not in failed.stdout
        assert "port 22" in failed.stderr
        assert "timed out" in failed.stderr
    done = two_nodes.run("train", "--", "python", "-c", PROGRAM)
    assert done.stdout.count("sum 12.0") == 2
