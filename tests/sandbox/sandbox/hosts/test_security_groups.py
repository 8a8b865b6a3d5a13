"""Security groups on real hosts."""

import socket
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import boto3
import pytest

from sandbox_steps import RunningSandbox, Ssh, answers, enter, find_image, launch, state_of, wait_for

if TYPE_CHECKING:
    from mypy_boto3_ec2.client import EC2Client

pytestmark = pytest.mark.sandbox

# At port 7000: echoes TCP, and answers every UDP packet with one word.
ANSWER = """
import socket, threading
def udp():
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind(("0.0.0.0", 7000))
    while True:
        s.sendto(b"hello", s.recvfrom(99)[1])
threading.Thread(target=udp, daemon=True).start()
s = socket.create_server(("0.0.0.0", 7000))
while True:
    c, _ = s.accept()
    threading.Thread(target=lambda c=c: [c.sendall(d) for d in iter(lambda: c.recv(99), b"")]).start()
"""


@dataclass(frozen=True)
class Host:
    """An instance in a security group of its own."""

    ssh: Ssh
    instance_id: str
    group: str
    private: str
    public: str

    def reaches(self, address: str, port: int = 7000, *, expected: bool = True) -> bool:
        """Whether a TCP connection from this host succeeds. ssh to the host itself is always allowed."""
        return bool(self.probe({"tcp": expected}, address, port))

    def probe(self, expected: dict[str, bool], address: str, port: int = 7000) -> set[str]:
        """Which of these protocols get through.

        expected: what the test will assert; a probe that should succeed waits longer than one that should not.
        """
        talk = {
            "tcp": f"exec 3<>/dev/tcp/{address}/{port}",
            "udp": f"exec 3<>/dev/udp/{address}/{port}; echo >&3; head -c 5 <&3 | grep -q hello",
        }
        probes = [
            f"timeout {10 if passes else 1} bash -c '{talk[name]}' && echo {name} &"
            for name, passes in expected.items()
        ]
        return set(self.ssh.run(self.private, " ".join([*probes, "wait"]), check=False).stdout.split())


def rule(protocol: str = "-1", ports: tuple[int, int] | None = None, **peer: str) -> Any:
    made: dict[str, Any] = {"IpProtocol": protocol}
    if ports is not None:
        made |= {"FromPort": ports[0], "ToPort": ports[1]}
    if "cidr" in peer:
        made["IpRanges"] = [{"CidrIp": peer["cidr"]}]
    if "group" in peer:
        made["UserIdGroupPairs"] = [{"GroupId": peer["group"]}]
    return made


