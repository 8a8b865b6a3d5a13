"""EC2 without hosts, as botocore's client sees it.

Tests the rows of the table in sandbox/README.md that need no host. hosts/test_instances.py tests the other rows.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ec2_client import Client, client, describe, ids_of, live, refused_as, run
from iam_steps import make_profile
from sandbox_steps import RunningSandbox, enter, start_sandbox, wait_for

pytestmark = pytest.mark.sandbox


@pytest.fixture
def ec2(phantom: RunningSandbox) -> Client:
    return client("ec2")


# --- what goes with an instance, and what does not


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
