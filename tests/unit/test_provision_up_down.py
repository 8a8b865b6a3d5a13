"""`up` and `down` against an EC2 in this process: complete, repeatable, nobody else's."""

import os
from pathlib import Path

import pytest

from provision.ending import prepare_down
from provision.errors import ClusterError
from provision.files import ClusterFiles
from provision.lifecycle import up
from provision.progress import Event, silent
from provision.receipt import render_receipt
from provision.steps import LaunchNodes
from provision_world import NAME, World, complete, make_config


def test_up_makes_a_whole_cluster(world: World) -> None:
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


def test_what_ec2_is_told_about_security(world: World) -> None:
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


def test_a_second_up_has_nothing_to_do(world: World) -> None:
    world.up(make_config())
    world.calls.made.clear()

    plan = world.prepare(make_config())
    up(plan, clients=world.clients, files=world.files, report=silent)

    assert not plan
    assert not world.calls.mutating()


def test_down_leaves_nothing_and_says_so(world: World) -> None:
    world.up(make_config())

    receipt = world.down()

    assert not world.resources()
    assert receipt.leftovers == ()
    assert sorted(resource.kind for resource in receipt.deleted) == [
        "instance",
        "instance",
        "key pair",
        "local files",
        "placement group",
        "security group",
    ]
    assert "cluster demo is gone" in render_receipt(receipt)
    assert not world.files.root.exists()


def test_a_second_down_finds_nothing(world: World) -> None:
    world.up(make_config())
    world.down()
    world.calls.made.clear()

    assert not prepare_down(world.clients, name=NAME, files=world.files, report=silent)
    assert render_receipt(world.down()) == "cluster demo: nothing is there\n"
    assert not world.calls.mutating()


def test_down_works_from_a_machine_that_has_none_of_the_files(world: World, tmp_path: Path) -> None:
    world.up(make_config())
    world.files = ClusterFiles(tmp_path / "another machine")

    assert world.down().leftovers == ()
    assert not world.resources()


@pytest.mark.parametrize("nodes", [1, 2, 32, pytest.param(1000, marks=pytest.mark.slow)])
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


def test_a_node_that_was_lost_comes_back_with_its_index(world: World) -> None:
    before = world.up(make_config(nodes=4))
    lost = [before.nodes[0].instance_id, before.nodes[2].instance_id]
    world.clients.ec2.terminate_instances(InstanceIds=lost)

    after = world.up(make_config(nodes=4))

    assert [node.index for node in after.nodes] == [0, 1, 2, 3]
    assert after.nodes[1] == before.nodes[1]
    assert after.nodes[3] == before.nodes[3]
    assert not {node.instance_id for node in after.nodes} & set(lost)


def test_up_again_after_the_callers_address_changed(world: World) -> None:
    world.up(make_config())
    world.clients.ec2.authorize_security_group_ingress(
        GroupName="cluster-demo", IpProtocol="tcp", FromPort=22, ToPort=22, CidrIp="192.0.2.0/24"
    )

    group = world.up(make_config(ssh_from="198.51.100.1")).security_group

    assert group is not None
    assert group.ssh_from == ("198.51.100.1/32",)
    assert group.ssh_open_to == ("192.0.2.0/24", "198.51.100.1/32")  # the rule made by hand stays


def test_what_somebody_else_made_is_never_touched(world: World) -> None:
    world.clients.ec2.create_key_pair(KeyName="cluster-demo")
    world.clients.ec2.create_security_group(GroupName="cluster-demo", Description="mine")

    with pytest.raises(ClusterError, match="did not make"):
        world.up(make_config())
    assert not prepare_down(world.clients, name=NAME, files=world.files, report=silent)
    assert world.resources() == {"keys": 1, "groups": 1}


def test_a_name_taken_between_plan_and_apply_is_refused(world: World) -> None:
    plan = world.prepare(make_config())
    world.clients.ec2.create_security_group(GroupName="cluster-demo", Description="mine")

    with pytest.raises(ClusterError, match="security group cluster-demo"):
        up(plan, clients=world.clients, files=world.files, report=silent)
    assert "RunInstances" not in world.calls.made


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


def test_a_node_that_ends_while_starting_is_named_with_its_reason(world: World) -> None:
    plan = world.prepare(make_config())

    def end_one(event: Event) -> None:
        if event.kind == "done" and event.what.startswith("launch"):
            world.clients.ec2.terminate_instances(InstanceIds=[world.describe().nodes[1].instance_id])

    with pytest.raises(ClusterError, match=r"1 of the nodes ended while starting: i-\w+: Client.UserInitiated"):
        up(plan, clients=world.clients, files=world.files, report=end_one)
    assert [node.index for node in world.up(make_config()).nodes] == [0, 1]


def test_the_launch_step_says_which_nodes(world: World) -> None:
    plan = world.prepare(make_config(nodes=3))

    [launch] = [step for step in plan.steps if isinstance(step, LaunchNodes)]
    assert launch.indices == (0, 1, 2)
