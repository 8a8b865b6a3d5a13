"""Two running hosts for the tests of a file."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import boto3
import pytest

from sandbox_steps import RunningSandbox, Ssh, enter, launch

if TYPE_CHECKING:
    from mypy_boto3_ec2.type_defs import InstanceTypeDef


@pytest.fixture(scope="module")
def pair(shared_sandbox: RunningSandbox, ssh: Ssh) -> "Iterator[list[InstanceTypeDef]]":
    """Two hosts that can reach each other's sshd; each test undoes its changes to them."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        enter(shared_sandbox, monkeypatch)
        instances = launch(ssh, 2)
        yield instances
        boto3.client("ec2").terminate_instances(InstanceIds=[one["InstanceId"] for one in instances])
