"""User data, instance metadata, shutdown and reboot from inside, elastic addresses."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import boto3
import pytest

from ec2_sandbox.paths import paths_of
from iam_steps import instance_profile
from sandbox_steps import RunningSandbox, Ssh, describe, enter, find_image, launch, state_of, wait_for
from waits import until

if TYPE_CHECKING:
    from mypy_boto3_ec2.client import EC2Client
    from mypy_boto3_ec2.type_defs import InstanceTypeDef

pytestmark = pytest.mark.sandbox

METADATA = "http://169.254.169.254"


def console_of(ec2: "EC2Client", instance_id: str) -> str:
    return ec2.get_console_output(InstanceId=instance_id)["Output"]


def until_on_console(ec2: "EC2Client", instance_id: str, words: str) -> None:
    until(lambda: words in console_of(ec2, instance_id), f"not on the console: {words}")


@dataclass(frozen=True)
class Metadata:
    """The metadata service, queried with curl inside a host."""

    ssh: Ssh
    address: str

    def ask(self, path: str, *options: str, version: int = 2) -> tuple[int, str]:
        """Requests a path; returns the status code and the body."""
        token = ""
        if version == 2:
            token = f"$(curl -s -X PUT -H 'X-aws-ec2-metadata-token-ttl-seconds: 60' {METADATA}/latest/api/token)"
            token = f'-H "X-aws-ec2-metadata-token: {token}"'
        output = self.ssh.run(
            self.address, f"curl -s -w '\\n%{{http_code}}' {token} {' '.join(options)} {METADATA}{path}", check=False
        ).stdout
        body, _, code = output.rpartition("\n")
        return int(code), body

    def read(self, path: str) -> str:
        code, body = self.ask(f"/latest/meta-data/{path}")
        assert code == 200, path
        return body


@pytest.fixture(scope="module")
def instance(shared_sandbox: RunningSandbox, ssh: Ssh) -> "Iterator[InstanceTypeDef]":
    """An instance with a role, user data and IMDSv2 required, for the tests that do not change it."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        enter(shared_sandbox, monkeypatch)
        with instance_profile("trainer") as profile:
            [made] = launch(
                ssh,
                1,
                UserData="#!/bin/sh\necho the user data ran as $(id -un); exit 3\n",
                MetadataOptions={"HttpTokens": "required", "InstanceMetadataTags": "enabled"},
                TagSpecifications=[{"ResourceType": "instance", "Tags": [{"Key": "Name", "Value": "one of many"}]}],
                **profile,
            )
            yield made
            boto3.client("ec2").terminate_instances(InstanceIds=[made["InstanceId"]])


@pytest.fixture
def metadata(sandbox: RunningSandbox, instance: "InstanceTypeDef", ssh: Ssh) -> Metadata:
    return Metadata(ssh, instance["PublicIpAddress"])


def test_user_data_runs_as_root_and_shows_on_the_console(
    sandbox: RunningSandbox, instance: "InstanceTypeDef", ssh: Ssh
) -> None:
    address, ec2 = instance["PublicIpAddress"], boto3.client("ec2")
    ssh.run(address, "cloud-init status --wait")
    # The output reaches the console, and then the log, a little later.
    until_on_console(ec2, instance["InstanceId"], "Cloud-init v. sandbox finished")
    console = console_of(ec2, instance["InstanceId"])
    assert "the user data ran as root" in console
    assert "scripts/part-001 ended with code 3" in console
    log = "/var/log/cloud-init-output.log"
    until(lambda: "the user data ran as root" in ssh.read(address, f"cat {log}"), "it is not in the log")


def test_metadata_has_the_same_values_as_the_api(metadata: Metadata, instance: "InstanceTypeDef") -> None:
    interface = instance["NetworkInterfaces"][0]
    for path, value in {
        "instance-id": instance["InstanceId"],
        "ami-id": instance["ImageId"],
        "instance-type": "g4dn.xlarge",
        "instance-life-cycle": "on-demand",
        "local-ipv4": instance["PrivateIpAddress"],
        "public-ipv4": instance["PublicIpAddress"],
        "hostname": instance["PrivateDnsName"],
        "local-hostname": instance["PrivateDnsName"],
        "public-hostname": instance["PublicDnsName"],
        "placement/availability-zone": instance["Placement"]["AvailabilityZone"],
        "placement/region": "us-east-1",
        "security-groups": "default",
        "mac": interface["MacAddress"],
        f"network/interfaces/macs/{interface['MacAddress']}/subnet-id": instance["SubnetId"],
        "tags/instance/Name": "one of many",
        "public-keys/": "0=test",
        "iam/security-credentials/": "trainer",
    }.items():
        assert metadata.read(path) == value, path
    document = json.loads(metadata.ask("/latest/dynamic/instance-identity/document")[1])
    assert document["instanceId"] == instance["InstanceId"]
    assert document["region"] == "us-east-1"
    assert metadata.ask("/latest/user-data")[1].startswith("#!/bin/sh\necho the user data")
    assert "public-keys/" in metadata.read("").splitlines()
    assert metadata.ask("/latest/meta-data/nothing")[0] == 404
    assert metadata.ask("/latest/meta-data/spot/instance-action")[0] == 404


