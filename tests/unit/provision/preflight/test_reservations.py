from typing import Any

import pytest

from foundation.errors import ConfigError
from provision.render import render_plan
from provision_world import World, make_config
from sandbox_in_process import REGION

ZONE = f"{REGION}c"


def test_nodes_launch_in_the_block_first(world: World) -> None:
    """No zone has other capacity, and the account has no quota."""
    given = {"InstanceType": "c5.xlarge", "AvailabilityZone": ZONE}
    backend = world.sandbox.backend.capacity_reservations
    reservation = backend.create(given, count=2, reservation_type="capacity-block").id
    with pytest.raises(ConfigError, match=r"it is for c5.xlarge, and instance_type is p5.48xlarge"):
        world.prepare(make_config(reservation=reservation, instance_type="p5.48xlarge"))
    world.sandbox.book.arm("capacity")
    config = make_config(reservation=reservation)
    assert f"in Capacity Block {reservation}" in render_plan(world.prepare(config))
    words = " ".join(render_plan(world.prepare(make_config(reservation=reservation, nodes=3))).split())
    assert "market on demand" in words  # which is not paid for
    assert f"reservation {reservation}: it is active, for c5.xlarge in {ZONE}, with room for 2" in words
    state = world.up(config)
    assert {node.zone for node in state.nodes} == {ZONE}
    used = {one.capacity_reservation_id for one in world.sandbox.backend.sandbox_instances()}
    assert used == {reservation}


def test_a_block_counts_in_a_zone_that_does_not_offer_its_type_to_others(world: World) -> None:
    given = {"InstanceType": "c5.xlarge", "AvailabilityZone": f"{REGION}e"}
    backend = world.sandbox.backend.capacity_reservations
    reservation = backend.create(given, count=2, reservation_type="capacity-block").id
    assert f"in Capacity Block {reservation}" in render_plan(world.prepare(make_config(reservation=reservation)))


def test_the_markets_follow_a_reservation_that_is_full(world: World) -> None:
    """It fills between plan and launch. Every answer is printed in the order of the attempts."""
    given: Any = {"InstanceType": "c5.xlarge", "InstancePlatform": "Linux/UNIX", "AvailabilityZone": ZONE}
    made = world.clients.ec2.create_capacity_reservation(**given, InstanceCount=2)["CapacityReservation"]
    assert (made["State"], made["AvailableInstanceCount"]) == ("active", 2)
    reservation = made["CapacityReservationId"]
    config = make_config(reservation=reservation, market=["spot", "on-demand"])
    world.sandbox.book.arm("capacity market=spot")
    lines: list[str] = []
    backend = world.sandbox.backend.capacity_reservations.get(reservation)

    def fill(event: Any) -> None:
        backend.total_instance_count = 0
        lines.append(event.what)

    state = world.up(config, report=fill)
    assert {node.market for node in state.nodes} == {"on-demand"}
    answers = [line.removeprefix("no capacity for 2 x ") for line in lines if line.startswith("no capacity for")]
    assert answers[0].startswith(f"c5.xlarge in reservation {reservation} in {ZONE}: ")
    assert answers[0].endswith("(ReservationCapacityExceeded)")
    zones = [f"{REGION}{letter}" for letter in "abcdf"]
    assert [answer.partition(":")[0] for answer in answers[1:]] == [f"c5.xlarge on spot in {zone}" for zone in zones]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"regions": ["us-east-1"]}, "regions has duplicates, or names region itself: us-east-1, us-east-1"),
        ({"regions": ["us-west-2"], "subnet_id": "subnet-0123456789abcdef0"}, 'regions needs subnet_id = "auto"'),
        ({"regions": ["us-west-2"], "ami": "ami-0123456789abcdef0"}, 'regions needs ami = "auto"'),
        ({"reservation": "crusoe"}, "capacity reservation"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_config(**settings)
