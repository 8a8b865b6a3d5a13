"""Where `up` launches nodes when AWS lacks capacity: zone after zone, type after type, market after market."""

from collections import Counter
from typing import Any

import pytest

from foundation.errors import AwsError, ClusterError
from foundation.progress import Event
from provision_world import World, complete, make_config, when


def places(world: World) -> Counter[tuple[str, str, str]]:
    return Counter((node.market, node.instance_type, node.zone) for node in world.describe().nodes)


def launches(world: World) -> int:
    return world.calls.mutating()["RunInstances"]


def texts(events: list[Event], kind: str) -> list[str]:
    return [event.what for event in events if event.kind == kind]


def test_the_order_of_the_places(world: World) -> None:
    world.sandbox.book.arm("capacity")
    config = make_config(instance_types=["p4d.24xlarge"], market=["spot", "on-demand"])
    with pytest.raises(AwsError, match="no capacity for 2 nodes in any place") as caught:
        world.up(config)
    lines = caught.value.message.splitlines()[1:]
    assert "2 x c5.xlarge on spot in us-east-1a: We currently do not have sufficient" in lines[0]
    assert lines[0].endswith("(InsufficientInstanceCapacity)")
    tried = [line.partition(": ")[0].strip() for line in lines]
    options = world.prepare(config).world.preflight.options
    assert tried == [f"2 x {option.label}" for option in options]
    assert launches(world) == len(options) == len(set(tried)) > 8
    assert "[provision] instance_types, market, regions, another subnet_id, min_nodes" in str(caught.value.hint)
    assert world.files.launches() == ()
    assert "instances" not in world.resources()
    world.sandbox.book.disarm("all")
    world.up(config)
    assert places(world) == {("spot", "c5.xlarge", "us-east-1a"): 2}


def test_accepts_fewer_nodes_and_launches_the_others_later(world: World) -> None:
    """In the same subnet."""
    world.sandbox.book.arm("capacity zone=us-east-1c free=3")
    world.sandbox.book.arm("capacity")
    with pytest.raises(AwsError, match=r"no capacity for 5 nodes \(nor for 4\)"):
        world.up(make_config(nodes=5, min_nodes=4))
    assert "instances" not in world.resources()
    events: list[Event] = []
    config = make_config(nodes=4, min_nodes=2)
    state = world.up(config, report=events.append)
    assert [node.index for node in state.nodes] == [0, 1, 2]
    assert places(world) == {("on-demand", "c5.xlarge", "us-east-1c"): 3}
    assert texts(events, "warn") == ["AWS has capacity for 3 of 4 nodes: continuing without nodes 3"]
    assert world.resources() == complete(3)
    assert len(world.up(config, report=events.append).nodes) == 3
    assert "no capacity for nodes 3: continuing without them" in texts(events, "warn")
    world.sandbox.book.disarm("all")
    state = world.up(config)
    assert [node.index for node in state.nodes] == [0, 1, 2, 3]
    assert {node.subnet_id for node in state.nodes} == {state.nodes[0].subnet_id}


def test_waits_for_capacity(world: World) -> None:
    zones = len(world.prepare(make_config()).world.preflight.options)
    world.sandbox.book.arm(f"capacity count={zones + 1}")
    begun = world.time.monotonic()
    world.up(make_config(capacity_wait_s=600))
    assert places(world) == {("on-demand", "c5.xlarge", "us-east-1b"): 2}
    assert launches(world) == zones + 2
    assert 10 <= world.time.monotonic() - begun < 60


def test_a_quota_of_one_market(world: World) -> None:
    world.sandbox.book.arm("vcpu-limit market=spot")
    world.up(make_config(market=["spot", "on-demand"]))
    assert places(world) == {("on-demand", "c5.xlarge", "us-east-1a"): 2}


@pytest.mark.parametrize(("least", "zone", "launched"), [("all", "us-east-1b", 2), (2, "us-east-1a", 1)])
def test_a_node_that_ends_while_starting_for_lack_of_capacity(
    world: World, least: Any, zone: str, launched: int
) -> None:
    """EC2 accepts the launch first. If too few nodes are left, `up` deletes them and tries the next zone."""
    ended: list[str] = []
    events: list[Event] = []

    def end_one(event: Event) -> None:
        events.append(event)
        if event.kind == "done" and event.what.startswith("launch") and not ended:
            instance = next(iter(world.sandbox.backend.sandbox_instances()))
            code, words = "Server.InsufficientInstanceCapacity", "There was insufficient capacity"
            instance._end("shutting-down", code, words)
            ended.append(instance.id)

    state = world.up(make_config(nodes=3, min_nodes=least), report=end_one)
    assert {node.zone for node in state.nodes} == {zone}
    assert launches(world) == launched
    assert world.resources() == complete(len(state.nodes))
    [warning] = [text for text in texts(events, "warn") if ended[0] in text]
    assert "There was insufficient capacity" in warning
    assert warning.endswith("continuing without nodes 0" if least == 2 else "planning again")


def test_rolls_back_a_partial_launch_unless_asked_not_to(world: World) -> None:
    def fail() -> None:
        *_, instance = world.sandbox.backend.sandbox_instances()
        instance.fail_to_boot("the host did not come up")

    for keep_failed, left in ((False, 0), (True, 2)):
        with pytest.raises(ClusterError, match=r"1 of the nodes ended while starting: i-\w+: Server.InternalError"):
            world.up(make_config(nodes=3), report=when("launch", fail), keep_failed=keep_failed)
        assert world.resources()["instances"] == left
        assert world.files.launches() == ()
    assert [node.index for node in world.up(make_config(nodes=3)).nodes] == [0, 1, 2]


def test_finds_an_interrupted_launch_in_another_zone(world: World) -> None:
    """The first run is killed after its launch in the second place. The second run tries that place first."""
    world.sandbox.book.arm("capacity zone=us-east-1a count=1")
    world.kill_up("2 x ", kind="info")
    world.up(make_config())
    assert places(world) == {("on-demand", "c5.xlarge", "us-east-1b"): 2}
    assert world.resources() == complete(2)
