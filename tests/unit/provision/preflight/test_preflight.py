"""Ways to launch nodes, the values of `auto`, and errors before anything is created."""

from collections import Counter
from datetime import UTC
from typing import Any

import pytest
from moto.ec2.models.instance_types import INSTANCE_TYPES

from ec2_sandbox.api.images import SandboxAmi
from foundation.errors import AwsError, ConfigError, NotInRegionError
from provision.model import ClusterState, Preflight
from provision.preflight.machines import describe_hardware, render_gpus
from provision.preflight.places import describe_preflight
from provision.preflight.subnets import find_obstacle
from provision_world import NAME, World, make_config, make_node, make_option, make_wanted

UBUNTU, DLAMI = "ubuntu/images/hvm-ssd/ubuntu-jammy-22.04", "Deep Learning Base OSS Nvidia"
ZONES = ["us-east-1a", "us-east-1b", "us-east-1c", "us-east-1d", "us-east-1f"]
"""That offer c5.xlarge and g5.xlarge, as AWS published it; all of the region but us-east-1e."""


def preflight(
    world: World, state: ClusterState | None = None, *, least: int | None = None, **settings: Any
) -> Preflight:
    config = make_config(**settings, **({} if least is None else {"min_nodes": least}))
    return describe_preflight(world.clients, make_wanted(config=config, state=state or ClusterState(name=NAME)))


def image_of(world: World, name: str, architecture: str = "x86_64") -> SandboxAmi:
    images = [one for one in world.sandbox.backend.amis.values() if one.name.startswith(name)]
    image = max((one for one in images if one.architecture == architecture), key=lambda one: one.creation_date)
    assert isinstance(image, SandboxAmi)
    return image


def subnet_in(world: World, zone: str) -> Any:
    [subnet] = world.sandbox.backend.subnets[zone].values()
    return subnet


def places(found: Preflight) -> list[tuple[str, str, str]]:
    return [(option.market, option.instance_type, option.zone) for option in found.options]


def test_a_cpu_cluster(world: World) -> None:
    image = image_of(world, UBUNTU)
    subnet = subnet_in(world, "us-east-1a")
    found = preflight(world)
    assert found.options[0] == make_option(
        image_id=image.id,
        image_name=image.name,
        image_created_at=image.creation_date.replace(tzinfo=UTC),
        subnet_id=subnet.id,
        vpc_id=subnet.vpc_id,
        placement=True,
        usd_per_hour=0.17,
    )
    assert places(found) == [("on-demand", "c5.xlarge", zone) for zone in ZONES]
    assert found.skipped == ("c5.xlarge is not offered in us-east-1e",)
    assert found.volume_usd_per_gib_month == 0.08


def test_the_order_is_market_type_zone(world: World) -> None:
    found = preflight(
        world,
        instance_type="g4dn.12xlarge",
        instance_types=["c6g.xlarge", "t3.xlarge"],
        market=["spot", "on-demand"],
    )
    kinds = [(option.market, option.instance_type) for option in found.options]
    types = ("g4dn.12xlarge", "c6g.xlarge", "t3.xlarge")
    assert list(dict.fromkeys(kinds)) == [(market, each) for market in ("spot", "on-demand") for each in types]
    assert [option.zone for option in found.options[: len(ZONES)]] == ZONES
    first = {option.instance_type: option for option in reversed(found.options)}
    gpu, arm, burstable = (first[each] for each in types)
    assert (gpu.image_id, gpu.gpus) == (image_of(world, DLAMI).id, "4x NVIDIA T4")
    assert (arm.image_id, arm.architecture) == (image_of(world, UBUNTU, "arm64").id, "arm64")
    assert gpu.placement
    assert not burstable.placement  # this type supports only the strategies partition and spread


def test_a_part_of_a_gpu(world: World) -> None:
    assert render_gpus(INSTANCE_TYPES["g6f.large"]) == "1x 1/8 NVIDIA L4"
    assert describe_hardware(world.clients.ec2, ["g6f.large"])["g6f.large"].gpus == 1


