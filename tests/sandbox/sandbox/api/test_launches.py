"""EC2 without hosts, as botocore's client sees it.

Tests the rows of the table in sandbox/README.md that need no host. hosts/test_instances.py tests the other rows.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ec2_client import Client, client, describe, ids_of, live, refused_as, run
from iam_steps import make_profile
from sandbox_steps import RunningSandbox, enter, find_image, start_sandbox, terminate_all, wait_for

pytestmark = pytest.mark.sandbox


@pytest.fixture
def ec2(phantom: RunningSandbox) -> Client:
    return client("ec2")


# --- dry runs


@pytest.mark.parametrize(
    ("action", "asked"),
    [
        ("run_instances", {"MinCount": 1, "MaxCount": 1, "InstanceType": "c5.xlarge"}),
        ("describe_instances", {}),
    ],
)
def test_a_dry_run_changes_nothing(ec2: Client, action: str, asked: dict[str, Any]) -> None:
    if action == "run_instances":
        asked = asked | {"ImageId": find_image()}
    with refused_as("DryRunOperation"):
        getattr(ec2, action)(**asked, DryRun=True)
    assert not live(ec2)


# --- what goes with an instance, and what does not


def test_interface_and_volume_are_deleted_with_their_instance(ec2: Client) -> None:
    ids = ids_of(
        run(ec2, BlockDeviceMappings=[{"DeviceName": "/dev/sda1", "Ebs": {"VolumeSize": 20, "Encrypted": True}}])
    )
    wait_for(ec2, "instance_running", ids)
    [instance] = describe(ec2, InstanceIds=ids)
    [mapping] = instance["BlockDeviceMappings"]
    volume_id = mapping["Ebs"]["VolumeId"]
    [volume] = ec2.describe_volumes(VolumeIds=[volume_id])["Volumes"]
    assert (volume["Size"], volume["Encrypted"], volume["VolumeType"]) == (20, True, "gp3")
    interface_id = instance["NetworkInterfaces"][0]["NetworkInterfaceId"]
    ec2.terminate_instances(InstanceIds=ids)
    wait_for(ec2, "instance_terminated", ids)
    assert volume_id not in {v["VolumeId"] for v in ec2.describe_volumes()["Volumes"]}
    interfaces = ec2.describe_network_interfaces()["NetworkInterfaces"]
    assert interface_id not in {i["NetworkInterfaceId"] for i in interfaces}


def test_security_group_in_use_cannot_be_deleted(ec2: Client) -> None:
    group_id = ec2.create_security_group(GroupName="in-use", Description="for a test")["GroupId"]
    # A rule that names its own group does not prevent the group's deletion.
    ec2.authorize_security_group_ingress(
        GroupId=group_id, IpPermissions=[{"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": group_id}]}]
    )
    other_id = ec2.create_security_group(GroupName="refers", Description="for a test")["GroupId"]
    ec2.authorize_security_group_ingress(
        GroupId=other_id, IpPermissions=[{"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": group_id}]}]
    )
    ids = ids_of(run(ec2, SecurityGroupIds=[group_id]))
    with refused_as("DependencyViolation"):
        ec2.delete_security_group(GroupId=group_id)
    ec2.terminate_instances(InstanceIds=ids)
    wait_for(ec2, "instance_terminated", ids)
    with refused_as("DependencyViolation"):
        ec2.delete_security_group(GroupId=group_id)
    ec2.delete_security_group(GroupId=other_id)
    ec2.delete_security_group(GroupId=group_id)
    with refused_as("InvalidGroup.NotFound"):
        ec2.delete_security_group(GroupId=group_id)


# --- placement groups


def test_create_use_and_delete_a_placement_group(ec2: Client) -> None:
    tags = [{"Key": "cluster:name", "Value": "demo"}]
    made = ec2.create_placement_group(
        GroupName="near", Strategy="cluster", TagSpecifications=[{"ResourceType": "placement-group", "Tags": tags}]
    )["PlacementGroup"]
    assert (made["GroupName"], made["State"], made["Strategy"], made["Tags"]) == ("near", "available", "cluster", tags)
    with refused_as("InvalidParameterCombination"):  # burstable types cannot be in a cluster group
        run(ec2, InstanceType="t3.micro", Placement={"GroupName": "near"})
    with refused_as("InvalidPlacementGroup.Duplicate"):
        ec2.create_placement_group(GroupName="near", Strategy="spread")
    by_tag = [{"Name": "tag:cluster:name", "Values": ["demo"]}]
    assert [g["GroupId"] for g in ec2.describe_placement_groups(Filters=by_tag)["PlacementGroups"]] == [made["GroupId"]]
    assert not ec2.describe_placement_groups(Filters=[{"Name": "strategy", "Values": ["spread"]}])["PlacementGroups"]
    ids = ids_of(run(ec2, Placement={"GroupName": "near"}))
    in_group = [{"Name": "placement-group-name", "Values": ["near"]}]
    assert [i["Placement"]["GroupName"] for i in describe(ec2, Filters=in_group)] == ["near"]
    with refused_as("InvalidPlacementGroup.InUse"):
        ec2.delete_placement_group(GroupName="near")
    ec2.terminate_instances(InstanceIds=ids)
    wait_for(ec2, "instance_terminated", ids)
    ec2.delete_placement_group(GroupName="near")
    for call in (ec2.delete_placement_group, lambda GroupName: ec2.describe_placement_groups(GroupNames=[GroupName])):  # noqa: N803
        with refused_as("InvalidPlacementGroup.Unknown"):
            call(GroupName="near")


# --- images


def test_deep_learning_images(ec2: Client) -> None:
    name = "/aws/service/deeplearning/ami/x86_64/base-oss-nvidia-driver-gpu-amazon-linux-2023/latest/ami-id"
    image_id = client("ssm").get_parameter(Name=name)["Parameter"]["Value"]
    [image] = ec2.describe_images(ImageIds=[image_id])["Images"]
    assert (image["OwnerId"], image["Architecture"], image["State"]) == ("898082745236", "x86_64", "available")
    assert image["RootDeviceName"] == "/dev/xvda"
    assert image["BlockDeviceMappings"][0]["Ebs"]["VolumeSize"] == 75
    newest = ec2.describe_images(
        Owners=["amazon"],
        Filters=[{"Name": "name", "Values": ["Deep Learning *Base OSS Nvidia Driver GPU AMI (Amazon Linux 2023) *"]},
                 {"Name": "architecture", "Values": ["x86_64"]}],
    )["Images"]  # fmt: skip
    assert [found["ImageId"] for found in newest] == [image_id]


# --- quotas


def test_quotas_count_the_running_vcpus(own_project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    granted = {"L-1216C47A": 8, "L-34B43A08": 4}
    spot: dict[str, Any] = {"InstanceMarketOptions": {"MarketType": "spot"}}
    enter(start_sandbox(own_project, hosts="none", quotas=granted), monkeypatch)
    ec2 = client("ec2")
    quotas = client("service-quotas")
    quota = quotas.get_service_quota(ServiceCode="ec2", QuotaCode="L-1216C47A")["Quota"]
    assert (quota["Value"], quota in quotas.list_service_quotas(ServiceCode="ec2")["Quotas"]) == (8, True)
    with refused_as("VcpuLimitExceeded"):
        run(ec2, MinCount=3, MaxCount=3)
    assert not live(ec2)
    ids = ids_of(run(ec2, MinCount=1, MaxCount=3))
    assert len(ids) == 2
    with refused_as("VcpuLimitExceeded", match="current vCPU limit of 8"):
        run(ec2)
    run(ec2, **spot)
    with refused_as("MaxSpotInstanceCountExceeded"):
        run(ec2, **spot)
    run(ec2, InstanceType="g5.xlarge")
    ec2.stop_instances(InstanceIds=ids[:1])
    wait_for(ec2, "instance_stopped", ids[:1])
    run(ec2)
    with refused_as("VcpuLimitExceeded"):
        ec2.start_instances(InstanceIds=ids[:1])


# --- spot


def test_a_spot_launch(ec2: Client) -> None:
    options = {"MarketType": "spot", "SpotOptions": {"MaxPrice": "0.5", "SpotInstanceType": "one-time"}}
    [instance] = run(ec2, InstanceMarketOptions=options)
    [described] = describe(ec2, Filters=[{"Name": "instance-lifecycle", "Values": ["spot"]}, *only_live()])
    assert described["InstanceId"] == instance["InstanceId"]
    assert described["InstanceLifecycle"] == "spot"
    request_id = described["SpotInstanceRequestId"]
    [request] = ec2.describe_spot_instance_requests(SpotInstanceRequestIds=[request_id])["SpotInstanceRequests"]
    assert (request["State"], request["Status"]["Code"]) == ("active", "fulfilled")
    assert (request["InstanceId"], request["Type"]) == (instance["InstanceId"], "one-time")
    assert float(request["SpotPrice"]) == 0.5
    ec2.terminate_instances(InstanceIds=[instance["InstanceId"]])
    [request] = ec2.describe_spot_instance_requests(SpotInstanceRequestIds=[request_id])["SpotInstanceRequests"]
    assert (request["State"], request["Status"]["Code"]) == ("closed", "instance-terminated-by-user")


def only_live() -> list[dict[str, Any]]:
    return [{"Name": "instance-state-name", "Values": ["pending", "running"]}]


# --- eventual consistency


def test_new_resources_are_not_found(own_project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    enter(start_sandbox(own_project, hosts="none", consistency_delay_s=3600.0), monkeypatch)
    ec2 = client("ec2")
    ids = ids_of(run(ec2))
    group_id = ec2.create_security_group(GroupName="new", Description="x")["GroupId"]
    ec2.create_key_pair(KeyName="new", KeyType="ed25519")
    profile = make_profile("new")
    calls: dict[str, list[Callable[[], object]]] = {
        "InvalidInstanceID.NotFound": [
            lambda: ec2.describe_instances(InstanceIds=ids),
            lambda: ec2.create_tags(Resources=ids, Tags=[{"Key": "a", "Value": "b"}]),
        ],
        "InvalidGroup.NotFound": [lambda: ec2.describe_security_groups(GroupIds=[group_id])],
        "InvalidKeyPair.NotFound": [lambda: run(ec2, KeyName="new")],
        "InvalidParameterValue": [lambda: run(ec2, **profile)],
        "InvalidKeyPair.Duplicate": [lambda: ec2.create_key_pair(KeyName="new")],
    }
    for code, call in ((code, call) for code, listed in calls.items() for call in listed):
        with refused_as(code):
            call()
    assert not describe(ec2)
    assert group_id not in {g["GroupId"] for g in ec2.describe_security_groups()["SecurityGroups"]}


# --- scale


@pytest.mark.slow
def test_a_thousand_instances(ec2: Client) -> None:
    assert len(run(ec2, 1000, InstanceType="t3.micro")) == 1000
    wait_for(ec2, "instance_running", [live(ec2)[0]["InstanceId"]])
    terminate_all(ec2)
    assert not live(ec2)