def test_metadata_version_1_is_refused_where_tokens_are_required(metadata: Metadata) -> None:
    path = "/latest/meta-data/instance-id"
    assert metadata.ask(path, version=1)[0] == 401
    assert metadata.ask(path, "-H 'X-aws-ec2-metadata-token: made-up'", version=1)[0] == 401
    for ttl, code in (("0", 400), ("21601", 400), ("x", 400), ("21600", 200)):
        option = f"-X PUT -H 'X-aws-ec2-metadata-token-ttl-seconds: {ttl}'"
        assert metadata.ask("/latest/api/token", option, version=1)[0] == code, ttl


def test_metadata_token_stays_within_the_hop_limit(metadata: Metadata, ssh: Ssh, sandbox: RunningSandbox) -> None:
    """A network namespace in the host is one hop further away, as a container is."""
    container = (
        "sudo ip netns add box; sudo ip link add b0 type veth peer name b1 netns box;"
        "sudo ip addr add 172.31.255.1/24 dev b0; sudo ip link set b0 up; sudo sysctl -qw net.ipv4.ip_forward=1;"
        "sudo ip netns exec box ip addr add 172.31.255.2/24 dev b1; sudo ip netns exec box ip link set b1 up;"
        "sudo ip netns exec box ip route add default via 172.31.255.1;"
        "sudo nft 'table ip nat { chain post { type nat hook postrouting priority 100;"
        " ip saddr 172.31.255.0/24 masquerade; }; }'"
    )
    ssh.run(metadata.address, container)
    ask = f"sudo ip netns exec box curl -s -m %d -X PUT -o /dev/null -w '%%{{http_code}}' \
        -H 'X-aws-ec2-metadata-token-ttl-seconds: 60' {METADATA}/latest/api/token"
    assert ssh.run(metadata.address, ask % 2, check=False).stdout == "000"
    boto3.client("ec2").modify_instance_metadata_options(
        InstanceId=metadata.read("instance-id"), HttpPutResponseHopLimit=2
    )
    assert ssh.read(metadata.address, ask % 20) == "200"


def test_reboot_and_shutdown_inside(sandbox: RunningSandbox, ssh: Ssh) -> None:
    """A reboot keeps everything but processes. A scheduled shutdown can be cancelled, another one stops the host."""
    ec2 = boto3.client("ec2")
    [made] = launch(ssh, 1)
    address = made["PublicIpAddress"]
    # A process that gets SIGTERM can still write.
    trap = "trap 'echo ended >/tmp/last-words; exit' TERM; touch /tmp/set; while :; do sleep 0.1; done"
    until_set = "until [ -e /tmp/set ]; do sleep 0.1; done"
    ssh.run(address, f'echo kept >~/file; setsid sh -c "{trap}" >/dev/null 2>&1 & {until_set}')
    # The host may still answer before it goes down. Another start time means another boot.
    begin = "cut -d ' ' -f 22 /proc/1/stat"
    before = ssh.read(address, begin)
    ssh.run(address, "sudo reboot; sleep 5", check=False)
    until(lambda: ssh.run(address, begin, check=False).stdout.strip() not in ("", before), "it did not reboot")
    assert ssh.read(address, "cat ~/file /tmp/last-words") == "kept\nended"
    assert ssh.run(address, "pgrep -f last-words", check=False).stdout == ""
    [after] = describe(ec2, [made["InstanceId"]])
    assert after["State"]["Name"] == "running"
    assert (after["PublicIpAddress"], after["PrivateIpAddress"]) == (address, made["PrivateIpAddress"])
    check_schedule(ssh, address)
    ssh.run(address, "sudo shutdown -h now; sleep 5", check=False)
    until(lambda: state_of(ec2, made["InstanceId"]) == "stopped", "it is not stopped")
    assert describe(ec2, [made["InstanceId"]])[0]["StateReason"]["Code"] == "Client.InstanceInitiatedShutdown"


def test_a_host_that_does_not_boot_terminates_with_a_reason(sandbox: RunningSandbox) -> None:
    ec2, hosts_dir = boto3.client("ec2"), paths_of(sandbox.project_dir).hosts_dir
    hosts_dir.rename(hosts_dir.with_suffix(".away"))
    hosts_dir.write_text("a file, so that no host can have a folder in it")
    try:
        [made] = ec2.run_instances(ImageId=find_image(), InstanceType="t3.micro", MinCount=1, MaxCount=1)["Instances"]
        wait_for(ec2, "instance_terminated", [made["InstanceId"]])
    finally:
        hosts_dir.unlink()
        hosts_dir.with_suffix(".away").rename(hosts_dir)
    reason = describe(ec2, [made["InstanceId"]])[0]["StateReason"]
    assert (reason["Code"], "hosts" in reason["Message"]) == ("Server.InternalError", True)


def check_schedule(ssh: Ssh, address: str) -> None:
    """A shutdown that is scheduled waits for its time until it is cancelled."""
    assert "use 'shutdown -c' to cancel" in ssh.read(address, "sudo shutdown -h +1")
    until(lambda: ssh.run(address, "test -e /run/shutdown.pid", check=False).returncode == 0, "not scheduled")

    def waiting() -> str:
        return ssh.run(address, "pgrep -fc '[k]ill -38 1'", check=False).stdout.strip()

    # A new child has its parent's command line until it executes its own program.
    until(lambda: waiting() == "1", "not one process waits for its time")
    ssh.run(address, "sudo shutdown -c")
    until(lambda: waiting() == "0", "it is not cancelled")
