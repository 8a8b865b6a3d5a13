"""`down`: the plan, and the deletion of a whole cluster and of nothing else."""

from pathlib import Path
from typing import Any

import pytest

from foundation.errors import AwsError
from foundation.progress import Event
from provision.down import ForgetFiles, deleted_by, plan_down, render_receipt
from provision.model import ClusterState
from provision.resources.instance_profile import KIND as ROLE
from provision.resources.instance_profile import DeleteInstanceProfile, InstanceProfile
from provision.resources.instances import TerminateInstances, WaitForTerminated
from provision.resources.key_pair import DeleteKeyPair
from provision.resources.orphans import DeleteOrphans
from provision.resources.placement_group import DeletePlacementGroup, PlacementGroup
from provision.resources.resource import Resource
from provision.resources.security_group import DeleteSecurityGroup
from provision.resources.table import KINDS
from provision_world import (
    NAME,
    READS,
    Killed,
    World,
    make_config,
    make_group,
    make_key,
    make_node,
    make_state,
)  # fmt: skip
from sandbox_in_process import REGION

NODES = (make_node(0), make_node(1))
EMPTY: dict[str, Any] = {"key_pair": None, "security_groups": ()}
PROFILE = InstanceProfile(
    name="cluster-us-east-1-demo",
    ours=True,
    has_role=True,
    has_profile=True,
    in_profile=True,
    policy_names=("cluster-data",),
)
TAGS = [{"Key": "cluster:name", "Value": NAME}]


def placement(*, ours: bool = True) -> PlacementGroup:
    return PlacementGroup(group_name="cluster-demo", ours=ours)


# --- the plan


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (
            make_state(*NODES),
            ["TerminateInstances", "WaitForTerminated", "DeleteSecurityGroup", "DeleteKeyPair", "ForgetFiles"],
        ),
        (make_state(), ["DeleteSecurityGroup", "DeleteKeyPair", "ForgetFiles"]),
        (make_state(found={"placement group": placement()}, **EMPTY), ["DeletePlacementGroup", "ForgetFiles"]),
        (
            make_state(
                key_pair=make_key(ours=False),
                security_groups=(make_group(ours=False),),
                found={"placement group": placement(ours=False)},
            ),
            [],
        ),
    ],
)
def test_deletes_what_is_ours(state: ClusterState, expected: list[str]) -> None:
    assert [type(step).__name__ for step in plan_down(state).steps] == expected


def test_deletes_in_the_order_that_aws_allows() -> None:
    found = {
        "placement group": placement(),
        "role and instance profile": PROFILE,
        "volume": ("vol-1",),
        "network interface": ("eni-1",),
    }
    plan = plan_down(make_state(*NODES, found=found, ending=("i-9",)), local_files=True)

    assert plan.steps == (
        TerminateInstances(nodes=NODES),
        WaitForTerminated(instance_ids=("i-0", "i-1", "i-9")),
        DeleteInstanceProfile(profile=PROFILE),
        DeletePlacementGroup(group_name="cluster-demo"),
        DeleteOrphans(kind="network interface", ids=("eni-1",)),
        DeleteSecurityGroup(group_id="sg-1"),
        DeleteKeyPair(key_name="cluster-demo"),
        DeleteOrphans(kind="volume", ids=("vol-1",)),
        ForgetFiles(),
    )
    assert [resource.kind for resource in deleted_by(plan)] == [
        "instance", "instance", "instance profile", "role", "placement group", "network interface",
        "security group", "key pair", "volume", "local files",
    ]  # fmt: skip


# --- applied


def tagged(kind: str, tags: list[dict[str, str]] = TAGS) -> list[Any]:
    return [{"ResourceType": kind, "Tags": tags}]


def find_left(world: World) -> list[Resource]:
    request = world.request(make_config())
    return [resource for kind in reversed(KINDS) for resource in kind.find_left(world.clients, request).left]


def run_other(world: World, **asked: Any) -> str:
    """Launches an instance without this program."""
    image = next(iter(world.sandbox.backend.amis))
    made = world.clients.ec2.run_instances(ImageId=image, MinCount=1, MaxCount=1, InstanceType="c5.large", **asked)
    return str(made["Instances"][0]["InstanceId"])


def make_one_of_each(world: World, tags: list[dict[str, str]]) -> None:
    """Creates a resource of every kind that can carry a cluster's tag, except nodes."""
    ec2, named = world.clients.ec2, "cluster-demo"
    subnet = ec2.describe_subnets()["Subnets"][0]
    group: Any = {"GroupName": named, "TagSpecifications": tagged("security-group", tags)}
    ec2.create_volume(AvailabilityZone="us-east-1a", Size=8, TagSpecifications=tagged("volume", tags))
    ec2.create_network_interface(SubnetId=subnet["SubnetId"], TagSpecifications=tagged("network-interface", tags))
    ec2.allocate_address(Domain="vpc", TagSpecifications=tagged("elastic-ip", tags))
    ec2.create_security_group(Description="d", VpcId=subnet["VpcId"], **group)
    ec2.create_placement_group(GroupName=named, Strategy="cluster", TagSpecifications=tagged("placement-group", tags))
    ec2.create_key_pair(KeyName=named, TagSpecifications=tagged("key-pair", tags))


