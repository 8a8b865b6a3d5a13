"""`cluster down` as a user types it, against the sandbox's real server; the instances have no hosts."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from mypy_boto3_ec2.type_defs import TagTypeDef

from cluster.app import sandbox_files_dir
from foundation.progress import silent
from foundation.settings import check
from project import Project
from provision.aws.clients import make_clients
from provision.config import ProvisionConfig
from provision.files import ClusterFiles
from provision.plan import Wishes
from provision.up import prepare_up, up
from sandbox import control
from sandbox_steps import REGION, enter, start_sandbox

pytestmark = pytest.mark.sandbox

NAME = "demo"
DATA, RESULTS = "s3://records/digits/", "s3://records/results/"
TAGGED: Any = [{"Name": "tag:cluster:name", "Values": [NAME]}]


@pytest.fixture
def account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    """A project whose sandbox runs without hosts; this process's environment points at it, too."""
    project = Project(directory=tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", project.environment()["XDG_STATE_HOME"])
    write(project)
    try:
        enter(start_sandbox(tmp_path, hosts="none"), monkeypatch)
        yield project
    finally:
        control.reset(tmp_path, report=silent)


def write(project: Project, **provision: Any) -> None:
    settings = "\n".join(f"{key} = {json.dumps(value)}" for key, value in provision.items())
    project.write(
        f'name = "{NAME}"\n[provision]\n{settings}\n[data]\nurl = "{DATA}"\nresults = "{RESULTS}"\n'
        '[sandbox]\nhosts = "none"\n'
    )


def launch(project: Project, **settings: Any) -> None:
    """Runs `cluster up` without its second half, which needs hosts."""
    write(project, **settings)
    clients = make_clients(REGION)
    wishes = Wishes(
        name=NAME, config=check(ProvisionConfig, settings, source="cluster.toml"), data_url=DATA, results_url=RESULTS
    )
    files = ClusterFiles(sandbox_files_dir(project.directory) / NAME)
    up(prepare_up(clients, wishes=wishes, files=files), clients=clients, files=files, report=silent)


def down(project: Project, code: int = 0) -> dict[str, Any]:
    document_: dict[str, Any] = json.loads(project.run("down", "--json", code=code).stdout)
    return document_


def kinds(resources: list[dict[str, str]]) -> set[str]:
    return {resource["kind"] for resource in resources}


def live() -> list[str]:
    return [
        instance["State"]["Name"]
        for reservation in boto3.client("ec2").describe_instances(Filters=TAGGED)["Reservations"]
        for instance in reservation["Instances"]
        if instance["State"]["Name"] != "terminated"
    ]


def test_down_from_a_machine_without_the_clusters_files(account: Project, tmp_path: Path) -> None:
    launch(account, nodes=3, instance_type="c5.xlarge")
    account.env = {"XDG_STATE_HOME": str(tmp_path / "another machine")}

    receipt = down(account)

    assert receipt["gone"]
    assert kinds(receipt["deleted"]) == {"instance", "security group", "placement group", "key pair"}
    assert receipt["left"] == receipt["unseen"] == []
    assert receipt["node_hours"] > 0
    assert receipt["cost_usd"] is not None
    assert not live()
    ec2 = boto3.client("ec2")
    assert [group["GroupName"] for group in ec2.describe_security_groups()["SecurityGroups"]] == ["default"]
    assert not ec2.describe_key_pairs()["KeyPairs"]
    assert not ec2.describe_placement_groups()["PlacementGroups"]
    assert not ec2.describe_volumes(Filters=TAGGED)["Volumes"]
    account.env = {}
    assert kinds(down(account)["deleted"]) == {"local files"}  # of the machine that created it
    assert account.run("down").stdout == f"cluster {NAME}: nothing to delete\n"


def test_deletes_orphaned_spot_requests_disks_and_interfaces(account: Project) -> None:
    launch(account, nodes=2, market="spot")
    ec2 = boto3.client("ec2")
    [subnet, *_] = ec2.describe_subnets()["Subnets"]
    tags: list[TagTypeDef] = [{"Key": "cluster:name", "Value": NAME}]
    ec2.create_volume(
        AvailabilityZone=subnet["AvailabilityZone"],
        Size=8,
        TagSpecifications=[{"ResourceType": "volume", "Tags": tags}],
    )
    ec2.create_network_interface(
        SubnetId=subnet["SubnetId"], TagSpecifications=[{"ResourceType": "network-interface", "Tags": tags}]
    )
    others = ec2.create_volume(AvailabilityZone=subnet["AvailabilityZone"], Size=8)["VolumeId"]

    done = account.run("down")

    assert done.stdout.startswith(f"cluster {NAME} is deleted\n  deleted  2 x instance: i-")
    assert "  deleted  1 x volume: vol-" in done.stdout
    assert "  deleted  1 x network interface: eni-" in done.stdout
    assert "  left     nothing; looked for spot requests, instances," in done.stdout
    assert ", at the current spot price" in done.stdout
    states = [request["State"] for request in ec2.describe_spot_instance_requests()["SpotInstanceRequests"]]
    assert states == ["closed"] * 2
    assert others in [volume["VolumeId"] for volume in ec2.describe_volumes()["Volumes"]]


@pytest.mark.slow
def test_names_another_groups_rule_after_the_instances_end(account: Project) -> None:
    launch(account, nodes=1)
    ec2 = boto3.client("ec2")
    [group] = ec2.describe_security_groups(Filters=TAGGED)["SecurityGroups"]
    web = ec2.create_security_group(GroupName="web", Description="somebody's", VpcId=group["VpcId"])["GroupId"]
    rule: Any = [
        {"IpProtocol": "tcp", "FromPort": 80, "ToPort": 80, "UserIdGroupPairs": [{"GroupId": group["GroupId"]}]}
    ]
    ec2.authorize_security_group_ingress(GroupId=web, IpPermissions=rule)

    refused = account.run("down", code=1)

    assert f"{group['GroupId']} cannot be deleted while rules of other groups name it: {web} (web)" in refused.stderr
    assert f"Values={web}" in refused.stderr
    assert not live()
    ec2.revoke_security_group_ingress(GroupId=web, IpPermissions=rule)
    assert down(account)["gone"]


@pytest.mark.slow
def test_reports_what_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = Project(directory=tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", project.environment()["XDG_STATE_HOME"])
    try:
        faults = ("unauthorized service=iam", "unauthorized service=pricing")
        enter(start_sandbox(tmp_path, hosts="none", faults=faults), monkeypatch)
        launch(project, nodes=1)

        receipt = down(project)

        assert receipt["gone"]
        assert not live()
        assert {each["kind"] for each in receipt["unseen"]} == {"role and instance profile"}
        assert all("AccessDenied" in each["why"] for each in receipt["unseen"])
        assert receipt["cost_usd"] is None  # it may not read prices either
        write(project, instance_profile="auto")
        assert "may still be there" in project.run("down", code=1).stderr
    finally:
        control.reset(tmp_path, report=silent)


def test_without_a_sandbox(tmp_path: Path) -> None:
    project = Project(directory=tmp_path)
    write(project)

    assert down(project)["deleted"] == []
    assert project.run("down").stdout == f"cluster {NAME}: nothing to delete\n"
