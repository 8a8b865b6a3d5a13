"""Names and routes on hosts."""

import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING

import boto3
import pytest

from ec2_sandbox.hosts.network import NAME_SERVER_ADDRESS, name_server_of
from ec2_sandbox.paths import paths_of, read_settings
from sandbox_steps import RunningSandbox, Ssh, describe, wait_for

if TYPE_CHECKING:
    from mypy_boto3_ec2.type_defs import InstanceTypeDef

pytestmark = pytest.mark.sandbox

BY_PYTHON = "python3 -c 'import socket, sys; print(socket.gethostbyname(sys.argv[1]))'"
BACK_BY_PYTHON = "python3 -c 'import socket, sys; print(socket.gethostbyaddr(sys.argv[1])[0])'"
CONNECT = "timeout 10 bash -c 'exec 3<>/dev/tcp/$0/443'"
ETH_P_IP = 0x0800  # linux/if_ether.h


@dataclass(frozen=True)
class Inside:
    """Commands in one host."""

    ssh: Ssh
    address: str

    def read(self, command: str) -> str:
        return self.ssh.read(self.address, command)

    def fail(self, command: str) -> str:
        done = self.ssh.run(self.address, command, check=False)
        assert done.returncode != 0, done.stdout
        return done.stderr


@pytest.fixture
def inside(sandbox: RunningSandbox, pair: "list[InstanceTypeDef]", ssh: Ssh) -> Inside:
    """Commands in the first of the two hosts."""
    return Inside(ssh, pair[0]["PrivateIpAddress"])


def check_names(inside: Inside, instance: "InstanceTypeDef") -> None:
    address, private = instance["PrivateIpAddress"], instance["PrivateDnsName"]
    for name in (private, instance["PublicDnsName"], private.partition(".")[0]):
        assert inside.read(f"{BY_PYTHON} {name}") == address
    assert inside.read(f"{BACK_BY_PYTHON} {address}") == private
    assert inside.read(f"{BACK_BY_PYTHON} {instance['PublicIpAddress']}") == instance["PublicDnsName"]


def test_names_resolve_also_after_stop_and_start(inside: Inside, pair: "list[InstanceTypeDef]") -> None:
    ec2, other = boto3.client("ec2"), pair[1]
    ids = [other["InstanceId"]]
    check_names(inside, other)
    ec2.stop_instances(InstanceIds=ids)
    wait_for(ec2, "instance_stopped", ids)
    assert "Name or service not known" in inside.fail(f"{BY_PYTHON} {other['PublicDnsName']}")
    assert inside.read(f"{BY_PYTHON} {other['PrivateDnsName']}") == other["PrivateIpAddress"]
    ec2.start_instances(InstanceIds=ids)
    wait_for(ec2, "instance_running", ids)
    [again] = describe(ec2, ids)
    assert again["PublicDnsName"] != other["PublicDnsName"]
    check_names(inside, again)
    assert inside.ssh.read(again["PrivateIpAddress"], "hostname -f") == again["PrivateDnsName"]


def test_both_name_servers_answer_and_unknown_names_fail_at_once(inside: Inside, sandbox: RunningSandbox) -> None:
    """These errors are answers, not timeouts."""
    settings = read_settings(paths_of(sandbox.project_dir))
    for server in (NAME_SERVER_ADDRESS, name_server_of(settings.ranges.private)):
        inside.read(f"sudo sed -i 's/^nameserver .*/nameserver {server}/' /etc/resolv.conf")
        assert "[Errno -2] Name or service not known" in inside.fail(f"{BY_PYTHON} example.org")
        assert "Unknown host" in inside.fail(f"{BACK_BY_PYTHON} 9.9.9.9")


def test_packets_to_the_outside_are_rejected_at_once(inside: Inside, sandbox: RunningSandbox) -> None:
    gateway = read_settings(paths_of(sandbox.project_dir)).ranges.gateway.ip
    assert inside.read("ip route show default") == f"default via {gateway} dev eth0"
    # Programs find their own address like this.
    assert f" src {inside.address} " in inside.read("ip -o route get 8.8.8.8")
    # Protocol 0: until it is bound, it would receive from all interfaces.
    with socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, 0) as arriving:
        arriving.bind((paths_of(sandbox.project_dir).interface, ETH_P_IP))
        arriving.settimeout(0)
        # More connections than the kernel's own limit per second.
        for address in ("1.1.1.1", "192.168.77.1", "10.255.255.1", "169.254.1.1"):
            message = inside.fail(f"for i in 1 2 3 4 5 6 7 8; do {CONNECT} {address} || failed=$?; done; exit $failed")
            assert message.count("connect: Network is unreachable") == 8
        seen = set()
        try:
            while True:
                seen.add(socket.inet_ntoa(arriving.recv(2048)[16:20]))
        except BlockingIOError:
            pass
    assert seen == {str(gateway)}  # ssh's own packets
