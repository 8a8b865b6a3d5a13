"""EFS and FSx: descriptions by real clients from the sandbox's API, and errors."""

from collections.abc import Iterator
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
from provision.volumes.file_systems import find_file_system
from provision.volumes.source import plan_mount
from provision_world import World, make_config, make_volume
from sandbox_in_process import REGION


def volume(source: str, **values: Any) -> VolumeConfig:
    return check(VolumeConfig, {"mount": "/data", "source": source, **values}, source="cluster.toml")


@pytest.fixture(autouse=True)
def empty_account(world: World) -> Iterator[None]:
    yield
    for backends in (efs_backends, fsx_backends):
        backends[DEFAULT_ACCOUNT_ID][REGION].reset()


def make_lustre(world: World, kind: Any = "LUSTRE") -> str:
    [subnet] = world.sandbox.backend.subnets["us-east-1a"].values()
    made = world.clients.fsx.create_file_system(FileSystemType=kind, StorageCapacity=1200, SubnetIds=[subnet.id])
    return made["FileSystem"]["FileSystemId"]


def test_rejects_other_file_systems_of_fsx(world: World) -> None:
    planned = plan_mount(volume(make_lustre(world, "OPENZFS")), region=REGION)
    with pytest.raises(ConfigError, match="it is FSx for OPENZFS, and only FSx for Lustre is mounted by id") as raised:
        find_file_system(world.clients, planned)
    assert "if it has an NFS export, use that" in (raised.value.hint or "")


def test_describes_both_and_what_nodes_mount(world: World) -> None:
    efs_id, fsx_id = world.clients.efs.create_file_system(CreationToken="t")["FileSystemId"], make_lustre(world)
    world.volumes = (make_volume(), volume(efs_id, mount="/efs"), volume(fsx_id, mount="/lustre", read_only=True))
    plan = world.prepare(make_config())
    text = render_plan(plan)
    assert "volumes      /shared: a new volume of 100 GiB on the head, gp3, encrypted" in text
    assert f"/efs: {efs_id}, EFS" in text
    assert f"/lustre: {fsx_id}, FSx for Lustre, read-only" in text
    state = world.up(make_config())
    before = world.calls.mutating()
    head, efs, lustre = describe_mounts(world.clients, world.volumes, state)
    assert (head.kind, head.instance_id) == ("head", state.head.instance_id)
    assert (efs.kind, efs.server, efs.export) == ("efs", f"{efs_id}.efs.us-east-1.amazonaws.com", "/")
    assert (lustre.kind, lustre.server) == ("lustre", f"{fsx_id}.fsx.us-east-1.amazonaws.com")
    assert (lustre.export, lustre.read_only) == ("/fsx", True)
    assert world.calls.mutating() == before
    world.down()
    assert efs_backends[DEFAULT_ACCOUNT_ID][REGION].file_systems_by_id.keys() == {efs_id}
    assert fsx_backends[DEFAULT_ACCOUNT_ID][REGION].file_systems.keys() == {fsx_id}


def test_an_unknown_file_system_is_rejected_before_the_launch(world: World) -> None:
    world.volumes = (volume("fs-0123abcd"),)
    with pytest.raises(ConfigError, match='source = "fs-0123abcd": neither EFS nor FSx has this file system'):
        world.prepare(make_config())
    assert not world.calls.mutating()