def test_a_named_image_must_fit_every_type(world: World) -> None:
    image = image_of(world, DLAMI)
    image.architecture = "arm64"
    assert {option.image_id for option in preflight(world, ami=image.id, instance_type="c6g.xlarge").options} == {
        image.id
    }
    with pytest.raises(ConfigError, match=r"is for arm64, and c5\.xlarge is x86_64") as caught:
        preflight(world, ami=image.id, instance_type="c6g.xlarge", instance_types=["c5.xlarge"])
    assert caught.value.hint == 'set ami = "auto" in cluster.toml'


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"instance_type": "c5.99xlarge"}, r'\[provision\] instance_type = "c5.99xlarge": us-east-1 has no such'),
        ({"ami": "ami-0123456789abcdef0"}, r'\[provision\] ami = "ami-0123456789abcdef0": .* no such image'),
        ({"instance_type": "g5.xlarge", "volume_size_gib": 50}, r"volume_size_gib = 50: the image ami-\w+ needs 75"),
        ({"subnet_id": "subnet-0123456789abcdef0"}, r"\[provision\] subnet_id = .* no such subnet"),
        ({"instance_type": "t2.nano", "market": "spot"}, r'market = \["spot"\]: .*t2.nano is not available on spot'),
        ({"efa": True}, r'\[provision\] instance_type = "c5.xlarge": does not support efa = true'),
    ],
)
def test_rejects_settings_that_aws_cannot_satisfy(world: World, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        preflight(world, **settings)
    assert caught.value.hint


def test_a_named_subnet(world: World) -> None:
    assert places(preflight(world, subnet_id=subnet_in(world, "us-east-1f").id)) == [
        ("on-demand", "c5.xlarge", "us-east-1f")
    ]
    with pytest.raises(ConfigError, match=f"only offered in {', '.join(ZONES)}, without a subnet"):
        preflight(world, subnet_id=subnet_in(world, "us-east-1e").id)


def test_no_default_subnet_where_the_type_is_offered(world: World) -> None:
    for zone in ZONES:
        world.clients.ec2.delete_subnet(SubnetId=subnet_in(world, zone).id)
    with pytest.raises(NotInRegionError, match=r"offered in us-east-1a, .*, us-east-1f, without a subnet"):
        preflight(world)


def test_no_default_subnet(world: World) -> None:
    """The command of the hint makes one."""
    ec2 = world.clients.ec2
    for subnet in ec2.describe_subnets()["Subnets"]:
        ec2.delete_subnet(SubnetId=subnet["SubnetId"])
    world.sandbox.backend.vpcs.clear()
    with pytest.raises(AwsError, match="us-east-1 has no default subnet") as caught:
        preflight(world)
    assert "aws ec2 create-default-vpc --region us-east-1" in str(caught.value.hint)
    ec2.create_default_vpc()
    assert places(preflight(world))[0] == ("on-demand", "c5.xlarge", "us-east-1a")


ALL = {"DestinationCidrBlock": "0.0.0.0/0", "State": "active"}
IGW = {**ALL, "GatewayId": "igw-1"}
LOCAL = {"DestinationCidrBlock": "10.0.0.0/16", "GatewayId": "local", "State": "active"}


def route_table(*routes: Any, subnet_id: str | None = None, vpc_id: str = "vpc-1") -> Any:
    association = {"Main": True} if subnet_id is None else {"Main": False, "SubnetId": subnet_id}
    return {"RouteTableId": "rtb-1", "VpcId": vpc_id, "Routes": [LOCAL, *routes], "Associations": [association]}


@pytest.mark.parametrize(
    ("tables", "is_public"),
    [
        (None, True),  # not needed, or not allowed to be read
        ([route_table(IGW)], True),
        ([route_table()], False),
        ([route_table(), route_table(IGW, subnet_id="subnet-1")], True),
        ([route_table(IGW), route_table(subnet_id="subnet-1")], False),
        ([route_table({**IGW, "State": "blackhole"})], False),  # the gateway has been deleted
        ([route_table({"DestinationPrefixListId": "pl-1", "GatewayId": "vpce-1", "State": "active"})], False),  # S3's
        ([route_table({**ALL, "GatewayId": "vpce-1"})], True),  # a firewall's
    ],
)
def test_routes_that_a_public_address_needs(tables: Any, *, is_public: bool) -> None:
    found = find_obstacle({"SubnetId": "subnet-1", "VpcId": "vpc-1"}, tables)
    assert (found is None) == is_public


def test_a_named_subnet_without_a_route_to_the_internet(world: World) -> None:
    ec2 = world.clients.ec2
    vpc_id = ec2.create_vpc(CidrBlock="10.9.0.0/16")["Vpc"]["VpcId"]
    made = ec2.create_subnet(VpcId=vpc_id, CidrBlock="10.9.1.0/24", AvailabilityZone="us-east-1a")
    subnet_id = made["Subnet"]["SubnetId"]
    with pytest.raises(ConfigError, match=r'"subnet-\w+": has no route to an internet gateway \(rtb-\w+\)') as caught:
        preflight(world, subnet_id=subnet_id)
    assert 'ssh_address = "private"' in str(caught.value.hint)
    assert preflight(world, subnet_id=subnet_id, ssh_address="private", ssh_from="10.0.0.0/8").options
    assert preflight(world, ClusterState(name=NAME, nodes=(make_node(0, subnet_id=subnet_id),))).options


def test_existing_nodes_determine_subnet_and_type(world: World) -> None:
    subnet = subnet_in(world, "us-east-1d")
    node = make_node(0, subnet_id=subnet.id, instance_type="g5.xlarge")
    state = ClusterState(name=NAME, nodes=(node,))
    found = preflight(world, state, instance_types=["g5.xlarge"], market=["spot", "on-demand"])
    assert places(found) == [("spot", "g5.xlarge", "us-east-1d"), ("on-demand", "g5.xlarge", "us-east-1d")]


def test_a_quota_for_the_least_nodes_suffices(world: World) -> None:
    world.sandbox.reset(quotas={"L-1216C47A": 12})
    assert len(preflight(world, nodes=4, least=3).options) == len(ZONES)
    with pytest.raises(AwsError, match="do not allow 4 nodes"):
        preflight(world, nodes=5, least=4)


def test_missing_permissions_end_up_early(world: World) -> None:
    world.sandbox.book.arm("unauthorized action=RunInstances")
    with pytest.raises(AwsError, match=r"lack permissions .*: ec2:RunInstances$") as caught:
        preflight(world)
    assert "cluster iam-policy" in str(caught.value.hint)
    assert world.resources() == Counter()
