"""`up` and `down` against an EC2 in this process."""

import os
from pathlib import Path
from typing import Any

import pytest

from foundation.errors import AwsError, ClusterError
from foundation.progress import Event, silent
from provision.files import ClusterFiles
from provision.plan import Context
from provision.resources.security_group import AuthorizeIngress
from provision.up import up
from provision_world import NAME, World, complete, listening, make_config


def test_up_makes_a_complete_cluster(world: World) -> None:
    state = world.up(make_config(nodes=3))

    assert [(node.name, node.role, node.state) for node in state.nodes] == [
        ("node-0", "head", "running"),
        ("node-1", "worker", "running"),
        ("node-2", "worker", "running"),
    ]
    assert all(node.public_ip and node.private_ip for node in state.nodes)
    assert world.resources() == complete(3)
    group = state.security_group
    assert group is not None
    assert (group.ssh_from, group.ssh_open_to, group.open_to_members) == (
        ("203.0.113.7/32",),
        ("203.0.113.7/32",),
        True,
    )


def test_instances_and_group_are_secure(world: World) -> None:
    world.up(make_config())

    ec2 = world.clients.ec2
    [reservation] = ec2.describe_instances()["Reservations"]
    for instance in reservation["Instances"]:
        options = instance["MetadataOptions"]
        assert (options["HttpTokens"], options["HttpEndpoint"], options["HttpPutResponseHopLimit"]) == (
            "required",
            "enabled",
            1,
        )
        assert instance["KeyName"] == "cluster-demo"
        assert instance["BlockDeviceMappings"][0]["Ebs"]["DeleteOnTermination"] is True
    tagged = [volume for volume in ec2.describe_volumes()["Volumes"] if volume.get("Tags")]
    assert [(volume["Encrypted"], volume["VolumeType"], volume["Size"]) for volume in tagged] == [
        (True, "gp3", 100)
    ] * 2
    [group] = ec2.describe_security_groups(GroupNames=["cluster-demo"])["SecurityGroups"]
    opened = {
        (rule["IpProtocol"], rule.get("FromPort"), network["CidrIp"])
        for rule in group["IpPermissions"]
        for network in rule["IpRanges"]
    }
    assert opened == {("tcp", 22, "203.0.113.7/32")}


def test_down_works_without_the_local_files(world: World, tmp_path: Path) -> None:
    world.up(make_config())
    world.files = ClusterFiles(tmp_path / "another machine")

    assert world.down().leftovers == ()
    assert not world.resources()


@pytest.mark.parametrize("nodes", [1, 32, pytest.param(1000, marks=pytest.mark.slow)])
def test_the_number_of_calls_does_not_grow_with_the_nodes(world: World, nodes: int) -> None:
    world.up(make_config(nodes=nodes))
    assert len(world.describe().nodes) == nodes
    world.down()

    assert world.calls.mutating() == {
        "ImportKeyPair": 1,
        "CreateSecurityGroup": 1,
        "AuthorizeSecurityGroupIngress": 1,
        **({"CreatePlacementGroup": 1, "DeletePlacementGroup": 1} if nodes > 1 else {}),
        "RunInstances": 1,
        "TerminateInstances": 1,
        "DeleteSecurityGroup": 1,
        "DeleteKeyPair": 1,
    }
    assert sum(world.calls.mutating().values()) <= 12


def test_up_replaces_a_lost_node_with_the_same_index(world: World) -> None:
    before = world.up(make_config(nodes=4))
    lost = [before.nodes[0].instance_id, before.nodes[2].instance_id]
    world.clients.ec2.terminate_instances(InstanceIds=lost)

    after = world.up(make_config(nodes=4))

    assert [node.index for node in after.nodes] == [0, 1, 2, 3]
    assert after.nodes[1] == before.nodes[1]
    assert after.nodes[3] == before.nodes[3]
    assert not {node.instance_id for node in after.nodes} & set(lost)


def test_an_old_plan_does_not_double_the_cluster(world: World) -> None:
    plan = world.prepare(make_config())
    world.up(make_config())
    events: list[Event] = []

    up(plan, clients=world.clients, files=world.files, report=events.append)

    assert world.resources() == complete(2)
    assert {event.kind for event in events if event.what.startswith(("make", "launch"))} == {"start", "same"}


def test_one_command_at_a_time(world: World) -> None:
    plan = world.prepare(make_config())

    with world.files.locked(), pytest.raises(ClusterError, match=f"process {os.getpid()}"):
        up(plan, clients=world.clients, files=world.files, report=silent)
    assert not world.resources()


def test_one_of_two_rules_exists(world: World) -> None:
    """EC2 (like moto) then rejects the whole call, but `up` must still add the other rule."""
    group_id = world.clients.ec2.create_security_group(GroupName="cluster-demo", Description="x")["GroupId"]
    world.clients.ec2.authorize_security_group_ingress(
        GroupId=group_id, IpProtocol="tcp", FromPort=22, ToPort=22, CidrIp="203.0.113.7/32"
    )
    context = Context(cluster=NAME, owner="", clients=world.clients, files=world.files, report=silent)
    step = AuthorizeIngress(group_id=group_id, ssh_from="203.0.113.7/32", members=True)

    assert step.apply(context) is True
    assert world.describe().security_groups[0].open_to_members
    assert step.apply(context) is False


def test_nodes_that_do_not_start_in_time(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("provision.resources.instances.RUNNING_TIMEOUT_S", 60.0)
    plan = world.prepare(make_config())

    def pending(parsed: dict[str, Any], **_: Any) -> None:
        for instance in [i for r in parsed["Reservations"] for i in r["Instances"]]:
            instance["State"]["Name"] = "pending"

    with (
        listening(world.clients.ec2, "after-call.ec2.DescribeInstances", pending),
        pytest.raises(AwsError, match="nodes 0-1 do not run after 60 s"),
    ):
        up(plan, clients=world.clients, files=world.files, report=silent)
    assert len(world.up(make_config()).nodes) == 2
