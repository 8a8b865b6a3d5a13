"""EFS and FSx: descriptions by real clients from the sandbox's API, errors, and warnings."""

import dataclasses
from collections.abc import Iterator
from ipaddress import IPv4Network
from typing import Any

import pytest
from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.efs.models import efs_backends
from moto.fsx.models import fsx_backends

from foundation.errors import ConfigError
from foundation.settings import check
from provision.render import render_plan
from provision.volumes.config import VolumeConfig
from provision.volumes.describe import describe_mounts
from provision.volumes.file_systems import (
    FoundFileSystem,
    Place,
    Target,
    choose_file_system,
    find_warnings,
)
from provision_world import World, make_config, make_volume
from sandbox_in_process import REGION

NODES = Place(vpc_id="vpc-1", zone="us-east-1a", network=IPv4Network("10.0.0.0/20"), group_ids=("sg-1",))


def volume(source: str, **values: Any) -> VolumeConfig:
    return check(VolumeConfig, {"mount": "/data", "source": source, **values}, source="cluster.toml")


def found(**values: Any) -> FoundFileSystem:
    defaults: dict[str, Any] = {
        "kind": "efs",
        "file_system_id": "fs-0123abcd",
        "state": "available",
        "dns_name": "fs-0123abcd.efs.us-east-1.amazonaws.com",
        "export": "/",
        "targets": (Target(vpc_id="vpc-1", zone="us-east-1a", address="10.0.0.9", group_ids=("sg-9",)),),
        "open_to": {"sg-9": ("sg-1",)},
    }
    return FoundFileSystem(**{**defaults, **values})


@pytest.fixture(autouse=True)
def empty_account(world: World) -> Iterator[None]:
    yield
    for backends in (efs_backends, fsx_backends):
        backends[DEFAULT_ACCOUNT_ID][REGION].reset()
    world.volumes = ()


VOLUME = volume("fs-0123abcd")
ELSEWHERE = (
    Target(vpc_id="vpc-1", zone="us-east-1b", address="10.0.16.9", group_ids=("sg-9",)),
    Target(vpc_id="vpc-2", zone="us-east-1a", address="10.9.0.9"),
)


@pytest.mark.parametrize(
    ("system", "address"),
    [(found(), "10.0.0.9"), (found(targets=ELSEWHERE), "10.0.16.9"), (found(state="updating"), "10.0.0.9")],
)
def test_the_target_in_the_nodes_zone_is_preferred(system: FoundFileSystem, address: str) -> None:
    assert choose_file_system(system, VOLUME, NODES).address == address


@pytest.mark.parametrize(
    ("system", "said", "hint"),
    [
        (found(state="creating"), "the EFS file system is creating", "wait until it is available"),
        (found(state=""), "in an unknown state", "wait"),
        (found(targets=()), "are in vpc-1, and the EFS file system has a mount target nowhere", "create-mount-target"),
        (found(targets=ELSEWHERE[1:]), "has a mount target only in vpc-2", "--file-system-id fs-0123abcd"),
        (
            found(kind="lustre", targets=ELSEWHERE[1:]),
            "the FSx for Lustre file system has a mount target only in vpc-2",
            "use a file system of that VPC",
        ),
    ],
)
def test_rejects_what_nodes_cannot_mount(system: FoundFileSystem, said: str, hint: str) -> None:
    with pytest.raises(ConfigError) as raised:
        choose_file_system(system, VOLUME, NODES)
    assert said in raised.value.message
    assert hint in (raised.value.hint or "")


@pytest.mark.parametrize(
    ("system", "place", "said"),
    [
        (found(), NODES, []),
        (found(open_to={"sg-9": (IPv4Network("10.0.0.0/16"),)}), NODES, []),
        (found(open_to={"sg-9": (IPv4Network("0.0.0.0/0"),)}), NODES, []),
        (found(targets=(Target(vpc_id="vpc-1"),)), NODES, []),
        (found(open_to={"sg-9": (IPv4Network("10.0.0.0/24"),)}), NODES, ["TCP port 2049"]),
        (found(open_to={"sg-9": ("sg-2",)}), NODES, ["--source-group sg-1"]),
        (
            found(open_to={"sg-9": ("sg-2",)}),
            dataclasses.replace(NODES, group_ids=()),
            ["--source-group the id of cluster-demo"],
        ),
        (found(kind="lustre", open_to={}), NODES, ["TCP port 988"]),
        (found(targets=ELSEWHERE), NODES, ["nodes use the one in us-east-1b, and AWS charges"]),
    ],
)
def test_warns_of_what_may_fail_or_cost(system: FoundFileSystem, place: Place, said: list[str]) -> None:
    warnings = list(find_warnings(system, VOLUME, place, cluster="demo"))
    assert len(warnings) == len(said)
    assert all(words in warning for words, warning in zip(said, warnings, strict=True))


