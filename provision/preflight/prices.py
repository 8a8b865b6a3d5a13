"""Prices of instances and disks, from AWS's price list and spot price history.

Prices are only information: an unknown price is None, for any reason.

https://docs.aws.amazon.com/aws-cost-management/latest/APIReference/API_pricing_GetProducts.html
https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_DescribeSpotPriceHistory.html
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from botocore.exceptions import ClientError, HTTPClientError
from botocore.exceptions import ConnectionError as NoConnectionError

from foundation.thread_pool import bounded_pool
from provision.aws.clients import Clients
from provision.model import Market

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client

PricedPlace = tuple[Market, str, str]
"""A market, an instance type and a zone: they determine the price of an instance."""
Prices = Mapping[PricedPlace, float | None]
"""US dollars per hour of one instance; None if unknown."""

# One product for each type and region: https://docs.aws.amazon.com/awsaccountbilling/latest/aboutv2/reading-service-price-list-file-for-services.html
_LINUX_ON_DEMAND = {
    "operatingSystem": "Linux",
    "tenancy": "Shared",
    "preInstalledSw": "NA",
    "capacitystatus": "Used",
    "marketoption": "OnDemand",
}
_GP3 = {"productFamily": "Storage", "volumeApiName": "gp3"}
SNAPSHOT = {"productFamily": "Storage Snapshot"}
USD_PER_ADDRESS_HOUR = 0.005
"""A public IPv4 address, in all regions: https://aws.amazon.com/vpc/pricing/"""
_HOURS = frozenset({"Hrs", "Hours"})
_GIB_MONTHS = frozenset({"GB-Mo", "GB-month"})
_MONTH_S = 730 * 3600.0
"""A month in AWS's own estimates, whatever its length: https://docs.aws.amazon.com/pricing-calculator/"""


def describe_prices(clients: Clients, places: Collection[PricedPlace]) -> Prices:
    """Returns the price of one Linux instance at each place. Raises nothing."""
    on_demand_types = sorted({instance_type for market, instance_type, _ in places if market == "on-demand"})
    spot_types = sorted({instance_type for market, instance_type, _ in places if market == "spot"})
    with bounded_pool() as pool:
        lookups = {
            instance_type: pool.submit(
                _find_price, clients, {**_LINUX_ON_DEMAND, "instanceType": instance_type}, _HOURS
            )
            for instance_type in on_demand_types
        }
        spot = pool.submit(_find_spot_prices, clients.ec2, spot_types)
    on_demand = {instance_type: price.result() for instance_type, price in lookups.items()}
    newest = spot.result()
    return {
        place: newest.get(place[1:]) if place[0] == "spot" else on_demand[place[1]] for place in dict.fromkeys(places)
    }


def find_volume_price(clients: Clients, product: Mapping[str, str] = _GP3) -> float | None:
    """Returns US dollars per month for a GiB of a gp3 volume, or of another product, or None. Raises nothing.

    AWS writes GB for GiB (https://aws.amazon.com/ebs/pricing/).
    """
    return _find_price(clients, product, _GIB_MONTHS)


def _find_price(clients: Clients, attributes: Mapping[str, str], units: frozenset[str]) -> float | None:
    """Returns the on-demand price of the region's product with these attributes, or None."""
    try:
        pages = clients.pricing.get_paginator("get_products").paginate(
            ServiceCode="AmazonEC2",
            Filters=[
                {"Type": "TERM_MATCH", "Field": name, "Value": value}
                for name, value in {"regionCode": clients.region, **attributes}.items()
            ],
        )
        documents = [document for page in pages for document in page["PriceList"]]
    except (ClientError, NoConnectionError, HTTPClientError):
        return None
    return parse_price(documents, units)


def parse_price(documents: Iterable[str], units: frozenset[str]) -> float | None:
    """Returns the price in US dollars for one of the units, from the price list's JSON products. Pure.

    None if unknown. Ignores a price of 0: it means that something else is billed, such as reserved capacity. Of
    different prices, returns the highest: an estimate that is too low is worse than one that is too high.
    """
    prices = [
        float(dimension["pricePerUnit"]["USD"])
        for document in documents
        for term in json.loads(document).get("terms", {}).get("OnDemand", {}).values()
        for dimension in term.get("priceDimensions", {}).values()
        if dimension.get("unit") in units and "USD" in dimension.get("pricePerUnit", {})
    ]
    return max((price for price in prices if price > 0), default=None)


def _find_spot_prices(ec2: EC2Client, types: Sequence[str]) -> dict[tuple[str, str], float]:
    """Returns the newest price in each zone, by (type, zone); {} if they cannot be read."""
    if not types:
        return {}
    pages = ec2.get_paginator("describe_spot_price_history").paginate(
        Filters=[{"Name": "instance-type", "Values": list(types)}],
        ProductDescriptions=["Linux/UNIX"],
        StartTime=datetime.now(UTC),
    )
    try:
        entries = [entry for page in pages for entry in page["SpotPriceHistory"]]
    except (ClientError, NoConnectionError, HTTPClientError):
        return {}
    entries.sort(key=lambda entry: entry["Timestamp"])
    return {(str(entry["InstanceType"]), entry["AvailabilityZone"]): float(entry["SpotPrice"]) for entry in entries}


def disk_cost(gib: int | None, usd_per_gib_month: float | None, seconds: float) -> float | None:
    """Returns the cost of a disk for a time; None if its size or the price is unknown."""
    if gib is None or usd_per_gib_month is None:
        return None
    return seconds / _MONTH_S * gib * usd_per_gib_month


def disk_rate(gib: int | None, usd_per_gib_month: float | None) -> float | None:
    """Returns the cost of a disk per hour."""
    return disk_cost(gib, usd_per_gib_month, 3600)
