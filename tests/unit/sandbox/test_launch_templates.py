"""Launches from a template, and fleets of type instant, by real calls in this process."""

import base64
from typing import Any

import pytest
from botocore.exceptions import ClientError

from provision_world import World

SCRIPT = base64.b64encode(b"#!/bin/sh\necho hello").decode()
ROOT, DATA = "/dev/sda1", "/dev/sdf"


def tags(kind: str, **values: str) -> dict[str, Any]:
    return {"ResourceType": kind, "Tags": [{"Key": key, "Value": value} for key, value in values.items()]}


def as_dict(found: Any) -> dict[str, str]:
    return {tag["Key"]: tag["Value"] for tag in found if not tag["Key"].startswith("aws:")}


def make_template(world: World, **changes: Any) -> str:
    """A template with everything that a launch needs; its name is "workers"."""
    ec2: Any = world.clients.ec2
    x86 = ec2.describe_images(Filters=[{"Name": "architecture", "Values": ["x86_64"]}])["Images"]
    data: dict[str, Any] = {
        "ImageId": x86[0]["ImageId"],
        "InstanceType": "c5.large",
        "UserData": SCRIPT,
        "BlockDeviceMappings": [
            {"DeviceName": ROOT, "Ebs": {"VolumeSize": 90}}, {"DeviceName": DATA, "Ebs": {"VolumeSize": 5}}
        ],
        "TagSpecifications": [tags("instance", team="ml", stage="test"), tags("volume", team="ml")],
        **changes,
    }  # fmt: skip
    made = ec2.create_launch_template(
        LaunchTemplateName="workers", LaunchTemplateData=data, TagSpecifications=[tags("launch-template", owner="ada")]
    )
    return str(made["LaunchTemplate"]["LaunchTemplateId"])


def run(world: World, **asked: Any) -> list[Any]:
    return list(world.clients.ec2.run_instances(**{"MinCount": 1, "MaxCount": 1, **asked})["Instances"])


def test_a_launch_has_all_that_its_template_says(world: World) -> None:
    ec2: Any = world.clients.ec2
    ec2.create_key_pair(KeyName="ours", KeyType="ed25519")
    group_id = ec2.create_security_group(GroupName="workers", Description="for a test")["GroupId"]
    make_template(world, KeyName="ours", SecurityGroupIds=[group_id], InstanceMarketOptions={"MarketType": "spot"})
    [instance] = run(
        world,
        LaunchTemplate={"LaunchTemplateName": "workers"},
        BlockDeviceMappings=[{"DeviceName": ROOT, "Ebs": {"VolumeSize": 100}}],
        TagSpecifications=[
            tags("instance", stage="prod"), tags("network-interface", net="a"), tags("spot-instances-request", bid="b")
        ],
    )  # fmt: skip
    assert (instance["InstanceType"], instance["KeyName"]) == ("c5.large", "ours")
    assert [group["GroupId"] for group in instance["SecurityGroups"]] == [group_id]
    assert instance["InstanceLifecycle"] == "spot"
    assert as_dict(instance["Tags"]) == {"team": "ml", "stage": "prod"}
    user_data = ec2.describe_instance_attribute(InstanceId=instance["InstanceId"], Attribute="userData")["UserData"]
    assert user_data["Value"] == SCRIPT
    attached = [{"Name": "attachment.instance-id", "Values": [instance["InstanceId"]]}]
    volumes = ec2.describe_volumes(Filters=attached)["Volumes"]
    assert {volume["Attachments"][0]["Device"]: volume["Size"] for volume in volumes} == {ROOT: 100, DATA: 5}
    assert [as_dict(volume["Tags"]) for volume in volumes] == [{"team": "ml"}] * 2
    [interface] = ec2.describe_network_interfaces(Filters=attached)["NetworkInterfaces"]
    assert as_dict(interface["TagSet"]) == {"net": "a"}
    [request] = ec2.describe_spot_instance_requests()["SpotInstanceRequests"]
    assert as_dict(request["Tags"]) == {"bid": "b"}


