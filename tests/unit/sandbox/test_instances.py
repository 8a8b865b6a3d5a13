"""What launchers ask about instances, and the errors of EC2 that they expect."""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
from botocore.exceptions import ClientError
from moto.core.models import DEFAULT_ACCOUNT_ID
from msgspec import structs

from ec2_sandbox.api import moto_setup
from ec2_sandbox.api.ec2 import Ec2Settings, SandboxEC2Backend, list_instances
from provision_world import World

NOBODY = "i-0123456789abcdef0"
NO_GROUP = "sg-0123456789abcdef0"
TYPE = {"InstanceType": "t3.micro"}


def launch(world: World, count: int = 1, **more: Any) -> list[str]:
    ec2 = world.clients.ec2
    [image, *_] = ec2.describe_images(Filters=[{"Name": "architecture", "Values": ["x86_64"]}])["Images"]
    wanted: Any = {"ImageId": image["ImageId"], **TYPE, "MinCount": count, "MaxCount": count, **more}
    ids = [instance["InstanceId"] for instance in ec2.run_instances(**wanted)["Instances"]]
    ec2.describe_instances(InstanceIds=ids)  # the daemon's next step: they run
    return ids


def interface_of(ec2: Any, instance_id: str) -> str:
    [reservation] = ec2.describe_instances(InstanceIds=[instance_id])["Reservations"]
    return str(reservation["Instances"][0]["NetworkInterfaces"][0]["NetworkInterfaceId"])


@pytest.mark.parametrize(
    ("call", "code"),
    [
        (lambda ec2, _: ec2.create_tags(Resources=[NOBODY], Tags=[{"Key": "a", "Value": "b"}]),
         "InvalidInstanceID.NotFound"),
        (lambda ec2, ids: ec2.modify_instance_attribute(InstanceId=ids[0], InstanceType={"Value": "t3.nano"}),
         "IncorrectInstanceState"),
        (lambda ec2, ids: ec2.modify_instance_attribute(InstanceId=ids[1], InstanceType={"Value": "t3.huge"}),
         "InvalidInstanceAttributeValue"),
        (lambda ec2, _: ec2.cancel_spot_instance_requests(SpotInstanceRequestIds=["sir-01234567"]),
         "InvalidSpotInstanceRequestID.NotFound"),
        (lambda ec2, ids: ec2.create_tags(Resources=ids, Tags=[{"Key": "aws:a", "Value": "b"}]),
         "InvalidParameterValue"),
        (lambda ec2, ids: ec2.modify_instance_attribute(InstanceId=ids[0], Groups=[NO_GROUP]),
         "InvalidGroup.NotFound"),
        (lambda ec2, ids: ec2.modify_network_interface_attribute(NetworkInterfaceId=interface_of(ec2, ids[0]),
                                                                   Groups=[NO_GROUP]), "InvalidGroup.NotFound"),
        (lambda ec2, _: ec2.create_network_interface(SubnetId=ec2.describe_subnets()["Subnets"][0]["SubnetId"],
                                                     Groups=[NO_GROUP]), "InvalidGroup.NotFound"),
        (lambda ec2, ids: ec2.modify_instance_attribute(InstanceId=ids[0], EnaSupport={"Value": True}),
         "UnsupportedOperation"),
    ],
)  # fmt: skip
def test_an_error_has_the_code_of_ec2(world: World, call: Callable[[Any, list[str]], Any], code: str) -> None:
    """The first instance runs, the second is stopped."""
    ids = launch(world, 2)
    world.clients.ec2.stop_instances(InstanceIds=ids[1:])
    with pytest.raises(ClientError) as caught:
        call(world.clients.ec2, ids)
    assert caught.value.response["Error"]["Code"] == code


