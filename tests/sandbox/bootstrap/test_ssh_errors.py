"""Errors of ssh to a real host, for each reason that makes it unreachable."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import boto3
import pytest
from msgspec.structs import replace

import bootstrap.ssh.connection
from bootstrap.ssh.connection import InstanceAccess, NodeConnection, wait_for_connection
from bootstrap.ssh.host import Host
from bootstrap.ssh.keys import HostKeyPins
from cluster.nodes.ec2 import open_console
from foundation.errors import ConnectError
from foundation.remote_command import RemoteCommand
from provision.aws.clients import make_clients
from sandbox_steps import REGION, RunningSandbox, Ssh, enter, launch, open_ssh

pytestmark = pytest.mark.sandbox

AWAY = "/home/ubuntu/.ssh/away"
KEYS = "/home/ubuntu/.ssh/authorized_keys"


@dataclass(frozen=True, kw_only=True, slots=True)
class Node:
    """A host for the key of `ssh`, and its pins; `held` is a connection opened before the faults."""

    host: Host
    pins: HostKeyPins
    ssh: Ssh
    held: list[NodeConnection] = field(default_factory=list)

    def reach(self, *, key: Path | None = None, timeout_s: float = 0.5, **other: Any) -> NodeConnection:
        console = open_console(partial(make_clients, REGION))
        access = InstanceAccess(private_key=key or self.ssh.key, pins=self.pins, console=console)
        return wait_for_connection(replace(self.host, **other), access, timeout_s=timeout_s)

    def refused(self, *, key: Path | None = None, **other: Any) -> ConnectError:
        with pytest.raises(ConnectError) as caught, closing(self.reach(key=key, **other)):
            pass
        return caught.value

    def do(self, command: str) -> str:
        return self.held[0].run(RemoteCommand(command), timeout_s=20).stdout


@pytest.fixture(scope="module")
def made(shared_sandbox: RunningSandbox, ssh: Ssh, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    with pytest.MonkeyPatch.context() as monkeypatch:
        enter(shared_sandbox, monkeypatch)
        [instance] = launch(ssh, 1, "errors")
        host = Host(
            name="node-0",
            instance_id=instance["InstanceId"],
            address=instance["PublicIpAddress"],
            private_ip=instance["PrivateIpAddress"],
            user="ubuntu",
            is_head=True,
        )
        node = Node(host=host, pins=HostKeyPins(tmp_path_factory.mktemp("pins") / "known_hosts"), ssh=ssh)
        with closing(node.reach(timeout_s=20)) as held:
            node.held.append(held)
            yield node
        boto3.client("ec2").terminate_instances(InstanceIds=[host.instance_id])


@pytest.fixture
def node(made: Node, sandbox: RunningSandbox) -> Node:
    """The shared node; each test restores it."""
    return made


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sets a short timeout, only for tests of a silent node, since others may need the time."""
    monkeypatch.setattr(bootstrap.ssh.connection, "CONNECT_TIMEOUT_S", 2)


def until_reached(node: Node) -> None:
    with closing(node.reach(timeout_s=20)) as connection:
        assert connection.run(RemoteCommand("id -un")).stdout == "ubuntu\n"


def test_a_key_that_the_node_no_longer_has(node: Node) -> None:
    node.do(f"mv {KEYS} {AWAY}")
    try:
        error = node.refused()
    finally:
        node.do(f"mv {AWAY} {KEYS}")
    assert "does not accept the cluster's key for user ubuntu: the image's user has another name" in error.message
    assert "  its console's last lines:\n  | " in error.message
    until_reached(node)


@pytest.mark.usefixtures("impatient")
def test_an_sshd_that_hangs(node: Node) -> None:
    node.do("sudo pkill -STOP -o -x sshd")
    try:
        error = node.refused()
    finally:
        node.do("sudo pkill -CONT -o -x sshd")
    assert "port 22 takes connections, but no sshd answers there" in error.message
    until_reached(node)


@pytest.mark.usefixtures("impatient")
def test_a_security_group_that_lets_nobody_in(node: Node) -> None:
    ec2 = boto3.client("ec2")
    group = open_ssh(ec2)
    ec2.revoke_security_group_ingress(GroupId=group, IpProtocol="tcp", FromPort=22, ToPort=22, CidrIp="0.0.0.0/0")
    try:
        error = node.refused()
    finally:
        open_ssh(ec2)
    assert "no answer on port 22" in error.message
    assert "does the security group allow your address?" in error.message
    assert error.hint == "cluster allow, if your address has changed since `cluster up`; else cluster status"
    until_reached(node)
