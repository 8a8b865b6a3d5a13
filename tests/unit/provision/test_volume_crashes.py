"""A cluster with [[volumes]] source = "head", whose commands are killed at every API call and every fsync.

Afterwards the same command completes, with one volume. Then `down` leaves none, or exactly one with keep = true.
In `make test`, test_any_order.py kills such clusters at random points.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from foundation.progress import silent
from provision.apply import apply
from provision.power import prepare_start, prepare_stop
from provision.resources.shared_volume import find_shared_volumes
from provision_world import NAME, Killed, World, complete, make_config, make_volume, plan_kills, run_side_by_side


def stop(world: World) -> None:
    plan = prepare_stop(world.clients, name=NAME, files=world.files, report=silent)
    apply(plan, clients=world.clients, files=world.files, report=silent)


def start(world: World) -> None:
    plan = prepare_start(world.clients, name=NAME, config=make_config(), files=world.files, has_volume=True)
    apply(plan, clients=world.clients, files=world.files, report=silent)


def up(world: World) -> None:
    world.up(make_config())


def down(world: World) -> None:
    world.down()


def nothing(_world: World) -> None:
    pass


def resize(nodes: int) -> Callable[[World], None]:
    def change(world: World) -> None:
        world.resize(make_config(nodes=nodes))

    return change


def lose_the_head(world: World) -> None:
    """Ends the head. Its volume is left over, and the next head gets it."""
    up(world)
    head = world.describe().head
    assert head is not None
    world.clients.ec2.terminate_instances(InstanceIds=[head.instance_id])


def up_and_stop(world: World) -> None:
    up(world)
    stop(world)


@dataclass(frozen=True, kw_only=True, slots=True)
class Scene:
    """before: prepares the state for the killed command. nodes, volumes: their numbers after the command."""

    before: Callable[[World], None]
    command: Callable[[World], None]
    nodes: int
    volumes: int = 1
    keep: bool = False


SCENES = {
    "up": Scene(before=nothing, command=up, nodes=2),
    "up with a new head": Scene(before=lose_the_head, command=up, nodes=2),
    "grow": Scene(before=up, command=resize(3), nodes=3),
    "shrink": Scene(before=up, command=resize(1), nodes=1),
    "stop": Scene(before=up, command=stop, nodes=2),
    "start": Scene(before=up_and_stop, command=start, nodes=2),
    "down": Scene(before=up, command=down, nodes=0, volumes=0),
    "down, kept": Scene(before=up, command=down, nodes=0, keep=True),
}


def check(world: World, scene: Scene) -> None:
    """Checks the resources after the command, and that `down` leaves only a kept volume."""
    found = world.resources()
    assert (found["instances"], found["shared volumes"]) == (scene.nodes, scene.volumes)
    if scene.nodes:
        assert found["volumes"] == complete(scene.nodes)["volumes"]
        [volume] = find_shared_volumes(world.clients.ec2, name=NAME)
        assert volume.instance_id in {node.instance_id for node in world.describe().nodes}
        assert (volume.attachment, volume.tagged_keep) == ("attached", scene.keep)
    receipt = world.down()
    assert receipt.leftovers == ()
    assert len(receipt.kept) == int(scene.keep)
    assert world.resources() == Counter({"shared volumes": 1} if scene.keep else {})


@pytest.mark.slow
@pytest.mark.parametrize("name", SCENES)
def test_killed_at_every_point(world: World, tmp_path: Path, name: str) -> None:
    scene = SCENES[name]
    world.volumes = (make_volume(keep=scene.keep),)
    scene.before(world)
    world.calls.made.clear()
    scene.command(world)
    points = list(world.calls.made)
    assert len(points) > 3
    check(world, scene)  # also makes botocore load its data, which the forked processes share

    world.reset(tmp_path / "before")
    world.volumes = (make_volume(keep=scene.keep),)
    scene.before(world)

    def kill(case: tuple[int, bool]) -> None:
        point, before = case
        world.move_files(tmp_path / f"{point}-{before}")
        with world.killed_at(point, before=before), pytest.raises(Killed):
            scene.command(world)
        scene.command(world)
        check(world, scene)

    run_side_by_side(kill, plan_kills(points, everything=True, which=0))