@pytest.mark.parametrize(
    ("wrong", "code", "message"),
    [
        ({"ImageId": ""}, "MissingParameter", "ImageId"),
        ({"ImageId": "ami-00000000000000000"}, "InvalidAMIID.NotFound", "ami-00000000000000000"),
        ({"InstanceType": "c5.huge"}, "InvalidParameterValue", "c5.huge"),
        ({"InstanceType": "c6g.xlarge"}, "InvalidParameterValue", "architecture 'arm64'"),
        ({"InstanceType": "c5.xlarge", "Placement": {"AvailabilityZone": "us-east-1e"}}, "Unsupported", "us-east-1a"),
        ({"Placement": {"AvailabilityZone": "eu-west-1a"}}, "InvalidParameterValue", "eu-west-1a"),
        ({"Placement": {"GroupName": "nowhere"}}, "InvalidPlacementGroup.Unknown", "'nowhere'"),
        ({"MinCount": 2}, "InvalidParameterValue", "MinCount"),
        ({"KeyName": "nobody's"}, "InvalidKeyPair.NotFound", "nobody's"),
        ({"SecurityGroups": ["none"]}, "InvalidGroup.NotFound", "'none'"),
        ({"NetworkInterfaces": [{"DeviceIndex": 0, "Groups": [NO_GROUP]}]}, "InvalidGroup.NotFound", NO_GROUP),
        ({"UserData": "x" * 16385}, "InvalidParameterValue", "16384 bytes"),
        ({"IamInstanceProfile": {"Name": "nobody"}}, "InvalidParameterValue",
         "Value (nobody) for parameter iamInstanceProfile.name is invalid. Invalid IAM Instance Profile name"),
        ({"IamInstanceProfile": {"Name": "empty"}}, "InvalidParameterValue", "has no associated IAM Roles"),
        ({"TagSpecifications": [{"ResourceType": "instance", "Tags": [{"Key": "aws:a", "Value": "b"}]}]},
         "InvalidParameterValue", "'aws:'"),
    ],
)  # fmt: skip
def test_an_impossible_launch_leaves_nothing(world: World, wrong: Any, code: str, message: str) -> None:
    world.clients.iam.create_instance_profile(InstanceProfileName="empty")
    groups = world.clients.ec2.describe_security_groups()["SecurityGroups"]
    with pytest.raises(ClientError) as caught:
        launch(world, **wrong)
    assert caught.value.response["Error"]["Code"] == code
    assert message in str(caught.value.response["Error"].get("Message"))
    assert (world.sandbox.backend.reservations, world.sandbox.backend.enis) == ({}, {})
    assert world.clients.ec2.describe_security_groups()["SecurityGroups"] == groups


def test_the_same_client_token_has_one_effect(world: World) -> None:
    wanted: Any = {"ClientToken": "token", "NetworkInterfaces": [{"DeviceIndex": 0}]}
    ids = launch(world, 2, **wanted)
    assert launch(world, 2, **wanted) == ids
    with pytest.raises(ClientError, match="IdempotentParameterMismatch"):
        launch(world, **wanted)
    world.clients.ec2.terminate_instances(InstanceIds=ids)
    with pytest.raises(ClientError, match="IdempotentInstanceTerminated"):
        launch(world, 2, **wanted)
    volume: Any = {"AvailabilityZone": "us-east-1a", "Size": 1, "ClientToken": "token"}
    assert len({world.clients.ec2.create_volume(**volume)["VolumeId"] for _ in range(2)}) == 1


def test_an_error_of_a_service_with_paths_is_json(world: World) -> None:
    world.sandbox.book.arm("unauthorized service=elasticfilesystem")
    with pytest.raises(ClientError, match=r"AccessDeniedException.* operation: User: arn:"):
        world.clients.efs.describe_file_systems()


@pytest.mark.parametrize("limit", ["capacity", "quota"])
def test_several_start_together_or_not_at_all(world: World, limit: str) -> None:
    world.sandbox.reset(quotas={"L-1216C47A": 6} if limit == "quota" else {})
    ids = launch(world, 3)
    ec2 = world.clients.ec2
    ec2.stop_instances(InstanceIds=ids)
    ec2.describe_instances(InstanceIds=ids)
    if limit == "quota":
        launch(world)
    else:
        world.sandbox.book.arm("capacity free=2")
    with pytest.raises(ClientError, match=r"VcpuLimitExceeded|InsufficientInstanceCapacity"):
        ec2.start_instances(InstanceIds=ids)
    started = ec2.start_instances(InstanceIds=ids[:2])["StartingInstances"]
    assert [one["CurrentState"]["Name"] for one in started] == ["pending", "pending"]


