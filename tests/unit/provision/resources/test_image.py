"""Baked images: which one `up` takes, and images that are made and deleted once, whenever the command is killed."""

from datetime import UTC, datetime

import pytest

from foundation.errors import AwsError, ConfigError
from foundation.progress import silent
from provision.apply import apply
from provision.plan import Plan, Request
from provision.preflight.machines import Image, TypeFacts, choose_baked, describe_baked
from provision.preflight.places import describe_preflight
from provision.resources.image import CreateImage, delete_image
from provision_world import NAME, Killed, World, make_config, make_wanted

CPU = TypeFacts(
    name="c5.xlarge", architecture="x86_64", vcpus=4, gpus="no GPU", gpu_makers=frozenset(), in_cluster_placement=True,
    efa=False, on_spot=True,
)  # fmt: skip
RECIPE = "arch=x86_64 gpu=none environment=e1 setup=s1 container=c1"
BAKED = make_config(nodes=1, ami="baked")


def make_image(name: str = "one", *, state: str = "available", cluster: str = NAME, recipe: str = RECIPE) -> Image:
    return Image(
        image_id=f"ami-{name}", name=name, architecture="x86_64", state=state, root_device="/dev/sda1",
        root_size_gib=8, created_at=datetime(2030, 1, 1, tzinfo=UTC), cluster=cluster, recipe=recipe,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("images", "result"),
    [
        ([make_image("new"), make_image("old")], "ami-new"),
        ([make_image(recipe=RECIPE.replace("s1", "s2")), make_image("old")], "ami-old"),
        ([], r"us-east-1 has no image for these settings and c5.xlarge$"),
        ([make_image(cluster="other")], r"one \(ami-one\) has another cluster$"),
        ([make_image(state="pending")], r"has another state$"),
        ([make_image(recipe=RECIPE.replace("none", "NVIDIA"))], r"has another gpu$"),
        ([make_image(recipe=RECIPE.replace("e1", "e2").replace("s1", "s2"))], r"another environment, another setup$"),
        ([make_image(recipe="")], r"another arch, another gpu, another environment, another setup, another container$"),
    ],
)
def test_up_takes_the_newest_image_that_fits_or_says_what_differs(images: list[Image], result: str) -> None:
    request = Request(name=NAME, config=BAKED, recipe=lambda: "environment=e1 setup=s1 container=c1")
    if result.startswith("ami-"):
        assert choose_baked(request, images, CPU).image_id == result
        return
    with pytest.raises(ConfigError, match=result) as caught:
        choose_baked(request, images, CPU)
    assert caught.value.message.startswith('[provision] ami = "baked": ')
    assert "cluster image bake" in (caught.value.hint or "")


@pytest.fixture
def stopped(world: World) -> CreateImage:
    """The step for a cluster's only node, which is stopped."""
    [node] = world.up(make_config(nodes=1)).nodes
    world.stop()
    return CreateImage(name="baked", cluster="theirs", recipe=RECIPE, instance_id=node.instance_id)


def make(world: World, image: CreateImage) -> None:
    plan = Plan(cluster=NAME, owner="ada", steps=(image,))
    apply(plan, clients=world.clients, files=world.files, report=silent)


def test_an_image_is_made_once_whenever_the_command_is_killed(world: World, stopped: CreateImage) -> None:
    """It is deleted with its snapshot. One that EC2 cannot make is an error, and somebody's public one is not ours."""
    public = next(iter(world.sandbox.backend.amis.values()))
    public.add_tags({"cluster:name": NAME, "cluster:baked": RECIPE})
    for point in range(4):
        with world.killed_at(point, before=bool(point % 2)):
            try:
                make(world, stopped)
            except Killed:
                continue
    make(world, stopped)
    [image] = describe_baked(world.clients.ec2)
    assert (image.cluster, image.recipe, image.state, image.root_size_gib) == ("theirs", RECIPE, "available", 100)
    snapshots = world.clients.ec2.describe_snapshots(Filters=[{"Name": "tag:cluster:baked", "Values": [RECIPE]}])
    assert len(snapshots["Snapshots"]) == 1
    before = len(world.sandbox.backend.snapshots)
    delete_image(world.clients, image)
    assert describe_baked(world.clients.ec2) == ()
    assert len(world.sandbox.backend.snapshots) == before - 1
    make(world, stopped)
    next(ami for ami in world.sandbox.backend.amis.values() if ami.name == "baked").state = "failed"
    with pytest.raises(AwsError, match="the image baked is failed"):
        make(world, stopped)


def test_nodes_start_from_the_image_and_down_names_it(world: World, stopped: CreateImage) -> None:
    make(world, CreateImage(name="mine", cluster=NAME, recipe=RECIPE, instance_id=stopped.instance_id))
    assert world.down().images == ("mine",)
    request = Request(name=NAME, config=BAKED, recipe=lambda: RECIPE)
    found = describe_preflight(world.clients, make_wanted(request=request))
    assert {option.image_name for option in found.options} == {"mine"}
