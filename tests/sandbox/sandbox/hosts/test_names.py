"""Names and routes on hosts."""

import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING

import boto3
import dns.message
import pytest

from ec2_sandbox.hosts.network import NAME_SERVER_ADDRESS, name_server_of
from ec2_sandbox.paths import Settings, paths_of, read_json
from sandbox_steps import RunningSandbox, Ssh, describe, wait_for

if TYPE_CHECKING:
    from mypy_boto3_ec2.type_defs import InstanceTypeDef

pytestmark = pytest.mark.sandbox

BY_PYTHON = "python3 -c 'import socket, sys; print(socket.gethostbyname(sys.argv[1]))'"
BACK_BY_PYTHON = "python3 -c 'import socket, sys; print(socket.gethostbyaddr(sys.argv[1])[0])'"
ASK_BY_UDP = """
import socket, sys
asker = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
asker.settimeout(10)
asker.connect((sys.argv[1], 53))
asker.send(bytes.fromhex(sys.argv[2]))
print(asker.recv(4096).hex())
"""
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


def names_of(instance: "InstanceTypeDef") -> set[str]:
    """All names of an instance in EC2."""
    [interface] = instance["NetworkInterfaces"]
    return {
        instance["PrivateDnsName"], instance["PublicDnsName"],
        interface["PrivateDnsName"], interface["Association"]["PublicDnsName"],
    }  # fmt: skip


def check_names(inside: Inside, instance: "InstanceTypeDef") -> None:
    address = instance["PrivateIpAddress"]
    assert len(names_of(instance)) == 2
    for name in names_of(instance):
        found = inside.read(f"getent ahostsv4 {name}")
        assert {line.split()[0] for line in found.splitlines()} == {address}
        assert inside.read(f"{BY_PYTHON} {name}") == address
    assert inside.read(f"{BY_PYTHON} {instance['PrivateDnsName'].partition('.')[0]}") == address
    assert inside.read(f"getent hosts {address}").split() == [address, instance["PrivateDnsName"]]
    assert inside.read(f"{BACK_BY_PYTHON} {address}") == instance["PrivateDnsName"]
    assert inside.read(f"{BACK_BY_PYTHON} {instance['PublicIpAddress']}") == instance["PublicDnsName"]


@pytest.mark.slow
def test_names_resolve_to_the_other_host(inside: Inside, pair: "list[InstanceTypeDef]") -> None:
    """Also after stop and start."""
    ec2 = boto3.client("ec2")
    other = pair[1]
    check_names(inside, other)
    ec2.stop_instances(InstanceIds=[other["InstanceId"]])
    wait_for(ec2, "instance_stopped", [other["InstanceId"]])
    assert "Name or service not known" in inside.fail(f"{BY_PYTHON} {other['PublicDnsName']}")
    assert inside.read(f"{BY_PYTHON} {other['PrivateDnsName']}") == other["PrivateIpAddress"]
    ec2.start_instances(InstanceIds=[other["InstanceId"]])
    wait_for(ec2, "instance_running", [other["InstanceId"]])
    [again] = describe(ec2, [other["InstanceId"]])
    assert again["PublicDnsName"] != other["PublicDnsName"]
    check_names(inside, again)
    other_way = Inside(inside.ssh, again["PrivateIpAddress"])
    check_names(other_way, pair[0])
    assert other_way.read("hostname; hostname -f").split() == [
        again["PrivateDnsName"].partition(".")[0], again["PrivateDnsName"]
    ]  # fmt: skip


def test_name_server_answers_at_both_addresses(
    inside: Inside, pair: "list[InstanceTypeDef]", sandbox: RunningSandbox
) -> None:
    settings = read_json(paths_of(sandbox.project_dir).settings_file, Settings)
    query = dns.message.make_query(pair[1]["PrivateDnsName"], "A")
    for server in (NAME_SERVER_ADDRESS, name_server_of(settings.ranges.private)):
        reply = inside.read(f"python3 -c '{ASK_BY_UDP}' {server} {query.to_wire().hex()}")
        [found] = dns.message.from_wire(bytes.fromhex(reply)).answer
        assert found.to_text().split()[-1] == pair[1]["PrivateIpAddress"]


# These errors are answers, not timeouts.
def test_unknown_names_fail_at_once(inside: Inside) -> None:
    for name in ("example.org", "unknown", "ip-10-47-0.ec2.internal"):
        assert "[Errno -2] Name or service not known" in inside.fail(f"{BY_PYTHON} {name}")
    assert "Unknown host" in inside.fail(f"{BACK_BY_PYTHON} 9.9.9.9")


def test_packets_to_the_outside_are_rejected_at_once(
    inside: Inside, pair: "list[InstanceTypeDef]", sandbox: RunningSandbox
) -> None:
    gateway = read_json(paths_of(sandbox.project_dir).settings_file, Settings).ranges.gateway.ip
    assert inside.read("ip route show default") == f"default via {gateway} dev eth0"
    # Programs find their own address like this.
    assert f" src {inside.address} " in inside.read("ip -o route get 8.8.8.8")
    # Protocol 0: until it is bound, it would receive from all interfaces.
    with socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, 0) as arriving:
        arriving.bind((paths_of(sandbox.project_dir).interface, ETH_P_IP))
        arriving.settimeout(0)
        # More connections than the kernel's own limit per second.
        for address in ("1.1.1.1", "192.168.77.1", "10.255.255.1", "169.254.1.1"):
            said = inside.fail(f"for i in 1 2 3 4 5 6 7 8; do {CONNECT} {address} || failed=$?; done; exit $failed")
            assert said.count("connect: Network is unreachable") == 8
        seen = set()
        try:
            while True:
                seen.add(socket.inet_ntoa(arriving.recv(2048)[16:20]))
        except BlockingIOError:
            pass
    assert seen == {str(gateway)}  # ssh's own packets
