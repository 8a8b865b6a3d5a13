"""A security group without the rule between its members stops distributed training, and with it the job runs."""

import pytest
from mypy_boto3_ec2.client import EC2Client

from job_steps import ec2_of, only_these_ports_between_members
from project import Project

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
    return ec2_of(two_nodes, monkeypatch)


def test_training_with_ssh_alone_between_members_names_the_blocked_port(two_nodes: Project, ec2: EC2Client) -> None:
    with only_these_ports_between_members(ec2, (22, 22)):
        failed = two_nodes.run("train", "--", "python", "-c", PROGRAM, code=1)
    assert "the scheduler's port 909" in failed.stdout
    assert "cannot be reached from here" in failed.stdout
    assert "node-1" in failed.stderr


def test_training_needs_the_rule_between_members(two_nodes: Project, ec2: EC2Client) -> None:
    with only_these_ports_between_members(ec2):
        failed = two_nodes.run("train", "--", "python", "-c", PROGRAM, code=None)
        assert failed.returncode != 0
        assert "sum" not in failed.stdout
        assert "port 22" in failed.stderr
        assert "timed out" in failed.stderr
    done = two_nodes.run("train", "--", "python", "-c", PROGRAM)
    assert done.stdout.count("sum 12.0") == 2
