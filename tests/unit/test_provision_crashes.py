"""`up` and `down` killed at every API call and every fsync, and in any order."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from provision.describe import find_leftovers
from provision.errors import ClusterError
from provision.lifecycle import prepare_up, up
from provision.progress import Event
from provision_world import NAME, Killed, World, complete, make_config


def count_points(world: World, act: str) -> int:
    world.calls.points = 0
    if act == "up":
        world.up(make_config())
    else:
        world.down()
    return world.calls.points


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
def test_up_killed_at_every_point_and_run_again(world: World, tmp_path: Path, *, before: bool) -> None:
    points = count_points(world, "up")
    assert points > 15
    for point in range(points):
        world.reset(tmp_path / f"again-{point}")
        with world.killed_at(point, before=before), pytest.raises(Killed):
            world.up(make_config())

        state = world.up(make_config())

        assert [node.index for node in state.nodes] == [0, 1], point
        assert world.resources() == complete(2), point
        assert not prepare_up(world.clients, name=NAME, config=make_config(), files=world.files), point
        assert world.down().leftovers == (), point
        assert not world.resources(), point


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
def test_up_killed_at_every_point_then_down(world: World, tmp_path: Path, *, before: bool) -> None:
    points = count_points(world, "up")
    for point in range(points):
        world.reset(tmp_path / f"again-{point}")
        with world.killed_at(point, before=before), pytest.raises(Killed):
            world.up(make_config())

        assert world.down().leftovers == (), point
        assert not world.resources(), point
        assert not world.files.root.exists(), point


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
def test_down_killed_at_every_point_and_run_again(world: World, tmp_path: Path, *, before: bool) -> None:
    world.up(make_config())
    points = count_points(world, "down")
    assert points > 10
    for point in range(points):
        world.reset(tmp_path / f"again-{point}")
        world.up(make_config())
        with world.killed_at(point, before=before), pytest.raises(Killed):
            world.down()

        assert world.down().leftovers == (), point
        assert not world.resources(), point
        assert not world.files.root.exists(), point


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
def test_down_killed_at_every_point_then_up(world: World, tmp_path: Path, *, before: bool) -> None:
    """The key stays on this machine until nothing is left that needs it."""
    world.up(make_config())
    points = count_points(world, "down")
    for point in range(points):
        world.reset(tmp_path / f"again-{point}")
        world.up(make_config())
        with world.killed_at(point, before=before), pytest.raises(Killed):
            world.down()

        assert [node.index for node in world.up(make_config()).nodes] == [0, 1], point
        assert world.resources() == complete(2), point


def kill_after_launch(world: World) -> None:
    """`up`, killed when its launch has taken effect and nobody was told."""
    plan = prepare_up(world.clients, name=NAME, config=make_config(), files=world.files)
    with pytest.raises(Killed):
        up(plan, clients=world.clients, files=world.files, report=kill_on_done_launch)


def kill_on_done_launch(event: Event) -> None:
    if event.kind == "done" and event.what.startswith("launch"):
        raise Killed(event.what)


def test_a_launch_that_ec2_does_not_list_yet_is_not_repeated(late_lists: World) -> None:
    kill_after_launch(late_lists)

    state = late_lists.up(make_config())

    assert [node.index for node in state.nodes] == [0, 1]
    assert late_lists.resources() == complete(2)
    assert late_lists.files.launches() == ()


def test_down_waits_for_a_launch_that_ec2_does_not_list_yet(late_lists: World) -> None:
    kill_after_launch(late_lists)

    late_lists.down()

    assert not late_lists.resources()


def test_up_with_other_settings_waits_for_the_interrupted_launch(late_lists: World) -> None:
    kill_after_launch(late_lists)

    with pytest.raises(ClusterError, match="appeared after the launch"):
        late_lists.up(make_config(nodes=3))
    assert [node.index for node in late_lists.up(make_config(nodes=3)).nodes] == [0, 1, 2]


def test_a_token_does_not_bring_back_nodes_that_ended(late_lists: World) -> None:
    kill_after_launch(late_lists)
    ec2 = late_lists.clients.ec2
    ids = [i["InstanceId"] for r in describe_all(late_lists) for i in r["Instances"]]
    ec2.terminate_instances(InstanceIds=ids)

    with pytest.raises(ClusterError, match="ended while starting"):
        late_lists.up(make_config())

    assert not set(ids) & {node.instance_id for node in late_lists.up(make_config()).nodes}


def describe_all(world: World) -> list[Any]:
    """Past the blind looks."""
    while not (reservations := world.clients.ec2.describe_instances()["Reservations"]):
        pass
    return list(reservations)


ACTIONS = st.one_of(
    st.tuples(st.just("up"), st.integers(1, 4)),
    st.tuples(st.just("down"), st.just(0)),
    st.tuples(st.just("killed up"), st.integers(0, 25)),
    st.tuples(st.just("killed down"), st.integers(0, 15)),
    st.tuples(st.just("lose a node"), st.integers(0, 3)),
    st.tuples(st.just("lose the files"), st.just(0)),
    st.tuples(st.just("lose the key pair"), st.just(0)),
)


def carry_out(world: World, action: str, number: int) -> None:
    match action:
        case "up":
            state = world.up(make_config(nodes=number))
            assert [node.index for node in state.nodes] == list(range(number))
            assert world.resources() == complete(number)
            assert not prepare_up(world.clients, name=NAME, config=make_config(nodes=number), files=world.files)
        case "down":
            assert world.down().leftovers == ()
            assert not world.resources()
        case "killed up" | "killed down":
            with world.killed_at(number, before=number % 2 == 0):
                world.up(make_config()) if action == "killed up" else world.down()
        case "lose a node":
            nodes = world.describe().nodes
            if number < len(nodes):
                world.clients.ec2.terminate_instances(InstanceIds=[nodes[number].instance_id])
        case "lose the files":
            shutil.rmtree(world.files.root, ignore_errors=True)
        case "lose the key pair":
            world.clients.ec2.delete_key_pair(KeyName="cluster-demo")


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(actions=st.lists(ACTIONS, max_size=6))
def test_any_order_of_events_ends_clean(world: World, tmp_path: Path, actions: list[tuple[str, int]]) -> None:
    shutil.rmtree(tmp_path / "any", ignore_errors=True)
    world.reset(tmp_path / "any")
    for action, number in actions:
        try:
            carry_out(world, action, number)
        except Killed:
            pass
        except ClusterError as error:
            # Refusals that are right: too many nodes for what is asked, or nodes whose key is lost.
            if not any(words in error.message for words in ("asked for", "only its private key")):
                raise
    assert world.down().leftovers == ()
    assert not world.resources()
    assert find_leftovers(world.clients.ec2, name=NAME) == ()
