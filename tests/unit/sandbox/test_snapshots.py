from typing import Any

import pytest
from botocore.exceptions import ClientError

from ec2_sandbox.api.images import AMAZON
from provision_world import World

ZONE = "us-east-1a"


def take(world: World) -> Any:
    ec2 = world.clients.ec2
    volume_id = ec2.create_volume(AvailabilityZone=ZONE, Size=3, VolumeType="gp3")["VolumeId"]
    tags: Any = [{"ResourceType": "snapshot", "Tags": [{"Key": "a", "Value": "b"}]}]
    return ec2.create_snapshot(VolumeId=volume_id, Description="ours", TagSpecifications=tags)


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
