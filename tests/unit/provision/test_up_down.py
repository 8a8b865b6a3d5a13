import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from foundation.errors import AwsError, ClusterError
from foundation.progress import Event, silent
from provision.files import ClusterFiles
from provision.up import up
from provision_world import World, complete, listening, make_config, make_volume


def test_up_makes_a_complete_cluster_and_opens_only_ssh(world: World, tmp_path: Path) -> None:
    """`down` deletes it without the local files, too."""
    state = world.up(make_config())
    assert [(node.name, node.role, node.state) for node in state.nodes] == [
        ("node-0", "head", "running"),
        ("node-1", "worker", "running"),
    ]
    assert all(node.public_ip and node.private_ip for node in state.nodes)
    assert world.resources() == complete(2)
    [group] = world.clients.ec2.describe_security_groups(GroupNames=["cluster-demo"])["SecurityGroups"]
    opened = {
        (rule["IpProtocol"], rule.get("FromPort"), network["CidrIp"])
        for rule in group["IpPermissions"]
        for network in rule["IpRanges"]
    }
    assert opened == {("tcp", 22, "203.0.113.7/32")}
    world.files = ClusterFiles(tmp_path / "another machine")
    assert world.down().leftovers == ()
    assert not world.resources()


def test_everything_has_the_tags_of_cluster_toml(world: World) -> None:
    """A policy of the account may deny creating resources without them."""
    world.volumes = (make_volume(),)
    world.up(make_config(market="spot", instance_profile="auto", tags={"CostCenter": "4711"}))
    tagged = world.clients.ec2.describe_tags(Filters=[{"Name": "key", "Values": ["CostCenter"]}])["Tags"]
    assert Counter(tag["ResourceType"] for tag in tagged) == {
        "instance": 2, "network-interface": 2, "volume": 3, "spot-instance-request": 2,  # moto's word
        "key-pair": 1, "security-group": 1, "placement-group": 1,
    }  # fmt: skip
    role = world.clients.iam.get_role(RoleName="cluster-us-east-1-demo")["Role"]
    assert {"Key": "CostCenter", "Value": "4711"} in role["Tags"]


@pytest.mark.parametrize("nodes", [8, pytest.param(1000, marks=pytest.mark.slow)])
def test_the_number_of_calls_does_not_grow_with_the_nodes(world: World, nodes: int) -> None:
    world.up(make_config(nodes=nodes))
    assert len(world.describe().nodes) == nodes
    world.down()
    assert world.calls.mutating() == {
        "ImportKeyPair": 1,
        "CreateSecurityGroup": 1,
        "AuthorizeSecurityGroupIngress": 1,
        "CreatePlacementGroup": 1,
        "DeletePlacementGroup": 1,
        "RunInstances": 1,
        "TerminateInstances": 1,
        "DeleteSecurityGroup": 1,
        "DeleteKeyPair": 1,
    }


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


def test_nodes_that_do_not_end_in_time(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hint continues `resize`, and does not delete the other nodes."""
    monkeypatch.setattr("provision.resources.instances.ENDED_TIMEOUT_S", 5.0)
    world.sandbox.reset(end_delay_s=60)
    world.up(make_config())
    with pytest.raises(AwsError, match="still shutting down after 5 s: i-") as caught:
        world.resize(make_config(nodes=1))
    assert caught.value.hint == "to continue waiting, run the command again"


def test_nodes_that_do_not_start_in_time(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("provision.resources.instances.RUNNING_TIMEOUT_S", 5.0)
    plan = world.prepare(make_config())

    def pending(parsed: dict[str, Any], **_: Any) -> None:
        for instance in [i for r in parsed["Reservations"] for i in r["Instances"]]:
            instance["State"]["Name"] = "pending"

    with (
        listening(world.clients.ec2, "after-call.ec2.DescribeInstances", pending),
        pytest.raises(AwsError, match="nodes 0-1 do not run after 5 s"),
    ):
        up(plan, clients=world.clients, files=world.files, report=silent)
    assert len(world.up(make_config()).nodes) == 2
