"""Instances with a cluster's tag that this machine did not launch receive nothing until they are adopted.

Anyone in the account who may run tagged instances can make one. The tests count what reaches an instance on its own
side, by the TCP connections that its network namespace has accepted.
"""

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ec2_sandbox import control
from job_steps import ec2_of
from project import Project
from sandbox_steps import Ssh, describe, find_image, wait_for

pytestmark = pytest.mark.sandbox

TAGGED: Any = [{"Name": "tag:cluster:name", "Values": ["demo"]}]


@dataclass(frozen=True, kw_only=True)
class Intruder:
    """An instance that claims to be node-2 by the tags that `cluster up` makes. pid: of its host's first process."""

    instance_id: str
    pid: int

    def accepted_connections(self) -> int:
        """The number of TCP connections accepted on it since it booted."""
        names, values = [
            line.split()[1:] for line in Path(f"/proc/{self.pid}/net/snmp").read_text().splitlines() if "Tcp: " in line
        ]
        return int(dict(zip(names, values, strict=True))["PassiveOpens"])


@pytest.fixture
def ec2(two_nodes: Project, monkeypatch: pytest.MonkeyPatch) -> Any:
    """EC2 of the sandbox that the two nodes are in, as anyone in the account sees it."""
    return ec2_of(two_nodes, monkeypatch)


@pytest.fixture
def intruders(two_nodes: Project, ec2: Any, ssh: Ssh) -> Iterator[list[Intruder]]:
    """With the cluster's key pair outside its group, inside the group with another key pair, and with both.

    The last is what a colleague's `up` or a careful attacker would launch.
    """
    [ours] = ec2.describe_security_groups(Filters=TAGGED)["SecurityGroups"]
    node = find_nodes(ec2)[0]
    ec2.import_key_pair(KeyName="mine", PublicKeyMaterial=ssh.key.with_suffix(".pub").read_bytes())
    own = ec2.create_security_group(GroupName="mine", Description="mine", VpcId=ours["VpcId"])["GroupId"]
    ec2.authorize_security_group_ingress(GroupId=own, IpProtocol="-1", CidrIp="0.0.0.0/0")
    tags = {tag["Key"]: tag["Value"] for tag in node["Tags"]} | {"cluster:index": "2"}
    ids = [
        ec2.run_instances(
            ImageId=find_image(), MinCount=1, MaxCount=1, InstanceType=node["InstanceType"], SubnetId=node["SubnetId"],
            KeyName=key, SecurityGroupIds=[group],
            TagSpecifications=[{
                "ResourceType": "instance", "Tags": [{"Key": name, "Value": value} for name, value in tags.items()]
            }],
        )["Instances"][0]["InstanceId"]
        for key, group in (("cluster-demo", own), ("mine", ours["GroupId"]), ("cluster-demo", ours["GroupId"]))
    ]  # fmt: skip
    try:
        wait_for(ec2, "instance_running", ids)
        pids = {host.instance_id: host.pid for host in control.describe(two_nodes.directory).hosts}
        yield [Intruder(instance_id=each, pid=pids[each] or 0) for each in ids]
    finally:
        ec2.terminate_instances(InstanceIds=ids)
        wait_for(ec2, "instance_terminated", ids)
        ec2.delete_key_pair(KeyName="mine")
        ec2.delete_security_group(GroupId=own)


def find_nodes(ec2: Any) -> list[Any]:
    running = [*TAGGED, {"Name": "instance-state-name", "Values": ["running"]}]
    return [i for r in ec2.describe_instances(Filters=running)["Reservations"] for i in r["Instances"]]


def nodes_of(project: Project) -> list[str]:
    return [node["name"] for node in json.loads(project.run("status", "--json").stdout)["nodes"]]


@pytest.mark.slow
def test_untrusted_instances_get_nothing_until_adopted(two_nodes: Project, intruders: list[Intruder], ec2: Any) -> None:
    """Only a possible node can be adopted, and `resize` ignores the others."""
    other_group, other_key, alike = (each.instance_id for each in intruders)
    before = [each.accepted_connections() for each in intruders]

    done = two_nodes.run("exec", "--", "true")
    assert "3 instances" in done.stderr
    program = "import os, mxnet; mxnet.kv.create('dist_sync'); print('secret', os.environ['SECRET'])"
    job = two_nodes.run("train", "-n", "3", "--env", "SECRET=s3cr3t", "--", "python", "-c", program)
    assert job.stdout.count("secret s3cr3t") == 3
    assert "3 instances with its tag are not trusted" in job.stderr
    assert "has no node node-2" in two_nodes.run("ssh", "node-2", code=1).stderr
    two_nodes.run("verify")
    assert "there was nothing to do" in two_nodes.run("up").stderr
    status = two_nodes.run("status").stdout
    assert all(each in status for each in (other_group, other_key, alike))
    assert "not launched by this machine" in status
    assert "cluster adopt" in status
    refused = two_nodes.run("adopt", "--yes", other_key, code=1).stderr
    assert "its key pair is 'mine', not 'cluster-demo'" in refused
    assert "--yes" in two_nodes.run("adopt", alike, code=2).stderr
    assert nodes_of(two_nodes) == ["node-0", "node-1"]
    assert [each.accepted_connections() for each in intruders] == before

    answer = json.loads(two_nodes.run("adopt", "--yes", "--json").stdout)
    assert {each["instance_id"]: each["adopted"] for each in answer} == {
        other_group: False, other_key: False, alike: True,
    }  # fmt: skip
    assert "security group" in next(each for each in answer if each["instance_id"] == other_group)["why"]
    assert nodes_of(two_nodes) == ["node-0", "node-1", "node-2"]
    two_nodes.run("up", "--nodes", "3")
    assert two_nodes.run("exec", "--", "echo", "hello").stdout.count("hello") == 3

    left = two_nodes.run("resize", "2").stderr
    assert "left alone" in left
    assert other_group in left
    states = {i["InstanceId"]: i["State"]["Name"] for i in describe(ec2, [other_group, other_key, alike])}
    assert states == {other_group: "running", other_key: "running", alike: "terminated"}
    assert [each.accepted_connections() for each in intruders[:2]] == before[:2]


def test_a_second_laptop_adopts_the_cluster(two_nodes: Project, tmp_path: Path) -> None:
    """It has the project and, of the first laptop's files, only the private key."""
    [key] = (two_nodes.directory / "state").rglob("id_ed25519")
    place = tmp_path / "state" / key.relative_to(two_nodes.directory / "state")
    place.parent.mkdir(parents=True, mode=0o700)
    shutil.copy(key, place)
    second = Project(two_nodes.directory, env={"XDG_STATE_HOME": str(tmp_path / "state")})

    for words in (["exec", "--", "true"], ["train"], ["ssh"], ["jobs"]):
        told = second.run(*words, code=1).stderr
        assert "no nodes that this machine launched" in told
        assert "cluster adopt" in told
    assert nodes_of(second) == []
    launching = second.run("up", "--dry-run").stdout
    assert "cluster adopt" in launching
    assert "left alone" in launching

    second.run("adopt", "--yes")

    assert nodes_of(second) == ["node-0", "node-1"]
    assert second.run("exec", "--", "echo", "hello").stdout.count("hello") == 2
    assert "nothing to adopt" in second.run("adopt", "--yes").stderr