# --- against the API


def make_efs(world: World, *, zone: str = "us-east-1a") -> tuple[str, str]:
    """Creates an EFS file system; returns its id, and the id of its security group."""
    efs, ec2 = world.clients.efs, world.clients.ec2
    made = efs.create_file_system(CreationToken="t")["FileSystemId"]
    [subnet] = ec2.describe_subnets(Filters=[{"Name": "availability-zone", "Values": [zone]}])["Subnets"]
    group = ec2.create_security_group(GroupName="efs", Description="x", VpcId=subnet["VpcId"])["GroupId"]
    efs.create_mount_target(FileSystemId=made, SubnetId=subnet["SubnetId"], SecurityGroups=[group])
    return made, group


def make_lustre(world: World, kind: Any = "LUSTRE") -> tuple[str, str]:
    ec2 = world.clients.ec2
    [subnet] = ec2.describe_subnets(Filters=[{"Name": "availability-zone", "Values": ["us-east-1a"]}])["Subnets"]
    group = ec2.create_security_group(GroupName="fsx", Description="x", VpcId=subnet["VpcId"])["GroupId"]
    made = world.clients.fsx.create_file_system(
        FileSystemType=kind, StorageCapacity=1200, SubnetIds=[subnet["SubnetId"]], SecurityGroupIds=[group]
    )
    return made["FileSystem"]["FileSystemId"], group


def test_describes_both_and_what_nodes_mount(world: World) -> None:
    efs_id, efs_group = make_efs(world)
    fsx_id, _ = make_lustre(world)
    world.clients.ec2.authorize_security_group_ingress(
        GroupId=efs_group, IpProtocol="tcp", FromPort=2049, ToPort=2049, CidrIp="10.77.0.0/16"
    )
    world.volumes = (make_volume(), volume(efs_id, mount="/efs"), volume(fsx_id, mount="/lustre", read_only=True))
    plan = world.prepare(make_config())
    text = render_plan(plan)
    assert "volumes      /shared: a new volume of 100 GiB on the head, gp3, encrypted" in text
    assert f"/efs: {efs_id}, EFS at 10.77." in text
    assert f"/lustre: {fsx_id}, FSx for Lustre at 10.77." in text
    assert "warning      /lustre: no security group of" in text
    assert "warning      /efs" not in text

    state = world.up(make_config())
    before = world.calls.mutating()
    head, efs, lustre = describe_mounts(world.clients, world.volumes, state)
    assert (head.kind, head.server, head.instance_id) == (
        "head",
        state.head.private_ip if state.head else "",
        state.head.instance_id if state.head else "",
    )
    assert (efs.kind, efs.server, efs.export) == ("efs", f"{efs_id}.efs.us-east-1.amazonaws.com", "/")
    assert efs.address.startswith("10.77.")
    assert (lustre.kind, lustre.server, lustre.export, lustre.read_only) == (
        "lustre",
        f"{fsx_id}.fsx.us-east-1.amazonaws.com",
        "/fsx",
        True,
    )
    assert world.calls.mutating() == before
    world.down()
    assert efs_backends[DEFAULT_ACCOUNT_ID][REGION].file_systems_by_id.keys() == {efs_id}
    assert fsx_backends[DEFAULT_ACCOUNT_ID][REGION].file_systems.keys() == {fsx_id}


@pytest.mark.parametrize("source", ["fs-0123abcd", "fs-0123456789abcdef0"])
def test_an_unknown_file_system_is_rejected_before_the_launch(world: World, source: str) -> None:
    world.volumes = (volume(source),)
    with pytest.raises(
        ConfigError, match=f'source = "{source}": neither EFS nor FSx has this file system in us-east-1'
    ):
        world.prepare(make_config())
    assert not world.calls.mutating()
