import errno
from typing import Any

import pytest

from foundation.errors import AwsError
from foundation.progress import Event
from provision import files
from provision.down import render_receipt
from provision.resources.instance_profile import KIND as ROLE
from provision.resources.resource import Resource
from provision.resources.table import KINDS
from provision_world import NAME, World, make_config, make_volume
from sandbox_in_process import REGION

TAGS = [{"Key": "cluster:name", "Value": NAME}]


def tagged(kind: str, tags: list[dict[str, str]] = TAGS) -> list[Any]:
    return [{"ResourceType": kind, "Tags": tags}]


def find_left(world: World) -> list[Resource]:
    request = world.request(make_config())
    return [resource for kind in reversed(KINDS) for resource in kind.find_left(world.clients, request).left]


def make_one_of_each(world: World, tags: list[dict[str, str]]) -> None:
    """Creates a resource of every kind that can carry a cluster's tag, except nodes."""
    ec2, named = world.clients.ec2, "cluster-demo"
    subnet = ec2.describe_subnets()["Subnets"][0]
    group: Any = {"GroupName": named, "TagSpecifications": tagged("security-group", tags)}
    ec2.create_volume(AvailabilityZone="us-east-1a", Size=8, TagSpecifications=tagged("volume", tags))
    ec2.create_network_interface(SubnetId=subnet["SubnetId"], TagSpecifications=tagged("network-interface", tags))
    ec2.create_security_group(Description="d", VpcId=subnet["VpcId"], **group)
    ec2.create_placement_group(GroupName=named, Strategy="cluster", TagSpecifications=tagged("placement-group", tags))
    ec2.create_key_pair(KeyName=named, TagSpecifications=tagged("key-pair", tags))


def test_deletes_every_kind(world: World) -> None:
    make_one_of_each(world, TAGS)
    world.launch(TagSpecifications=tagged("instance"))
    found = find_left(world)
    assert [resource.kind for resource in found] == [
        "instance", "volume", "placement group", "network interface", "security group", "key pair",
    ]  # fmt: skip
    for resource in found:
        assert resource.deletion.startswith("aws ec2 ")
        assert resource.deletion.endswith(f" {resource.resource_id} --region {REGION}")
    ending = world.prepare_down()
    assert world.down(ending).leftovers == ()
    assert find_left(world) == []
    assert world.down(ending).leftovers == ()  # a plan for resources that no longer exist
    world.calls.made.clear()
    assert world.down().leftovers == ()
    assert not world.calls.mutating()


def test_neither_touches_nor_reports_what_is_not_ours(world: World) -> None:
    make_one_of_each(world, [{"Key": "cluster:name", "Value": "demo2"}])
    before = world.resources()
    world.calls.made.clear()
    assert render_receipt(world.down()) == "cluster demo: nothing to delete\n"
    assert world.resources() == before
    assert not world.calls.mutating()


def test_deletes_what_users_have_protected(world: World) -> None:
    """An instance with termination protection, and a disk that outlives its instance, in the same run."""
    first, second = world.up(make_config(nodes=2)).nodes
    world.clients.ec2.modify_instance_attribute(InstanceId=second.instance_id, DisableApiTermination={"Value": True})
    instance = world.sandbox.backend.get_instance(first.instance_id)
    instance.block_device_mapping["/dev/sda1"].delete_on_termination = False
    events: list[Event] = []
    receipt = world.down(report=events.append)
    assert receipt.leftovers == ()
    assert not world.resources()
    assert [each.resource_id for each in receipt.deleted if each.kind == "volume"] == list(first.volume_ids)
    assert "found more of the cluster: deleting it as well" in [event.what for event in events]
    assert not world.files.root.exists()


def test_works_on_a_full_disk_after_a_killed_up(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.kill_up("launch 2 nodes")
    assert world.files.launches()

    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files, "write_whole", fail)
    assert world.down().leftovers == ()
    assert not world.resources()
    assert not world.files.root.exists()


def test_a_group_that_others_use_stays(world: World) -> None:
    world.volumes = (make_volume(),)
    group = world.up(make_config(nodes=1)).security_groups[0]
    instance = world.launch(SecurityGroupIds=[group.group_id])
    with pytest.raises(AwsError, match=f"delete security group {group.group_id}") as caught:
        world.down()
    assert "remove this use, then: cluster down" in str(caught.value.hint)
    assert not world.describe().nodes  # the resources that cost money are deleted
    assert not world.resources()["shared volumes"]
    assert world.sandbox.backend.get_instance(instance).state == "running"
    world.clients.ec2.terminate_instances(InstanceIds=[instance])
    assert world.down().leftovers == ()
    assert not world.resources()


def test_works_without_prices_and_without_permissions_in_iam(world: World) -> None:
    world.up(make_config(nodes=1))
    for service in ("iam", "pricing"):
        world.sandbox.book.arm(f"unauthorized service={service} count=all")
    receipt = world.down()
    assert not world.resources()
    assert receipt.leftovers == ()
    assert "roles" not in receipt.looked_for
    assert [(each.kind, "AccessDenied" in each.why) for each in receipt.unseen] == [(ROLE, True)]
