"""Snapshots of volumes of running hosts, and the volumes and images that are made of them."""

from typing import TYPE_CHECKING

import boto3
import pytest
from botocore.exceptions import ClientError

from ec2_sandbox.paths import paths_of
from sandbox_steps import RunningSandbox, Ssh, launch, state_of
from waits import until

if TYPE_CHECKING:
    from mypy_boto3_ec2.client import EC2Client

pytestmark = pytest.mark.sandbox

ROOT, DATA = "/dev/sda1", "/dev/sdf"
READ = "head -c 6 /etc/mark; head -c 6 $(ls -d /dev/disk/by-id/*)"


def write(ssh: Ssh, address: str, text: str) -> None:
    """Writes to the root volume and to the only other one, without a sync."""
    ssh.run(
        address,
        f"""echo {text} | sudo tee /etc/mark
        printf {text} | sudo dd of=$(ls -d /dev/disk/by-id/*) conv=notrunc status=none""",
    )


def complete(ec2: "EC2Client", snapshot_id: str) -> None:
    def state() -> str:
        return ec2.describe_snapshots(SnapshotIds=[snapshot_id])["Snapshots"][0]["State"]

    until(lambda: state() != "pending", "the snapshot is pending")
    assert state() == "completed"


def test_a_snapshot_has_the_bytes_of_the_call(sandbox: RunningSandbox, ssh: Ssh) -> None:
    ec2 = boto3.client("ec2")
    [first] = launch(ssh, 1, BlockDeviceMappings=[{"DeviceName": DATA, "Ebs": {"VolumeSize": 1}}])
    write(ssh, first["PublicIpAddress"], "before")
    taken = ec2.create_snapshots(InstanceSpecification={"InstanceId": first["InstanceId"]})["Snapshots"]
    write(ssh, first["PublicIpAddress"], "after!")
    volumes = {one["Ebs"]["VolumeId"]: one["DeviceName"] for one in first["BlockDeviceMappings"]}
    made = {volumes[one["VolumeId"]]: one["SnapshotId"] for one in taken}
    for snapshot_id in made.values():
        complete(ec2, snapshot_id)
    assert ssh.read(first["PublicIpAddress"], READ) == "after!after!"

    image_id = ec2.register_image(
        Name="made", Architecture="x86_64", VirtualizationType="hvm", RootDeviceName=ROOT,
        BlockDeviceMappings=[{"DeviceName": ROOT, "Ebs": {"SnapshotId": made[ROOT], "VolumeSize": 9}}],
    )["ImageId"]  # fmt: skip
    [second] = launch(ssh, 1, ImageId=image_id, Placement=first["Placement"])
    volume = ec2.create_volume(SnapshotId=made[DATA], AvailabilityZone=second["Placement"]["AvailabilityZone"])
    ec2.get_waiter("volume_available").wait(VolumeIds=[volume["VolumeId"]])
    ec2.attach_volume(VolumeId=volume["VolumeId"], InstanceId=second["InstanceId"], Device=DATA)
    ec2.get_waiter("volume_in_use").wait(VolumeIds=[volume["VolumeId"]])
    until(lambda: ssh.read(second["PublicIpAddress"], READ) == "beforebefore", "the bytes are not there")

    with pytest.raises(ClientError, match=r"InvalidSnapshot\.InUse"):
        ec2.delete_snapshot(SnapshotId=made[ROOT])
    ec2.deregister_image(ImageId=image_id)
    for snapshot_id in made.values():
        ec2.delete_snapshot(SnapshotId=snapshot_id)
    until(lambda: not [*paths_of(sandbox.project_dir).snapshots_dir.iterdir()], "the bytes are still there")


def test_an_image_of_a_running_host(sandbox: RunningSandbox, ssh: Ssh) -> None:
    """It has all volumes of the host, which reboots."""
    ec2 = boto3.client("ec2")
    [first] = launch(ssh, 1, BlockDeviceMappings=[{"DeviceName": DATA, "Ebs": {"VolumeSize": 1}}])
    write(ssh, first["PublicIpAddress"], "before")
    ssh.run(first["PublicIpAddress"], "sudo touch /run/not-yet-rebooted")
    image_id = ec2.create_image(InstanceId=first["InstanceId"], Name="all")["ImageId"]
    until(lambda: ec2.describe_images(ImageIds=[image_id])["Images"][0]["State"] == "available", "still pending")
    [second] = launch(ssh, 1, ImageId=image_id)
    assert ssh.read(second["PublicIpAddress"], READ) == "beforebefore"
    rebooted = "test ! -e /run/not-yet-rebooted"
    until(lambda: ssh.run(first["PublicIpAddress"], rebooted, check=False).returncode == 0, "it has not rebooted")
    assert state_of(ec2, first["InstanceId"]) == "running"
