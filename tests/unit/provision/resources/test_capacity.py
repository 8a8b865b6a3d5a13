"""Where the nodes go when AWS has no room: zone after zone, type after type, market after market."""

from collections import Counter
from typing import Any

import pytest
from botocore.exceptions import ClientError

from foundation.errors import AwsError, ClusterError
from foundation.progress import Event
from provision.resources.launch import NO_ROOM_CODES
from provision_world import World, complete, make_config


def places(world: World) -> Counter[tuple[str, str, str]]:
    return Counter((node.market, node.instance_type, node.zone) for node in world.describe().nodes)


def launches(world: World) -> int:
    return world.calls.mutating()["RunInstances"]


def texts(events: list[Event], kind: str) -> list[str]:
    return [event.what for event in events if event.kind == kind]


def test_the_next_zone(world: World) -> None:
    world.sandbox.book.arm("capacity zone=us-east-1a")
    events: list[Event] = []

    world.up(make_config(), report=events.append)

    assert places(world) == {("on-demand", "c5.xlarge", "us-east-1b"): 2}
    assert launches(world) == 2
    [refused] = [text for text in texts(events, "info") if text.startswith("no room")]
    assert "2 x c5.xlarge on demand in us-east-1a: We currently do not have sufficient" in refused
    assert refused.endswith("(InsufficientInstanceCapacity)")
    assert "2 x c5.xlarge on demand in us-east-1b" in texts(events, "info")


@pytest.mark.parametrize(
    ("fault", "settings", "place"),
    [
        ("type=c5.xlarge", {"instance_types": ["m5.xlarge", "c6i.xlarge"]}, ("on-demand", "m5.xlarge", "us-east-1a")),
        ("market=spot", {"market": ["spot", "on-demand"]}, ("on-demand", "c5.xlarge", "us-east-1a")),
    ],
)
def test_the_next_type_and_the_other_market(world: World, fault: str, settings: Any, place: tuple[str, ...]) -> None:
    world.sandbox.book.arm(f"capacity {fault}")
    world.up(make_config(**settings))
    assert places(world) == {place: 2}


def test_spot_nodes_come_and_go_without_a_trace(world: World) -> None:
    world.up(make_config(market="spot"))
    assert places(world) == {("spot", "c5.xlarge", "us-east-1a"): 2}
    requests = world.clients.ec2.describe_spot_instance_requests()["SpotInstanceRequests"]
    assert {tag["Value"] for r in requests for tag in r["Tags"] if tag["Key"] == "cluster:name"} == {"demo"}

    assert world.down().leftovers == ()
    assert not world.resources()


def test_the_order_of_all_tries(world: World) -> None:
    """The zone changes fastest, then the type, then the market."""
    world.sandbox.book.arm("capacity")
    config = make_config(instance_types=["p4d.24xlarge"], market=["spot", "on-demand"])

    with pytest.raises(AwsError, match="no capacity for 2 nodes in any place") as caught:
        world.up(config)

    tried = [line.partition(": ")[0].strip() for line in caught.value.message.splitlines()[1:]]
    options = world.prepare(config).wanted.preflight.options  # type: ignore[union-attr]
    assert tried == [f"2 x {option.label}" for option in options]
    keys = [(option.market, option.instance_type) for option in options]
    assert list(dict.fromkeys(keys)) == [
        ("spot", "c5.xlarge"), ("spot", "p4d.24xlarge"), ("on-demand", "c5.xlarge"), ("on-demand", "p4d.24xlarge"),
    ]  # fmt: skip
    assert launches(world) == len(options) == len(set(tried)) > 8
    assert world.files.launches() == ()
    assert "instances" not in world.resources()

    world.sandbox.book.disarm("all")
    world.up(config)
    assert places(world) == {("spot", "c5.xlarge", "us-east-1a"): 2}


def test_all_nodes_elsewhere_before_fewer_here(world: World) -> None:
    world.sandbox.book.arm("capacity zone=us-east-1a free=3")
    world.up(make_config(nodes=4, min_nodes=2))
    assert places(world) == {("on-demand", "c5.xlarge", "us-east-1b"): 4}


def test_fewer_nodes_where_that_is_good_enough(world: World) -> None:
    world.sandbox.book.arm("capacity zone=us-east-1c free=3")
    world.sandbox.book.arm("capacity")
    events: list[Event] = []

    state = world.up(make_config(nodes=4, min_nodes=2), report=events.append)

    assert [node.index for node in state.nodes] == [0, 1, 2]
    assert places(world) == {("on-demand", "c5.xlarge", "us-east-1c"): 3}
    assert texts(events, "warn") == ["AWS has room for 3 of 4 nodes: going on without 3"]
    assert world.resources() == complete(3)


def test_the_missing_nodes_come_later_beside_the_others(world: World) -> None:
    world.sandbox.book.arm("capacity free=3")
    config = make_config(nodes=4, min_nodes=2)
    [zone] = {node.zone for node in world.up(config).nodes}
    events: list[Event] = []

    assert len(world.up(config, report=events.append).nodes) == 3
    assert "no capacity for nodes 3: going on without" in texts(events, "warn")

    world.sandbox.book.disarm("all")
    state = world.up(config)
    assert [node.index for node in state.nodes] == [0, 1, 2, 3]
    assert {node.zone for node in state.nodes} == {zone}
    assert {node.subnet_id for node in state.nodes} == {state.nodes[0].subnet_id}


