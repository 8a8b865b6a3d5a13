from datetime import UTC, datetime
from typing import Any

import pytest

from foundation.errors import ConfigError
from provision.preflight.reservations import Reservation, find_obstacle, render_end
from provision.render import render_plan
from provision_world import World, make_config
from sandbox_in_process import REGION

END = datetime(2030, 1, 2, 11, 30, tzinfo=UTC)
ZONE = f"{REGION}c"


def make_reservation(**values: Any) -> Reservation:
    defaults: dict[str, Any] = {
        "reservation_id": "cr-0123456789abcdef0",
        "instance_type": "c5.xlarge",
        "zone": ZONE,
        "state": "active",
        "free": 2,
    }
    return Reservation(**{**defaults, **values})


@pytest.mark.parametrize(
    ("values", "obstacle"),
    [
        ({}, None),
        ({"is_block": True, "ends_at": END}, None),
        ({"free": 1}, "it has room for 1 more instance, 2 are needed"),
        ({"state": "expired"}, "it is expired"),
        ({"state": "scheduled", "starts_at": END}, "it is scheduled, and starts at 2030-01-02 11:30 UTC"),
    ],
)
def test_what_a_reservation_is_good_for(values: dict[str, Any], obstacle: str | None) -> None:
    assert find_obstacle(make_config(), make_reservation(**values), least=2) == obstacle


def test_a_reservation_of_another_type_is_refused() -> None:
    config = make_config(reservation="cr-0123456789abcdef0")
    with pytest.raises(ConfigError) as error:
        find_obstacle(config, make_reservation(instance_type="p5.48xlarge"), least=2)
    assert '"cr-0123456789abcdef0": it is for p5.48xlarge, and instance_type is c5.xlarge' in error.value.message
    assert error.value.hint == 'set instance_type = "p5.48xlarge"'
    config = make_config(instance_types=["p5.48xlarge"])
    assert find_obstacle(config, make_reservation(instance_type="p5.48xlarge"), least=2) is None


def test_the_end_of_a_block() -> None:
    assert render_end(make_reservation()) is None
    block = render_end(make_reservation(is_block=True, ends_at=END)) or ""
    assert "ends at 2030-01-02 11:30 UTC: AWS terminates its instances 30 min before" in block


def test_nodes_launch_in_the_block_first(world: World) -> None:
    """No zone has other capacity, and the account has no quota."""
    given = {"InstanceType": "c5.xlarge", "AvailabilityZone": ZONE}
    backend = world.sandbox.backend.capacity_reservations
    reservation = backend.create(given, count=2, reservation_type="capacity-block").id
    text = render_plan(world.prepare(make_config(reservation=reservation, nodes=3)))
    assert "it has room for 2 more instances, 3 are needed" in " ".join(text.split())
    world.sandbox.book.arm("capacity")
    config = make_config(reservation=reservation)
    assert f"in Capacity Block {reservation}" in render_plan(world.prepare(config))
    state = world.up(config)
    assert {node.zone for node in state.nodes} == {ZONE}
    used = {one.capacity_reservation_id for one in world.sandbox.backend.sandbox_instances()}
    assert used == {reservation}


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
