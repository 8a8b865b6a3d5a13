"""`up` and `down`, killed at every API call and every fsync. test_any_order.py runs them in any order.

The cluster has a volume, which `down` deletes or keeps. `make test-all` kills before and after every point; `make test`
covers one in 36 of the states that a kill can leave.
"""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from provision_world import (
    Killed,
    World,
    complete,
    make_config,
    make_lease_config,
    make_volume,
    plan_kills,
    run_side_by_side,
)

LEASE = make_lease_config(lifetime="1h", idle="30m")


def find_leases(world: World) -> set[str | None]:
    """The leases of all instances that have not ended, as their tags say."""
    return {
        next((tag["value"] for tag in instance.get_tags() if tag["key"] == "cluster:lease"), None)
        for instance in world.sandbox.backend.sandbox_instances()
        if instance.state not in {"terminated", "shutting-down"}
    }


def find_points(world: World, act: str) -> list[str]:
    world.calls.made.clear()
    if act == "up":
        world.up(make_config())
    else:
        world.down()
    return list(world.calls.made)


def check_down(world: World) -> None:
    kept = Counter({"shared volumes": int(world.volumes[0].keep)})
    assert world.down().leftovers == ()
    assert world.resources() == +kept
    assert not world.files.root.exists()


def check_both(world: World) -> None:
    """`up` completes the cluster, a second `up` has nothing to do, and `down` leaves nothing."""
    assert None not in find_leases(world)
    state = world.up(make_config())
    assert [node.index for node in state.nodes] == [0, 1]
    (lease,) = find_leases(world)  # one deadline, which the security group has as well
    assert {group.lease for group in state.security_groups} == {lease}
    assert world.resources() == complete(2) + Counter({"shared volumes": 1})
    assert not world.prepare(make_config())
    check_down(world)


@pytest.mark.parametrize(
    ("act", "check", "share", "keep"),
    [
        pytest.param("up", check_both, 36, True, id="up-and-again-some"),
        pytest.param("down", check_down, 36, False, id="down-and-again-some"),
        pytest.param("up", check_both, None, False, marks=pytest.mark.slow, id="up-and-again"),
        pytest.param("down", check_down, None, False, marks=pytest.mark.slow, id="down-and-again"),
        pytest.param("down", check_down, None, True, marks=pytest.mark.slow, id="down-keeping-a-volume"),
    ],
)
def test_killed_at_every_point(
    world: World, tmp_path: Path, *, act: str, check: Callable[[World], None], share: int | None, keep: bool
) -> None:
    """`down` deletes the private key last, so the next `up` finds a key or creates one."""

    def begin(folder: Path) -> None:
        world.reset(folder)
        world.lease, world.volumes = LEASE, (make_volume(keep=keep),)
        if act == "down":
            world.up(make_config())

    begin(tmp_path / "count")
    points = find_points(world, act)
    assert len(points) > 10
    check(world)  # also makes botocore load its data, which the forked processes share
    begin(tmp_path / "before")

    def kill(case: tuple[int, bool]) -> None:
        point, before = case
        world.move_files(tmp_path / f"{point}-{before}")
        with world.killed_at(point, before=before), pytest.raises(Killed):
            find_points(world, act)
        check(world)

    run_side_by_side(kill, plan_kills(points, share=share))


@pytest.mark.parametrize("last", ["launch", "make security group"])
def test_down_waits_until_new_resources_are_listed(late_world: World, last: str) -> None:
    late_world.kill_up(last)
    assert late_world.down().leftovers == ()
    late_world.time.sleep(60)
    assert not late_world.resources()


def test_drops_a_token_once_its_nodes_are_listed(world: World) -> None:
    """EC2 answers a repeated token with the instances of the first call, even if they are terminated."""
    world.kill_up("launch")
    first = {node.instance_id for node in world.up(make_config()).nodes}
    world.resize(make_config(nodes=0))
    assert not first & {node.instance_id for node in world.up(make_config()).nodes}
    assert world.files.launches() == ()
