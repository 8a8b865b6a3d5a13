"""Prices. A missing price is not an error."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from ec2_sandbox.api.prices import spot_price
from provision.preflight.prices import (
    PricedPlace,
    describe_prices,
    find_volume_price,
    parse_price,
)
from provision_world import World, listening

HOURS = frozenset({"Hrs"})
PLACES: tuple[PricedPlace, ...] = (
    ("on-demand", "c5.xlarge", "us-east-1a"),
    ("on-demand", "c5.xlarge", "us-east-1b"),
    ("on-demand", "g5.xlarge", "us-east-1a"),
    ("spot", "g5.xlarge", "us-east-1a"),
    ("spot", "g5.xlarge", "us-east-1b"),
)
UNKNOWN = dict.fromkeys(PLACES)


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
    assert world.calls.made.count("GetProducts") == 2
    assert world.calls.made.count("DescribeSpotPriceHistory") == 1


def test_prices_that_may_not_be_read(world: World) -> None:
    world.sandbox.book.arm("unauthorized service=pricing")
    world.sandbox.book.arm("unauthorized action=DescribeSpotPriceHistory")
    assert describe_prices(world.clients, PLACES) == UNKNOWN
    assert find_volume_price(world.clients) is None


def test_the_newest_spot_price_of_all_pages(world: World) -> None:
    """The history may hold older prices, in any order."""
    now = datetime(2030, 1, 1, tzinfo=UTC)
    pages: Iterator[dict[str, Any]] = iter(
        [
            {"SpotPriceHistory": [entry("0.3", now - timedelta(hours=2))], "NextToken": "1"},
            {"SpotPriceHistory": [entry("0.5", now), entry("0.4", now - timedelta(hours=1))], "NextToken": ""},
        ]
    )

    def change(parsed: dict[str, Any], **_: Any) -> None:
        parsed.update(next(pages))

    with listening(world.clients.ec2, "after-call.ec2.DescribeSpotPriceHistory", change):
        assert describe_prices(world.clients, [PLACES[3]]) == {PLACES[3]: 0.5}


def entry(price: str, at: datetime) -> dict[str, Any]:
    return {"InstanceType": "g5.xlarge", "AvailabilityZone": "us-east-1a", "SpotPrice": price, "Timestamp": at}


def product(*prices: tuple[str, str, str]) -> str:
    """A product of the price list. prices: unit, currency, amount."""
    dimensions = {
        str(number): {"unit": unit, "pricePerUnit": {currency: amount}}
        for number, (unit, currency, amount) in enumerate(prices)
    }
    return json.dumps({"terms": {"OnDemand": {"term": {"priceDimensions": dimensions}}, "Reserved": {}}})


@pytest.mark.parametrize(
    ("documents", "price"),
    [
        (["{}"], None),
        ([product(("Hrs", "USD", "0.1700000000"))], 0.17),
        ([product(("Hrs", "USD", "0.0000000000"))], None),  # reserved capacity, which is billed separately
        ([product(("Quantity", "USD", "9.0"), ("Hrs", "USD", "0.2"))], 0.2),
        ([product(("Hrs", "USD", "0.2")), product(("Hrs", "USD", "0.3"))], 0.3),
    ],
)
def test_the_price_of_a_product(documents: list[str], price: float | None) -> None:
    assert parse_price(documents, HOURS) == price