def test_too_few_even_for_the_least(world: World) -> None:
    world.sandbox.book.arm("capacity free=1")
    with pytest.raises(AwsError, match=r"no capacity for 4 nodes \(nor for 2\)"):
        world.up(make_config(nodes=4, min_nodes=2))
    assert "instances" not in world.resources()


def test_waiting_for_capacity(world: World) -> None:
    zones = len(world.prepare(make_config()).wanted.preflight.options)  # type: ignore[union-attr]
    world.sandbox.book.arm(f"capacity count={zones + 1}")
    begun = world.time.monotonic()

    world.up(make_config(capacity_wait_s=600))

    assert places(world) == {("on-demand", "c5.xlarge", "us-east-1b"): 2}
    assert launches(world) == zones + 2
    assert 10 <= world.time.monotonic() - begun < 60


def test_waiting_for_capacity_ends(world: World) -> None:
    world.sandbox.book.arm("capacity")
    begun = world.time.monotonic()
    with pytest.raises(AwsError, match="no capacity"):
        world.up(make_config(capacity_wait_s=120))
    assert 120 <= world.time.monotonic() - begun < 200


@pytest.mark.parametrize("code", sorted(NO_ROOM_CODES))
def test_every_code_that_means_not_here(world: World, code: str) -> None:
    failed: list[str] = []

    def fail(**_: Any) -> None:
        if not failed:
            failed.append(code)
            raise ClientError({"Error": {"Code": code, "Message": "in AWS's words"}}, "RunInstances")

    events = world.clients.run_ec2.meta.events
    events.register("before-call.ec2.RunInstances", fail)
    try:
        world.up(make_config())
    finally:
        events.unregister("before-call.ec2.RunInstances", fail)
    assert failed
    assert places(world) == {("on-demand", "c5.xlarge", "us-east-1b"): 2}


def test_a_limit_that_leaves_room_for_enough(world: World) -> None:
    """The limit is the same in all zones, so that the smaller launch comes next."""
    world.sandbox.book.arm("vcpu-limit count=1")
    world.up(make_config(nodes=4, min_nodes=2))
    assert places(world) == {("on-demand", "c5.xlarge", "us-east-1a"): 4}
    assert launches(world) == 2


def test_a_limit_on_one_market_leaves_the_other(world: World) -> None:
    world.sandbox.book.arm("vcpu-limit market=spot")
    world.up(make_config(market=["spot", "on-demand"]))
    assert places(world) == {("on-demand", "c5.xlarge", "us-east-1a"): 2}
    assert launches(world) == 2


def end_for_lack_of_room(world: World, count: int) -> Any:
    """A report that ends launched nodes as EC2 does when it has no room after all, once. No fault does it."""
    done: list[str] = []

    def watch(event: Event) -> None:
        if event.kind == "done" and event.what.startswith("launch") and not done:
            done.append(event.what)
            for instance in list(world.sandbox.backend.sandbox_instances())[:count]:
                instance._end_for(
                    "shutting-down", "Server.InsufficientInstanceCapacity", "There was insufficient capacity"
                )

    return watch


def test_room_for_enough_after_all(world: World) -> None:
    events: list[Event] = []
    watch = end_for_lack_of_room(world, 1)

    def both(event: Event) -> None:
        events.append(event)
        watch(event)

    state = world.up(make_config(nodes=3, min_nodes=2), report=both)

    assert len(state.nodes) == 2
    assert launches(world) == 1
    assert any("going on without 0" in text for text in texts(events, "warn"))


@pytest.mark.parametrize("keep_failed", [False, True])
def test_a_partial_launch_is_rolled_back_unless_asked_not_to(world: World, *, keep_failed: bool) -> None:
    with pytest.raises(ClusterError, match=r"1 of the nodes ended while starting: i-\w+: Server.InternalError"):
        world.up(make_config(nodes=3), report=world.failing_launch(), keep_failed=keep_failed)

    assert world.resources()["instances"] == (2 if keep_failed else 0)
    assert world.files.launches() == ()
    assert [node.index for node in world.up(make_config(nodes=3)).nodes] == [0, 1, 2]
    assert world.down().leftovers == ()
    assert not world.resources()


def test_what_was_there_before_is_not_rolled_back(world: World) -> None:
    before = world.up(make_config(nodes=2)).nodes

    with pytest.raises(ClusterError, match="ended while starting"):
        world.up(make_config(nodes=4), report=world.failing_launch(which=-1))
    assert [node.instance_id for node in world.describe().nodes] == [node.instance_id for node in before]


def test_a_roll_back_that_fails_says_so(world: World) -> None:
    fail_one = world.failing_launch(lambda: world.sandbox.book.arm("unauthorized action=TerminateInstances"))

    with pytest.raises(
        ClusterError, match=r"What was launched could not be ended: AWS says: .*TerminateInst"
    ) as caught:
        world.up(make_config(nodes=3), report=fail_one)
    assert caught.value.hint == "cluster down, so that nothing is left that costs money"


def test_an_interrupted_try_elsewhere_is_found_again(world: World) -> None:
    """The first run was killed when its second place had been launched in; the second run asks there first."""
    world.sandbox.book.arm("capacity zone=us-east-1a count=1")

    class Killed(BaseException):
        pass

    def kill(event: Event) -> None:
        if event.kind == "info" and event.what.startswith("2 x "):
            raise Killed

    with pytest.raises(Killed):
        world.up(make_config(), report=kill)

    world.up(make_config())
    assert places(world) == {("on-demand", "c5.xlarge", "us-east-1b"): 2}
    assert world.resources() == complete(2)
