import json
from datetime import UTC, datetime

import pytest

from ec2_sandbox.api.prices import spot_price
from provision.preflight.prices import PricedPlace, describe_prices, parse_price
from provision_world import World

HOURS = frozenset({"Hrs"})
PLACES: tuple[PricedPlace, ...] = (
    ("on-demand", "c5.xlarge", "us-east-1a"),
    ("on-demand", "c5.xlarge", "us-east-1b"),
    ("on-demand", "g5.xlarge", "us-east-1a"),
    ("spot", "g5.xlarge", "us-east-1a"),
    ("spot", "g5.xlarge", "us-east-1b"),
)


def test_prices_of_all_places(world: World) -> None:
    now = datetime.now(UTC)
    expected = {
        PLACES[0]: 0.17,
        PLACES[1]: 0.17,
        PLACES[2]: 1.006,
        PLACES[3]: spot_price("g5.xlarge", "us-east-1a", now),
        PLACES[4]: spot_price("g5.xlarge", "us-east-1b", now),
    }
    assert describe_prices(world.clients, PLACES) == expected


def test_spot_prices_that_may_not_be_read(world: World) -> None:
    world.sandbox.book.arm("unauthorized action=DescribeSpotPriceHistory")
    assert describe_prices(world.clients, [PLACES[3]]) == {PLACES[3]: None}


def product(unit: str, amount: str) -> str:
    dimensions = {"1": {"unit": unit, "pricePerUnit": {"USD": amount}}}
    return json.dumps({"terms": {"OnDemand": {"term": {"priceDimensions": dimensions}}, "Reserved": {}}})


@pytest.mark.parametrize(
    ("documents", "price"),
    [
        (["{}"], None),
        ([product("Hrs", "0.0000000000")], None),  # reserved capacity, which is billed separately
        ([product("Quantity", "9.0"), product("Hrs", "0.2"), product("Hrs", "0.3")], 0.3),
    ],
)
def test_the_price_of_a_product(documents: list[str], price: float | None) -> None:
    assert parse_price(documents, HOURS) == price