@pytest.fixture(scope="module")
def hosts(shared_sandbox: RunningSandbox, ssh: Ssh) -> Iterator[tuple[Host, Host]]:
    """Two hosts, each in a group of its own that lets ssh in and everything out."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        enter(shared_sandbox, monkeypatch)
        ec2 = boto3.client("ec2")
        found = []
        for name in ("one", "other"):
            group = ec2.create_security_group(GroupName=name, Description=name)["GroupId"]
            ec2.authorize_security_group_ingress(GroupId=group, IpPermissions=[rule("tcp", (22, 22), cidr="0.0.0.0/0")])
            [made] = launch(ssh, 1, SecurityGroupIds=[group])
            host = Host(ssh, made["InstanceId"], group, made["PrivateIpAddress"], made["PublicIpAddress"])
            ssh.run(host.private, f"setsid python3 -c '{ANSWER}' >/dev/null 2>&1 </dev/null &")
            ssh.run(host.private, "until (exec 3<>/dev/tcp/127.0.0.1/7000) 2>/dev/null; do sleep 0.1; done")
            found.append(host)
        yield found[0], found[1]
        ids = [host.instance_id for host in found]
        ec2.terminate_instances(InstanceIds=ids)
        wait_for(ec2, "instance_terminated", ids)
        for host in found:
            ec2.delete_security_group(GroupId=host.group)


@pytest.fixture
def ec2(sandbox: RunningSandbox, hosts: tuple[Host, Host]) -> "Iterator[EC2Client]":
    """The client; restores the groups at the end of the test."""
    client = boto3.client("ec2")
    groups = [host.group for host in hosts]
    before = {g["GroupId"]: g for g in client.describe_security_groups(GroupIds=groups)["SecurityGroups"]}
    yield client
    for group in client.describe_security_groups(GroupIds=groups)["SecurityGroups"]:
        known = before[group["GroupId"]]
        for name in ("ingress", "egress"):
            key = "IpPermissions" if name == "ingress" else "IpPermissionsEgress"
            changes: Any = (("revoke", group, known), ("authorize", known, group))
            for change, now, then in changes:
                rules = [r for r in now[key] if r not in then[key]]
                if rules:
                    getattr(client, f"{change}_security_group_{name}")(GroupId=group["GroupId"], IpPermissions=rules)


def test_packets_that_no_rule_allows_do_not_arrive(ec2: "EC2Client", hosts: tuple[Host, Host]) -> None:
    one, other = hosts
    assert one.reaches(other.private, 22)
    assert not one.probe({"tcp": False, "udp": False}, other.private)
    assert not one.reaches(other.public, expected=False)


def test_a_group_as_source_means_its_members_private_addresses(ec2: "EC2Client", hosts: tuple[Host, Host]) -> None:
    one, other = hosts
    ec2.authorize_security_group_ingress(GroupId=other.group, IpPermissions=[rule(group=one.group)])
    assert one.probe({"tcp": True, "udp": True}, other.private) == {"tcp", "udp"}
    # As on EC2, traffic to the public address comes from the sender's public address, which is in no group.
    assert not one.reaches(other.public, expected=False)
    assert not other.reaches(one.private, expected=False)
    with pytest.raises(TimeoutError):
        socket.create_connection((other.private, 7000), timeout=1.0)
    # Changes of membership also take effect at once.
    ec2.modify_instance_attribute(InstanceId=one.instance_id, Groups=[other.group])
    assert not one.reaches(other.private, expected=False)
    ec2.modify_instance_attribute(InstanceId=one.instance_id, Groups=[one.group, other.group])
    assert one.reaches(other.private)
    ec2.modify_instance_attribute(InstanceId=one.instance_id, Groups=[one.group])


def test_public_addresses_are_reached_from_public_ones(ec2: "EC2Client", hosts: tuple[Host, Host]) -> None:
    one, other = hosts
    allowed = rule("tcp", (7000, 7000), cidr=f"{one.public}/32")
    ec2.authorize_security_group_ingress(GroupId=other.group, IpPermissions=[allowed])
    assert one.reaches(other.public)
    assert not one.reaches(other.private, expected=False)


def test_the_groups_apply_to_this_machine_as_to_the_internet(
    ec2: "EC2Client", hosts: tuple[Host, Host], sandbox: RunningSandbox
) -> None:
    _, other = hosts
    with pytest.raises(TimeoutError):
        socket.create_connection((other.public, 7000), timeout=1.0)
    ec2.authorize_security_group_ingress(
        GroupId=other.group, IpPermissions=[rule("tcp", (7000, 7000), cidr="0.0.0.0/0")]
    )
    for address in (other.public, other.private):
        socket.create_connection((address, 7000), timeout=5.0).close()


def test_egress_rules(ec2: "EC2Client", hosts: tuple[Host, Host]) -> None:
    one, other = hosts
    everything = rule("-1", cidr="0.0.0.0/0")
    ec2.authorize_security_group_ingress(GroupId=other.group, IpPermissions=[everything])
    assert one.reaches(other.private)
    ec2.revoke_security_group_egress(GroupId=one.group, IpPermissions=[everything])
    assert not one.reaches(other.private, expected=False)
    ec2.authorize_security_group_egress(GroupId=one.group, IpPermissions=[rule("tcp", (7000, 7000), group=other.group)])
    assert one.probe({"tcp": True, "udp": False}, other.private) == {"tcp"}
    assert not one.reaches(other.private, 22, expected=False)


def test_open_connections_outlive_their_rule(ec2: "EC2Client", hosts: tuple[Host, Host]) -> None:
    _, other = hosts
    allowed = rule("tcp", (7000, 7000), cidr="0.0.0.0/0")
    ec2.authorize_security_group_ingress(GroupId=other.group, IpPermissions=[allowed])
    with socket.create_connection((other.public, 7000), timeout=5.0) as connection:
        ec2.revoke_security_group_ingress(GroupId=other.group, IpPermissions=[allowed])
        connection.sendall(b"still here")
        assert connection.recv(99) == b"still here"
        with pytest.raises(TimeoutError):
            socket.create_connection((other.public, 7000), timeout=1.0)


def test_the_hosts_own_firewall_is_its_own(ec2: "EC2Client", hosts: tuple[Host, Host]) -> None:
    """The host itself has no rules of the security groups that its root could see or undo."""
    one, other = hosts
    assert one.ssh.read(other.private, "sudo nft list ruleset; sudo nft flush ruleset") == ""
    assert not one.reaches(other.private, expected=False)


def test_the_groups_apply_from_the_first_packet(
    ec2: "EC2Client", hosts: tuple[Host, Host], sandbox: RunningSandbox
) -> None:
    group = ec2.create_security_group(GroupName="closed", Description="closed")["GroupId"]
    [made] = ec2.run_instances(
        ImageId=find_image(), InstanceType="g4dn.xlarge", SecurityGroupIds=[group], MinCount=1, MaxCount=1
    )["Instances"]
    address, state = made["PrivateIpAddress"], "pending"
    while state == "pending":
        state = state_of(ec2, made["InstanceId"])
        assert not answers(address, timeout_s=0.2)
    assert state == "running"
    ec2.authorize_security_group_ingress(GroupId=group, IpPermissions=[rule("tcp", (22, 22), cidr="0.0.0.0/0")])
    socket.create_connection((address, 22), timeout=5.0).close()
    ec2.terminate_instances(InstanceIds=[made["InstanceId"]])
    wait_for(ec2, "instance_terminated", [made["InstanceId"]])
    ec2.delete_security_group(GroupId=group)
