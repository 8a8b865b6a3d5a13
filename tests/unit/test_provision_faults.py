"""Calls that AWS refuses, loses or answers late, and nodes that do not start."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from botocore.exceptions import ClientError

from provision.access import authorize_ingress
from provision.context import Context
from provision.errors import AwsError
from provision.lifecycle import up
from provision.progress import silent
from provision.steps import AuthorizeIngress
from provision_world import NAME, World, complete, make_config


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


@pytest.mark.parametrize(
    ("operation", "code", "when"),
    [
        ("AuthorizeSecurityGroupIngress", "InvalidGroup.NotFound", "before"),
        ("RunInstances", "RequestLimitExceeded", "before"),
        ("RunInstances", "InvalidGroup.NotFound", "before"),
        ("RunInstances", "InvalidKeyPair.NotFound", "before"),
    ],
)
def test_up_asks_again_where_that_helps(world: World, operation: str, code: str, when: str) -> None:
    with failing_once(world, operation, code, when=when) as failed:
        world.up(make_config())
    assert failed
    assert world.resources() == complete(2)


def test_a_launch_whose_reply_was_an_error_is_not_repeated(late_world: World) -> None:
    with failing_once(late_world, "RunInstances", "InternalError", when="after") as failed:
        late_world.up(make_config())
    assert failed
    assert late_world.resources() == complete(2)


@pytest.mark.parametrize(
    ("operation", "code", "when"),
    [
        ("DeleteSecurityGroup", "DependencyViolation", "before"),
        ("DeleteSecurityGroup", "InvalidGroup.NotFound", "after"),
        ("TerminateInstances", "InvalidInstanceID.NotFound", "before"),
        ("TerminateInstances", "InvalidInstanceID.NotFound", "after"),
    ],
)
def test_down_goes_on_where_that_helps(world: World, operation: str, code: str, when: str) -> None:
    world.up(make_config())
    with failing_once(world, operation, code, when=when) as failed:
        assert world.down().leftovers == ()
    assert failed
    assert not world.resources()


def test_a_rule_that_somebody_was_quicker_to_add(world: World) -> None:
    """EC2 refuses the whole call then (moto too): the other rule has to be added all the same."""
    group_id = world.clients.ec2.create_security_group(GroupName="cluster-demo", Description="x")["GroupId"]
    world.clients.ec2.authorize_security_group_ingress(
        GroupId=group_id, IpProtocol="tcp", FromPort=22, ToPort=22, CidrIp="203.0.113.7/32"
    )
    context = Context(cluster=NAME, owner="", clients=world.clients, files=world.files, report=silent)
    step = AuthorizeIngress(group_id=group_id, ssh_from="203.0.113.7/32", members=True)

    assert authorize_ingress(step, context) is True
    assert world.describe().security_groups[0].open_to_members
    assert authorize_ingress(step, context) is False


def test_a_rule_that_is_gone_already(world: World) -> None:
    world.up(make_config())
    with failing_once(world, "RevokeSecurityGroupIngress", "InvalidPermission.NotFound", when="after") as failed:
        state = world.up(make_config(ssh_from="198.51.100.1"))
    assert failed
    assert state.security_groups[0].ssh_from == ("198.51.100.1/32",)


@pytest.mark.parametrize(
    "operation",
    ["ImportKeyPair", "CreateSecurityGroup", "AuthorizeSecurityGroupIngress", "CreatePlacementGroup", "RunInstances"],
)
def test_a_refused_call_is_told_in_awss_words_and_up_goes_on_later(world: World, operation: str) -> None:
    with (
        failing_once(world, operation, "UnauthorizedOperation"),
        pytest.raises(AwsError, match="AWS says: in AWS's words") as caught,
    ):
        world.up(make_config())
    assert f"ec2:{operation}" in str(caught.value.hint)
    assert world.files.launches() == ()

    world.up(make_config())
    assert world.resources() == complete(2)


@pytest.mark.parametrize("operation", ["TerminateInstances", "DeleteSecurityGroup", "DeleteKeyPair"])
def test_a_refused_call_of_down(world: World, operation: str) -> None:
    world.up(make_config())
    with (
        failing_once(world, operation, "UnauthorizedOperation"),
        pytest.raises(AwsError, match="UnauthorizedOperation, while trying to"),
    ):
        world.down()
    assert world.down().leftovers == ()
    assert not world.resources()


def test_down_names_what_keeps_the_group_in_use(world: World) -> None:
    state = world.up(make_config())
    foreign = world.clients.ec2.create_network_interface(
        SubnetId=str(state.nodes[0].subnet_id),
        Groups=[state.security_groups[0].group_id],
        Description="somebody's database",
    )["NetworkInterface"]["NetworkInterfaceId"]

    with pytest.raises(AwsError, match=f"still in use after 180 s: {foreign} of somebody's database"):
        world.down()
    assert world.resources() == {"interfaces": 1, "groups": 1, "keys": 1, "placements": 1}

    world.clients.ec2.delete_network_interface(NetworkInterfaceId=foreign)
    assert world.down().leftovers == ()


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
