from typing import Any

import pytest
from botocore.exceptions import ClientError

from ec2_sandbox.api.images import AMAZON
from provision_world import World

ZONE, ROOT = "us-east-1a", "/dev/sda1"


def take(world: World) -> Any:
    ec2 = world.clients.ec2
    volume_id = ec2.create_volume(AvailabilityZone=ZONE, Size=3, VolumeType="gp3")["VolumeId"]
    tags: Any = [{"ResourceType": "snapshot", "Tags": [{"Key": "a", "Value": "b"}]}]
    return ec2.create_snapshot(VolumeId=volume_id, Description="ours", TagSpecifications=tags)


def register(world: World, device: str, **more: Any) -> str:
    devices: Any = [{"DeviceName": device, "Ebs": more}]
    return world.clients.ec2.register_image(
        Name="made", Architecture="x86_64", RootDeviceName=ROOT, BlockDeviceMappings=devices
    )["ImageId"]


def test_states_of_a_snapshot(world: World) -> None:
    ec2, made = world.clients.ec2, take(world)
    assert (made["State"], made["Progress"], made["Tags"]) == ("pending", "0%", [{"Key": "a", "Value": "b"}])
    [found] = ec2.describe_snapshots(OwnerIds=["self"])["Snapshots"]
    assert (found["SnapshotId"], found["State"], found["VolumeSize"]) == (made["SnapshotId"], "completed", 3)
    assert {one["OwnerId"] for one in ec2.describe_snapshots(OwnerIds=["amazon"])["Snapshots"]} == {AMAZON}
    volume = ec2.create_volume(AvailabilityZone=ZONE, SnapshotId=made["SnapshotId"])
    assert (volume["Size"], volume["SnapshotId"]) == (3, made["SnapshotId"])
    with pytest.raises(ClientError, match="smaller than the snapshot"):
        ec2.create_volume(AvailabilityZone=ZONE, SnapshotId=made["SnapshotId"], Size=2)
    ec2.delete_snapshot(SnapshotId=made["SnapshotId"])
    with pytest.raises(ClientError, match=r"InvalidSnapshot\.NotFound"):
        ec2.create_volume(AvailabilityZone=ZONE, SnapshotId=made["SnapshotId"])


def test_an_image_of_a_snapshot(world: World) -> None:
    ec2, snapshot_id = world.clients.ec2, take(world)["SnapshotId"]
    with pytest.raises(ClientError, match="has no root snapshot"):
        register(world, "/dev/sdf", SnapshotId=snapshot_id)
    image_id = register(world, ROOT, SnapshotId=snapshot_id, VolumeType="gp2")
    with pytest.raises(ClientError, match=r"InvalidAMIName\.Duplicate"):
        register(world, ROOT, SnapshotId=snapshot_id)
    [image] = ec2.describe_images(Owners=["self"])["Images"]
    [device] = image["BlockDeviceMappings"]
    ebs = device["Ebs"]
    assert (ebs["SnapshotId"], ebs["VolumeSize"], ebs["VolumeType"]) == (snapshot_id, 3, "gp2")
    with pytest.raises(ClientError, match=r"InvalidSnapshot\.InUse"):
        ec2.delete_snapshot(SnapshotId=snapshot_id)
    done = ec2.deregister_image(ImageId=image_id, DeleteAssociatedSnapshots=True)
    assert [one["SnapshotId"] for one in done["DeleteSnapshotResults"]] == [snapshot_id]