def test_a_start_with_an_ended_instance_takes_no_capacity(world: World) -> None:
    first, ended = launch(world, 2)
    ec2 = world.clients.ec2
    ec2.stop_instances(InstanceIds=[first])
    ec2.terminate_instances(InstanceIds=[ended])
    ec2.describe_instances(InstanceIds=[first, ended])
    world.sandbox.book.arm("capacity free=1")
    for _ in range(2):
        with pytest.raises(ClientError, match="IncorrectInstanceState"):
            ec2.start_instances(InstanceIds=[first, ended])
    ec2.start_instances(InstanceIds=[first])


def test_an_instance_starts_in_its_reservation_if_that_has_room(world: World) -> None:
    ec2 = world.clients.ec2
    what: Any = {**TYPE, "AvailabilityZone": "us-east-1a", "InstancePlatform": "Linux/UNIX", "InstanceCount": 2}
    reservation = ec2.create_capacity_reservation(**what)["CapacityReservation"]
    target = {"CapacityReservationId": reservation["CapacityReservationId"]}
    wanted: Any = {"CapacityReservationSpecification": {"CapacityReservationTarget": target}}
    ids = launch(world, 2, **wanted)
    ec2.stop_instances(InstanceIds=ids)
    ec2.describe_instances(InstanceIds=ids)
    launch(world, **wanted)
    world.sandbox.book.arm("capacity")  # reserved capacity is there all the same
    with pytest.raises(ClientError, match="ReservationCapacityExceeded"):
        ec2.start_instances(InstanceIds=ids)
    ec2.start_instances(InstanceIds=ids[:1])
    [found] = ec2.describe_capacity_reservations()["CapacityReservations"]
    assert found["AvailableInstanceCount"] == 0


def test_a_spot_request_can_be_cancelled_and_its_instance_not_be_stopped(world: World) -> None:
    ids = launch(world, InstanceMarketOptions={"MarketType": "spot"})
    ec2 = world.clients.ec2
    with pytest.raises(ClientError, match="UnsupportedOperation"):
        ec2.stop_instances(InstanceIds=ids)
    [request] = ec2.describe_spot_instance_requests()["SpotInstanceRequests"]
    ec2.cancel_spot_instance_requests(SpotInstanceRequestIds=[request["SpotInstanceRequestId"]])
    [request] = ec2.describe_spot_instance_requests()["SpotInstanceRequests"]
    assert (request["State"], request["Status"]["Code"]) == ("cancelled", "request-canceled-and-instance-running")


def test_metadata_options_that_a_call_does_not_name_stay(world: World) -> None:
    ec2 = world.clients.ec2
    [instance_id] = launch(world, MetadataOptions={"HttpTokens": "required", "InstanceMetadataTags": "enabled"})
    ec2.modify_instance_metadata_options(InstanceId=instance_id, HttpPutResponseHopLimit=2)
    changed = ec2.modify_instance_metadata_options(InstanceId=instance_id, HttpEndpoint="enabled")
    options = changed["InstanceMetadataOptions"]
    assert (options["HttpTokens"], options["InstanceMetadataTags"]) == ("required", "enabled")
    assert options["HttpPutResponseHopLimit"] == 2


def with_regions(settings: Ec2Settings, region: str, *others: str) -> Ec2Settings:
    return dataclasses.replace(settings, config=structs.replace(settings.config, region=region, others=others))


def test_other_regions_may_be_us_east_1_and_the_own_one(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """us-east-1 has more zones than another region's range has default subnets."""
    settings = SandboxEC2Backend.settings
    both = moto_setup.install(with_regions(settings, "us-east-1", "us-east-1"))
    launch(world)
    assert len(list_instances(both)) == 1
    monkeypatch.setattr(SandboxEC2Backend, "settings", with_regions(settings, "eu-west-1", "us-east-1"))
    assert len(SandboxEC2Backend("us-east-1", DEFAULT_ACCOUNT_ID).get_default_subnets()) == 4