def test_versions_of_a_template(world: World) -> None:
    ec2: Any = world.clients.ec2
    template_id = make_template(world)
    data = {"ImageId": ec2.describe_images()["Images"][0]["ImageId"], "InstanceType": "c5.xlarge", "UserData": SCRIPT}
    ec2.create_launch_template_version(LaunchTemplateId=template_id, LaunchTemplateData=data)
    changes = {"InstanceType": "c5.2xlarge"}
    ec2.create_launch_template_version(LaunchTemplateId=template_id, SourceVersion="2", LaunchTemplateData=changes)
    for version, instance_type in (("", "c5.large"), ("$Default", "c5.large"), ("$Latest", "c5.2xlarge"),
                                   ("1", "c5.large"), ("2", "c5.xlarge")):  # fmt: skip
        [instance] = run(world, LaunchTemplate={"LaunchTemplateId": template_id, "Version": version})
        assert instance["InstanceType"] == instance_type
    for named, code in (
        ({"LaunchTemplateId": template_id, "Version": "0"}, r"InvalidLaunchTemplateId\.VersionNotFound"),
        ({"LaunchTemplateId": "lt-0123456789abcdef0"}, r"InvalidLaunchTemplateId\.NotFound"),
        ({"LaunchTemplateName": "others"}, r"InvalidLaunchTemplateName\.NotFoundException"),
    ):
        with pytest.raises(ClientError, match=code):
            run(world, LaunchTemplate=named)


def create_fleet(world: World, template_id: str, overrides: list[Any], capacity: Any, **more: Any) -> Any:
    named = {"LaunchTemplateId": template_id, "Version": "$Latest"}
    configs: list[Any] = [{"LaunchTemplateSpecification": named, "Overrides": overrides}]
    return world.clients.ec2.create_fleet(
        LaunchTemplateConfigs=configs, TargetCapacitySpecification=capacity, **{"Type": "instant", **more}
    )


def test_a_fleet_goes_on_to_the_next_pool(world: World) -> None:
    """The first one has no capacity, and the error says which one it was; Karpenter reads both."""
    ec2: Any = world.clients.ec2
    template_id = make_template(world)
    world.sandbox.book.arm("capacity type=c5.large market=spot")
    world.sandbox.book.arm("capacity type=m5.large market=spot free=1")
    overrides = [{"InstanceType": instance_type} for instance_type in ("c5.large", "m5.large", "r5.large")]
    capacity = {"TotalTargetCapacity": 3, "DefaultTargetCapacityType": "spot"}
    named = [tags("fleet", a="b"), tags("instance", pool="gpu")]
    answer = create_fleet(world, template_id, overrides, capacity, TagSpecifications=named)
    got = {one["InstanceType"]: len(one["InstanceIds"]) for one in answer["Instances"]}
    assert got == {"m5.large": 1, "r5.large": 2}
    assert {one["Lifecycle"] for one in answer["Instances"]} == {"spot"}
    [error] = answer["Errors"]
    assert error["ErrorCode"] == "InsufficientInstanceCapacity"
    assert error["LaunchTemplateAndOverrides"]["Overrides"]["InstanceType"] == "c5.large"
    assert error["LaunchTemplateAndOverrides"]["LaunchTemplateSpecification"]["LaunchTemplateId"] == template_id
    fleet_id = answer["FleetId"]
    found = ec2.describe_instances(Filters=[{"Name": "tag:aws:ec2:fleet-id", "Values": [fleet_id]}])["Reservations"]
    instances = [instance for reservation in found for instance in reservation["Instances"]]
    assert [as_dict(one["Tags"])["pool"] for one in instances] == ["gpu"] * 3


def test_a_fleets_markets_order_and_subnets(world: World) -> None:
    ec2, template_id = world.clients.ec2, make_template(world)
    [subnet] = ec2.describe_subnets(Filters=[{"Name": "availability-zone", "Values": ["us-east-1c"]}])["Subnets"]
    overrides = [
        {"InstanceType": "c5.large", "Priority": 2},
        {"InstanceType": "m5.xlarge", "Priority": 1, "SubnetId": subnet["SubnetId"]},
    ]
    capacity = {"TotalTargetCapacity": 3, "OnDemandTargetCapacity": 1, "DefaultTargetCapacityType": "spot"}
    launched = create_fleet(world, template_id, overrides, capacity)["Instances"]
    assert [(one["InstanceType"], one["Lifecycle"], len(one["InstanceIds"])) for one in launched] == [
        ("m5.xlarge", "on-demand", 1), ("m5.xlarge", "spot", 2),
    ]  # fmt: skip
    assert {one.subnet_id for one in world.sandbox.backend.sandbox_instances()} == {subnet["SubnetId"]}
    for override, more in (({}, {"Type": "maintain"}), ({"WeightedCapacity": 2}, {})):
        with pytest.raises(ClientError, match="UnsupportedOperation"):
            create_fleet(world, template_id, [override], capacity, **more)
