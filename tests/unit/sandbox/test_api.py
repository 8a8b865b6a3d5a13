"""The sandbox's own parts of EC2: quotas, prices, capacity, tokens, consistency."""

import datetime as dt
import json
from typing import Any

import pytest
from moto.ec2.exceptions import EC2ClientError

from ec2_sandbox.api import limits, prices
from ec2_sandbox.api.consistency import Tokens, Unsettled
from ec2_sandbox.api.limits import find_quota
from ec2_sandbox.api.on_hosts.run_command import summarize
from ec2_sandbox.api.prices import ON_DEMAND, SPOT_STEP, spot_price, spot_times
from ec2_sandbox.config import Market
from ec2_sandbox.faults import FaultBook

NOW = dt.datetime(2026, 1, 10, 13, tzinfo=dt.UTC)


@pytest.mark.parametrize(
    ("instance_type", "market", "code"),
    [
        ("c5.xlarge", "on-demand", "L-1216C47A"),
        ("im4gn.large", "on-demand", "L-1216C47A"),
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


def test_spot_times_cover_the_period() -> None:
    assert list(spot_times(NOW, NOW, NOW)) == [NOW - dt.timedelta(hours=1)]
    times = list(spot_times(NOW - dt.timedelta(days=1), NOW, NOW))
    assert times[0] <= NOW < times[0] + SPOT_STEP
    assert times[-1] <= NOW - dt.timedelta(days=1)
    assert len(list(spot_times(NOW - dt.timedelta(days=1000), NOW, NOW))) == 361


def test_the_price_list_has_one_region() -> None:
    def count(region: str) -> int:
        asked = {"Filters": [{"Field": "regionCode", "Value": region}, {"Field": "instanceType", "Value": "c5.xlarge"}]}
        return len(prices.answer_call("GetProducts", asked, "eu-west-1")["PriceList"])

    assert (count("eu-west-1"), count("us-east-1")) == (1, 0)


@pytest.mark.parametrize(
    ("wanted", "usage", "price"),
    [
        ({"productFamily": "Storage", "volumeApiName": "gp3", "regionCode": "eu-west-1"},
         "EBS:VolumeUsage.gp3", ("GB-Mo", 0.08)),
        ({"instanceType": "g5.xlarge", "regionCode": "eu-west-1", "operatingSystem": "Linux", "tenancy": "Shared",
          "preInstalledSw": "NA", "capacitystatus": "Used"}, "BoxUsage:g5.xlarge", ("Hrs", 1.006)),
    ],
)  # fmt: skip
def test_prices_on_demand(wanted: dict[str, str], usage: str, price: tuple[str, float]) -> None:
    filters = [{"Type": "TERM_MATCH", "Field": field, "Value": value} for field, value in wanted.items()]
    [text] = prices.answer_call("GetProducts", {"Filters": filters}, "eu-west-1")["PriceList"]
    found = json.loads(text)
    assert found["product"]["attributes"]["usagetype"] == usage
    [term] = found["terms"]["OnDemand"].values()
    [dimension] = term["priceDimensions"].values()
    assert (dimension["unit"], float(dimension["pricePerUnit"]["USD"])) == price


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


def test_tokens() -> None:
    tokens: Tokens[str] = Tokens()
    assert tokens.find("CreateVolume", "a", {"Size": 1}) is None
    tokens.keep("CreateVolume", "a", {"Size": 1, "ClientToken": "a"}, "answer")
    assert tokens.find("CreateVolume", "a", {"Size": 1, "ClientToken": "a"}) == "answer"
    assert tokens.find("CreateFleet", "a", {"Size": 2}) is None
    with pytest.raises(EC2ClientError, match="IdempotentParameterMismatch"):
        tokens.find("CreateVolume", "a", {"Size": 2})


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_new_resources_are_hidden_for_the_delay() -> None:
    clock = Clock()
    unsettled = Unsettled(2.0, clock)
    answer = "<instanceId>i-0123456789abcdef0</instanceId><subnetId>subnet-0123456789abcdef0</subnetId>"
    unsettled.note("RunInstances", {}, answer)
    unsettled.check("RunInstances", {"SubnetId": "subnet-0123456789abcdef0"})
    unsettled.check("DescribeInstances", {"Filters": [{"Name": "instance-id", "Values": ["i-0123456789abcdef0"]}]})
    for asked in ({"InstanceIds": ["i-0123456789abcdef0"]}, {"Resources": ["vpc-1", "i-0123456789abcdef0"]}):
        with pytest.raises(EC2ClientError, match=r"InvalidInstanceID\.NotFound"):
            unsettled.check("CreateTags", asked)
    clock.now += 1.5
    unsettled.note("RunInstances", {}, answer)  # repeated with its token: no new instances
    clock.now += 1.0
    unsettled.check("DescribeInstances", {"InstanceIds": ["i-0123456789abcdef0"]})


@pytest.mark.parametrize(
    ("statuses", "status"),
    [
        (["Success", "Success"], "Success"),
        (["Success", "Pending"], "InProgress"),
        (["Failed", "InProgress"], "InProgress"),
        (["Success", "Failed"], "Failed"),
        (["TimedOut", "Failed"], "TimedOut"),
        (["Success", "Cancelled"], "Cancelled"),
    ],
)
def test_a_commands_status_is_that_of_its_worst_invocation(statuses: list[str], status: str) -> None:
    assert summarize([(one, one) for one in statuses]) == (status, status)
    assert summarize([]) == ("Success", "NoInstancesInTag")
