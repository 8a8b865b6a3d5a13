"""The sandbox's own parts of EC2: quotas, prices, capacity, tokens, consistency."""

import datetime as dt
from typing import Any

import pytest
from moto.ec2.exceptions import EC2ClientError

from ec2_sandbox.api import limits
from ec2_sandbox.api.limits import find_quota
from ec2_sandbox.api.prices import ON_DEMAND, spot_price
from ec2_sandbox.config import Market
from ec2_sandbox.faults import FaultBook

NOW = dt.datetime(2026, 1, 10, 13, tzinfo=dt.UTC)


@pytest.mark.parametrize(
    ("instance_type", "market", "code"),
    [
        ("g4dn.xlarge", "on-demand", "L-DB2E81BA"),
        ("p4d.24xlarge", "on-demand", "L-417A185B"),
        ("p5en.48xlarge", "spot", "L-7212CCBC"),
        ("x2iedn.xlarge", "on-demand", None),
    ],
)
def test_every_type_counts_against_its_quota(instance_type: str, market: Market, code: str | None) -> None:
    quota = find_quota(instance_type, market)
    assert (quota.code if quota else None) == code


def test_spot_prices_are_steady_and_below_on_demand() -> None:
    price = spot_price("g5.xlarge", "us-east-1a", NOW)
    assert price is not None
    assert 0.3 * ON_DEMAND["g5.xlarge"] <= price <= 0.5 * ON_DEMAND["g5.xlarge"]
    assert spot_price("g5.xlarge", "us-east-1a", NOW + dt.timedelta(minutes=59)) == price
    assert spot_price("g5.xlarge", "us-east-1b", NOW) != price
    assert spot_price("g5.huge", "us-east-1a", NOW) is None


def reserve(book: FaultBook, low: int, high: int, zones: tuple[str, ...] = ("us-east-1a", "us-east-1b")) -> Any:
    zone, count, _ = limits.reserve_capacity(
        "c5.xlarge", "on-demand", low, high, zones=zones, book=book, named=len(zones) == 1
    )
    return zone, count


def test_a_launch_goes_to_the_zone_with_most_capacity() -> None:
    book = FaultBook()
    assert reserve(book, 1, 4) == ("us-east-1a", 4)
    book.arm("capacity zone=us-east-1a free=1")
    book.arm("capacity zone=us-east-1b free=3")
    assert reserve(book, 1, 4) == ("us-east-1b", 3)
    assert reserve(book, 1, 4) == ("us-east-1a", 1)
    with pytest.raises(EC2ClientError, match="any of the region's"):
        reserve(book, 1, 4)


def test_a_refused_launch_is_one_strike() -> None:
    book = FaultBook()
    book.arm("capacity count=2")
    for left in (1, 0):
        with pytest.raises(EC2ClientError, match="InsufficientInstanceCapacity"):
            reserve(book, 1, 1)
        assert [fault.left for fault in book.list()] == [left] * bool(left)
    assert reserve(book, 1, 1) == ("us-east-1a", 1)
