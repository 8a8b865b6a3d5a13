from typing import Any, NoReturn

import pytest

from foundation.errors import AwsError
from foundation.progress import silent
from provision.allow import prepare_allow
from provision.apply import apply
from provision.power import describe_disks_gib, plan_stop
from provision_world import CALLER_NETWORK, NAME, World, aws_error, listening, make_config

OTHER = "198.51.100.1/32"


def test_stop_and_start_take_one_call_each(world: World) -> None:
    before = world.up(make_config(nodes=8))
    world.calls.made.clear()
    world.stop()
    assert world.calls.mutating() == {"StopInstances": 1}
    assert {node.state for node in world.describe().nodes} == {"stopped"}
    assert describe_disks_gib(world.clients.ec2, name=NAME) == 800
    world.calls.made.clear()
    after = world.start()
    assert world.calls.mutating() == {"StartInstances": 1}
    assert [(n.instance_id, n.index, n.role, n.state) for n in after.nodes] == [
        (n.instance_id, n.index, n.role, "running") for n in before.nodes
    ]
    assert all(node.public_ip for node in after.nodes)


def test_a_start_of_nodes_that_have_just_stopped(world: World) -> None:
    """Not all of EC2's servers know yet that they are stopped."""
    world.sandbox.reset(consistency_delay_s=20)
    world.up(make_config())
    world.stop()
    assert {node.state for node in world.start().nodes} == {"running"}
    assert world.calls.mutating()["StartInstances"] > 1


def test_a_start_that_fails(world: World) -> None:
    before = world.up(make_config(nodes=3))
    plan = plan_stop(world.describe())
    world.clients.ec2.terminate_instances(InstanceIds=[before.nodes[1].instance_id])
    apply(plan, clients=world.clients, files=world.files, report=silent)  # stops the others

    def refuse(**_: Any) -> NoReturn:
        raise aws_error("InsufficientInstanceCapacity", "StartInstances")

    with (
        listening(world.clients.ec2, "before-call.ec2.StartInstances", refuse),
        pytest.raises(AwsError, match=r"AWS says: .*Insufficient.*, while starting the nodes") as caught,
    ):
        world.start()
    assert "only in their own zone" in (caught.value.hint or "")
    assert [(node.index, node.state) for node in world.describe().nodes] == [(0, "stopped"), (2, "stopped")]
    assert {node.state for node in world.start().nodes} == {"running"}  # although node 1 is missing


def test_a_node_that_stops_while_starting(world: World) -> None:
    world.up(make_config())
    world.stop()
    [victim, _] = world.sandbox.backend.sandbox_instances()

    def lose(**_: Any) -> None:
        victim._end("stopping", "Server.ScheduledStop", "something is wrong")

    with (
        listening(world.clients.ec2, "after-call.ec2.StartInstances", lose),
        pytest.raises(AwsError, match=f"1 of the nodes stopped.*{victim.id}: Server.ScheduledStop") as caught,
    ):
        world.start()
    assert "cluster start again" in str(caught.value.hint)


def test_allow_replaces_our_rule_and_keeps_those_made_by_hand(world: World) -> None:
    world.up(make_config())
    world.clients.ec2.authorize_security_group_ingress(
        GroupName="cluster-demo", IpProtocol="tcp", FromPort=22, ToPort=22, CidrIp="192.0.2.0/24"
    )
    config = make_config(ssh_from=OTHER)
    plan, group, ssh_from = prepare_allow(world.clients, name=NAME, config=config, files=world.files)
    assert (group.ssh_from, ssh_from) == ((CALLER_NETWORK,), OTHER)
    apply(plan, clients=world.clients, files=world.files, report=silent)
    now = world.describe().security_group
    assert now is not None
    assert (now.ssh_from, now.ssh_open_to) == ((OTHER,), ("192.0.2.0/24", OTHER))
    assert not prepare_allow(world.clients, name=NAME, config=config, files=world.files)[0]