def test_finds_every_kind_of_resource(world: World) -> None:
    make_one_of_each(world, TAGS)
    run_other(world, TagSpecifications=tagged("instance"))

    found = find_left(world)

    assert [resource.kind for resource in found] == [
        "instance", "placement group", "network interface", "security group", "key pair", "address",
        "volume",
    ]  # fmt: skip
    for resource in found:
        assert resource.deletion.startswith("aws ec2 ")
        assert resource.deletion.endswith(f" {resource.resource_id} --region {REGION}")


def test_deletes_every_kind_except_addresses(world: World) -> None:
    """`up` creates no addresses, so `down` deletes none."""
    make_one_of_each(world, TAGS)
    ending = world.prepare_down()

    receipt = world.down(ending)

    assert [resource.kind for resource in receipt.leftovers] == ["address"]
    assert "aws ec2 release-address --allocation-id eipalloc-" in render_receipt(receipt)
    assert tuple(find_left(world)) == receipt.leftovers
    assert world.down(ending).leftovers == receipt.leftovers  # a plan for resources that no longer exist
    world.calls.made.clear()
    assert world.down().leftovers == receipt.leftovers
    assert not world.calls.mutating()


def test_neither_touches_nor_reports_what_is_not_ours(world: World) -> None:
    make_one_of_each(world, [{"Key": "cluster:name", "Value": "demo2"}])
    before = world.resources()
    world.calls.made.clear()

    assert render_receipt(world.down()) == "cluster demo: nothing to delete\n"
    assert world.resources() == before
    assert not world.calls.mutating()


def test_ends_instances_with_termination_protection(world: World) -> None:
    """A program on a node can launch nodes with it, and users set it by hand."""
    world.up(make_config(nodes=2))
    protected = world.describe().nodes[1].instance_id
    world.clients.ec2.modify_instance_attribute(InstanceId=protected, DisableApiTermination={"Value": True})

    assert world.down().leftovers == ()


def test_a_disk_that_outlives_its_instance(world: World) -> None:
    """It is deleted in the same run."""
    [node] = world.up(make_config(nodes=1)).nodes
    instance = world.sandbox.backend.get_instance(node.instance_id)
    instance.block_device_mapping["/dev/sda1"].delete_on_termination = False
    events: list[Event] = []

    receipt = world.down(report=events.append)

    assert receipt.leftovers == ()
    assert not world.resources()
    assert [resource.resource_id for resource in receipt.deleted if resource.kind == "volume"] == list(node.volume_ids)
    assert "found more of the cluster: deleting it as well" in [event.what for event in events]
    assert not world.files.root.exists()


def test_names_a_rule_of_another_group_that_names_ours(world: World) -> None:
    group = world.up(make_config(nodes=1)).security_groups[0]
    ec2 = world.clients.ec2
    other = ec2.create_security_group(GroupName="web", Description="d", VpcId=group.vpc_id)["GroupId"]
    rule: Any = [{"IpProtocol": "tcp", "FromPort": 80, "ToPort": 80, "UserIdGroupPairs": [{"GroupId": group.group_id}]}]
    ec2.authorize_security_group_ingress(GroupId=other, IpPermissions=rule)

    with pytest.raises(AwsError, match=rf"{group.group_id} is still in use after 180 s: a rule of {other} \(web\)"):
        world.down()

    assert not world.describe().nodes  # the resources that cost money are deleted
    ec2.revoke_security_group_ingress(GroupId=other, IpPermissions=rule)
    assert world.down().leftovers == ()
    assert world.resources() == {"groups": 1}


def test_names_another_instance_in_our_group(world: World) -> None:
    group = world.up(make_config(nodes=1)).security_groups[0]
    other = run_other(world, SecurityGroupIds=[group.group_id])
    with pytest.raises(AwsError, match=f"{group.group_id} is still in use after 180 s: eni-.* of {other}") as caught:
        world.down()

    assert caught.value.hint == "remove this use of the group if it is not this cluster's, then: cluster down"
    assert world.sandbox.backend.get_instance(other).state == "running"
    world.clients.ec2.terminate_instances(InstanceIds=[other])
    assert world.down().leftovers == ()


def test_works_without_prices_and_without_permissions_in_iam(world: World) -> None:
    world.up(make_config(nodes=1))
    for service in ("iam", "pricing"):
        world.sandbox.book.arm(f"unauthorized service={service} count=all")

    receipt = world.down()

    assert not world.resources()
    assert receipt.leftovers == ()
    assert "roles" not in receipt.looked_for
    assert [(each.kind, "AccessDenied" in each.why) for each in receipt.unseen] == [(ROLE, True)]


@pytest.mark.slow
def test_killed_at_every_deletion_and_run_again(world: World, tmp_path: Path) -> None:
    """Tests the resources that a plain cluster lacks. tests/unit/provision/test_crashes.py tests a plain cluster."""

    def make(folder: str) -> None:
        world.reset(tmp_path / folder)
        make_one_of_each(world, TAGS)
        world.calls.points = 0
        world.calls.made.clear()

    def delete() -> list[str]:
        receipt = world.down()
        return [resource.kind for resource in receipt.leftovers]

    make("count")
    delete()
    deletions = [point for point, name in enumerate(world.calls.made) if not name.startswith(READS)]
    assert len(deletions) == 5
    for point in deletions:
        make(f"again-{point}")
        with world.killed_at(point, before=False), pytest.raises(Killed):
            delete()

        assert delete() == ["address"], point
        assert not world.files.root.exists(), point
