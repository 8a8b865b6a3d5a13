"""The volume of [[volumes]] source = "head": plans, and `up`, `resize`, `stop` and `down` with it."""

from collections import Counter
from typing import Any

import pytest

from foundation.errors import AwsError, ClusterError, ConfigError
from provision import plan as plans
from provision.plan import Step
from provision.preflight.places import Facts, keep_volume_zone
from provision.preflight.subnets import Subnet
from provision.resources.shared_volume import (
    SHARED_VOLUME,
    AttachSharedVolume,
    CreateSharedVolume,
    SharedVolume,
    TagKeep,
    find_shared_volumes,
)
from provision_world import NAME, Killed, World, complete, make_config, make_node, make_state, make_volume, make_wanted


def make_shared(**values: Any) -> SharedVolume:
    defaults: dict[str, Any] = {
        "volume_id": "vol-1", "zone": "us-east-1a", "size_gib": 100, "state": "available"
    }  # fmt: skip
    return SharedVolume(**{**defaults, **values})


def attached(instance_id: str, **values: Any) -> SharedVolume:
    return make_shared(state="in-use", instance_id=instance_id, attachment="attached", device="/dev/sdf", **values)


def wanted(*found: SharedVolume, nodes: Any = (), keep: bool = False) -> plans.World:
    state = make_state(*nodes, found={SHARED_VOLUME.kind: found})
    return make_wanted(state=state, volumes=(make_volume(keep=keep),))


def plan_up(asked: plans.World) -> tuple[Step, ...]:
    assert SHARED_VOLUME.plan_on_nodes is not None
    return SHARED_VOLUME.plan_on_nodes(asked)


NODES = (make_node(0), make_node(1))
CREATE = CreateSharedVolume(size_gib=100, keep=False, mount="/shared")
ATTACH_NEW = AttachSharedVolume(volume_id=None)
ATTACH = AttachSharedVolume(volume_id="vol-1")


@pytest.mark.parametrize(
    ("asked", "steps"),
    [
        (wanted(), (CREATE, ATTACH_NEW)),
        (wanted(make_shared()), (ATTACH,)),
        (wanted(attached("i-0"), nodes=NODES), ()),
        (wanted(attached("i-0", volume_id="vol-2"), make_shared(), nodes=NODES), ()),
        (wanted(make_shared(), keep=True), (TagKeep(volume_id="vol-1", keep=True), ATTACH)),
        (wanted(attached("i-0", keep=True, tagged_keep=True), nodes=NODES, keep=True), ()),
        (wanted(attached("i-0", keep=True, tagged_keep=True), nodes=NODES), (TagKeep(volume_id="vol-1", keep=False),)),
        (make_wanted(state=make_state(*NODES, found={SHARED_VOLUME.kind: (make_shared(),)})), ()),
    ],
)
def test_plan_of_up(asked: plans.World, steps: tuple[Step, ...]) -> None:
    assert plan_up(asked) == steps


def test_up_refuses_two_volumes_and_names_them() -> None:
    with pytest.raises(ClusterError, match=r"has 2 volumes .*vol-1 \(us-east-1a, 100 GiB\), vol-2 \(us-east-1b"):
        plan_up(wanted(make_shared(), make_shared(volume_id="vol-2", zone="us-east-1b")))


def test_up_refuses_a_volume_in_another_zone_than_the_nodes() -> None:
    with pytest.raises(ClusterError, match=r"vol-1, is in us-east-1b, and node-0 is in us-east-1a") as raised:
        plan_up(wanted(make_shared(zone="us-east-1b"), nodes=NODES))
    assert "delete-volume --volume-id vol-1 --region us-east-1" in (raised.value.hint or "")


SUBNETS = tuple(
    Subnet(subnet_id=f"subnet-{zone}", vpc_id="vpc-1", zone=f"us-east-1{zone}", free_addresses=9) for zone in "abc"
)
FACTS = Facts(types={}, zones={}, images={}, subnets=SUBNETS)


def test_a_volume_in_a_zone_without_a_subnet_is_explained() -> None:
    asked = wanted(make_shared(zone="us-east-1f"))
    with pytest.raises(ConfigError, match="vol-1 is in us-east-1f, not in us-east-1a, us-east-1b, us-east-1c"):
        keep_volume_zone(asked, FACTS)


def with_volume(nodes: int, volumes: int = 1) -> Counter[str]:
    return complete(nodes) + Counter({"shared volumes": volumes})


def describe_volumes(world: World) -> tuple[SharedVolume, ...]:
    return find_shared_volumes(world.clients.ec2, name=NAME)


def test_a_kept_volume_stays_and_is_used_again_in_its_zone(world: World) -> None:
    world.volumes = (make_volume(size_gib=20, keep=True),)
    world.sandbox.book.arm("capacity zone=us-east-1a free=0")
    state = world.up(make_config())
    assert world.resources() == with_volume(2)
    [volume] = describe_volumes(world)
    there: Any = {"volume_id": volume.volume_id, "zone": "us-east-1b", "size_gib": 20}
    assert volume == attached(state.head.instance_id, keep=True, tagged_keep=True, **there)
    [shown] = world.clients.ec2.describe_volumes(VolumeIds=[volume.volume_id])["Volumes"]
    assert (shown["Encrypted"], shown["VolumeType"]) == (True, "gp3")
    assert not world.prepare(make_config())
    world.sandbox.book.disarm("all")
    receipt = world.down()
    [kept] = receipt.kept
    assert (kept.volume_id, kept.size_gib, kept.zone) == (volume.volume_id, 20, "us-east-1b")
    assert receipt.leftovers == ()
    assert world.resources() == Counter({"shared volumes": 1})
    state = world.up(make_config())
    assert {node.zone for node in state.nodes} == {"us-east-1b"}
    [again] = describe_volumes(world)
    assert (again.volume_id, again.instance_id) == (volume.volume_id, state.head.instance_id)
    assert world.resources() == with_volume(2)


def test_keep_follows_cluster_toml(world: World) -> None:
    """`up` writes `keep` to the tag. `down` keeps a volume if cluster.toml or the tag says so."""
    world.volumes = (make_volume(),)
    world.up(make_config())
    world.volumes = (make_volume(keep=True),)
    assert len(world.down().kept) == 1
    world.volumes = ()
    assert len(world.down().kept) == 1  # from the tag, as on another machine
    world.volumes = (make_volume(),)
    world.up(make_config())
    assert world.down().kept == ()
    assert not world.resources()


def test_a_failed_attachment_rolls_back_the_new_volume_too(world: World) -> None:
    world.sandbox.book.arm("unauthorized action=AttachVolume count=9")
    world.volumes = (make_volume(),)
    with pytest.raises(AwsError, match="not authorized to perform"):
        world.up(make_config())
    assert world.calls.mutating()["CreateVolume"] == 1
    assert not {"instances", "shared volumes"} & set(world.resources())


def test_a_volume_that_ec2_does_not_list_yet_is_not_made_twice(late_world: World) -> None:
    late_world.volumes = (make_volume(),)

    def kill(*_: object) -> None:
        raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("provision.resources.shared_volume._find_one", kill)
        with pytest.raises(Killed):
            late_world.up(make_config())
    late_world.up(make_config())
    late_world.time.sleep(60)
    assert late_world.resources() == with_volume(2)
