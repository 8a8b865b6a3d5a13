"""`up` and `down` against an EC2 in this process: complete, repeatable, nobody else's."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from foundation.errors import AwsError, ClusterError
from foundation.progress import Event, silent
from provision.down import prepare_down, render_receipt
from provision.files import ClusterFiles
from provision.plan import Context
from provision.resources.launch import LaunchNodes
from provision.resources.security_group import AuthorizeIngress
from provision.up import up
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


@contextmanager
def failing_once(world: World, operation: str, code: str, *, when: str = "before") -> Iterator[list[str]]:
    """The first call of an operation answers with an error: `before` it took effect, or `after`."""
    failed: list[str] = []

    def fail(**call: Any) -> None:
        if not failed and "DryRun" not in str(call.get("params", "")):
            failed.append(operation)
            raise ClientError({"Error": {"Code": code, "Message": "in AWS's words"}}, operation)

    clients = (world.clients.ec2, world.clients.run_ec2)
    for client in clients:
        client.meta.events.register(f"{when}-call.ec2.{operation}", fail)
    try:
        yield failed
    finally:
        for client in clients:
            client.meta.events.unregister(f"{when}-call.ec2.{operation}", fail)


def test_a_launch_whose_reply_was_an_error_is_not_repeated(late_world: World) -> None:
    with failing_once(late_world, "RunInstances", "InternalError", when="after") as failed:
        late_world.up(make_config())
    assert failed
    assert late_world.resources() == complete(2)


def test_a_rule_that_somebody_was_quicker_to_add(world: World) -> None:
    """EC2 refuses the whole call then (moto too): the other rule has to be added all the same."""
    group_id = world.clients.ec2.create_security_group(GroupName="cluster-demo", Description="x")["GroupId"]
    world.clients.ec2.authorize_security_group_ingress(
        GroupId=group_id, IpProtocol="tcp", FromPort=22, ToPort=22, CidrIp="203.0.113.7/32"
    )
    context = Context(cluster=NAME, owner="", clients=world.clients, files=world.files, report=silent)
    step = AuthorizeIngress(group_id=group_id, ssh_from="203.0.113.7/32", members=True)

    assert step.apply(context) is True
    assert world.describe().security_groups[0].open_to_members
    assert step.apply(context) is False


def test_a_rule_that_is_gone_already(world: World) -> None:
    world.up(make_config())
    with failing_once(world, "RevokeSecurityGroupIngress", "InvalidPermission.NotFound", when="after") as failed:
        state = world.up(make_config(ssh_from="198.51.100.1"))
    assert failed
    assert state.security_groups[0].ssh_from == ("198.51.100.1/32",)


def test_nodes_that_do_not_start_in_time(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = world.prepare(make_config())

    def pending(parsed: dict[str, Any], **_: Any) -> None:
        for instance in [i for r in parsed["Reservations"] for i in r["Instances"]]:
            instance["State"]["Name"] = "pending"

    events = world.clients.ec2.meta.events
    events.register("after-call.ec2.DescribeInstances", pending)
    try:
        with pytest.raises(AwsError, match="nodes 0-1 do not run after 600 s"):
            up(plan, clients=world.clients, files=world.files, report=silent)
    finally:
        events.unregister("after-call.ec2.DescribeInstances", pending)
    assert len(world.up(make_config()).nodes) == 2
