from collections.abc import Callable, Mapping
from typing import Any

import pytest
from botocore.exceptions import ClientError

from provision.aws.clients import error_code
from provision_world import World

ZONE = "us-east-1a"


def launch(world: World) -> str:
    return world.launch(Placement={"AvailabilityZone": ZONE})


def make(world: World, zone: str = ZONE) -> str:
    return str(world.clients.ec2.create_volume(AvailabilityZone=zone, Size=1, VolumeType="gp3")["VolumeId"])


def show(world: World, volume_id: str) -> Mapping[str, Any]:
    [volume] = world.clients.ec2.describe_volumes(VolumeIds=[volume_id])["Volumes"]
    return volume


def test_states_of_a_volume(world: World) -> None:
    ec2, instance_id = world.clients.ec2, launch(world)
    made = ec2.create_volume(AvailabilityZone=ZONE, Size=7, Encrypted=True, VolumeType="gp3")
    volume_id = made["VolumeId"]
    assert made["State"] == "creating"
    assert (show(world, volume_id)["State"], show(world, volume_id)["Size"]) == ("available", 7)
    answer = ec2.attach_volume(VolumeId=volume_id, InstanceId=instance_id, Device="/dev/sdf")
    assert (answer["State"], answer["Device"]) == ("attaching", "/dev/sdf")
    volume = show(world, volume_id)
    [attachment] = volume["Attachments"]
    assert (volume["State"], attachment["State"], attachment["InstanceId"]) == ("in-use", "attached", instance_id)
    assert attachment["DeleteOnTermination"] is False
    assert ec2.detach_volume(VolumeId=volume_id)["State"] == "detaching"
    assert (show(world, volume_id)["State"], show(world, volume_id)["Attachments"]) == ("available", [])
    ec2.delete_volume(VolumeId=volume_id)
    with pytest.raises(ClientError, match=r"InvalidVolume\.NotFound"):
        show(world, volume_id)


def test_a_new_volume_is_not_listed_at_once(late_world: World) -> None:
    volume_id = make(late_world)
    ec2 = late_world.clients.ec2
    assert ec2.describe_volumes()["Volumes"] == []
    with pytest.raises(ClientError, match=r"InvalidVolume\.NotFound"):
        ec2.attach_volume(VolumeId=volume_id, InstanceId="i-0123456789abcdef0", Device="/dev/sdf")
    late_world.time.sleep(10)
    assert [volume["VolumeId"] for volume in ec2.describe_volumes()["Volumes"]] == [volume_id]


def test_errors_are_ec2s(world: World) -> None:
    ec2, instance_id = world.clients.ec2, launch(world)
    attached, free = make(world), make(world)
    ec2.attach_volume(VolumeId=attached, InstanceId=instance_id, Device="/dev/sdf")
    root = ec2.describe_instances()["Reservations"][0]["Instances"][0]["BlockDeviceMappings"][0]["Ebs"]["VolumeId"]

    def attach(volume_id: str, device: str = "/dev/sdg") -> Any:
        return ec2.attach_volume(VolumeId=volume_id, InstanceId=instance_id, Device=device)

    def attach_to_terminated() -> Any:
        ec2.terminate_instances(InstanceIds=[instance_id])
        return attach(free)

    calls: tuple[tuple[str, Callable[[], object]], ...] = (
        ("VolumeInUse", lambda: attach(attached)),
        ("InvalidVolume.ZoneMismatch", lambda: attach(make(world, "us-east-1b"))),
        ("InvalidParameterValue", lambda: attach(free, "/dev/sdf")),
        ("IncorrectState", lambda: ec2.detach_volume(VolumeId=free)),
        ("OperationNotPermitted", lambda: ec2.detach_volume(VolumeId=root)),
        ("InvalidZone.NotFound", lambda: make(world, "us-east-1z")),
        ("IncorrectState", attach_to_terminated),
    )
    for code, call in calls:
        with pytest.raises(ClientError) as raised:
            call()
        assert error_code(raised.value) == code


def test_attachment_follows_its_instance(world: World) -> None:
    ec2, instance_id = world.clients.ec2, world.launch()
    kept: Any = [{"DeviceName": "/dev/sda1", "Ebs": {"DeleteOnTermination": False}}]
    seen = []
    for _ in range(2):
        [volume] = ec2.describe_volumes()["Volumes"]
        seen.append(volume["Attachments"][0]["DeleteOnTermination"])
        ec2.modify_instance_attribute(InstanceId=instance_id, BlockDeviceMappings=kept)
    assert seen == [True, False]
