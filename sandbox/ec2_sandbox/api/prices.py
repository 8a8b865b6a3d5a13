"""Approximate prices of instances: prices.toml has those on demand.

Spot prices are invented: a share of the on-demand price that differs by type and zone.

Implements GetProducts of AWS's price list service, which moto lacks, for on-demand Linux, gp3 volumes and snapshots:
https://docs.aws.amazon.com/aws-cost-management/latest/APIReference/API_pricing_GetProducts.html
"""

import datetime as dt
import hashlib
import json
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from moto.ec2.models.instance_types import INSTANCE_TYPES

from ec2_sandbox.api.refusals import Refusal, RefusedError

_TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
ON_DEMAND: dict[str, float] = _TABLE["types"] | {
    f"{name}.{size}": round(family["xlarge"] * _TABLE["units"][size], 4)
    for name, family in _TABLE["families"].items()
    for size in family["sizes"]
}
GP3_GIB_MONTH = 0.08  # dollars per GiB and month; https://aws.amazon.com/ebs/pricing/
# The family, name, usage and dollars per GiB and month of what is stored.
STORAGE = (
    ("Storage", "gp3", "EBS:VolumeUsage.gp3", GP3_GIB_MONTH, "General Purpose (gp3) provisioned storage"),
    ("Storage Snapshot", "snapshot", "EBS:SnapshotUsage", 0.05, "snapshot data stored"),
)
# The interval at which spot prices change, and the length of their history.
SPOT_STEP = dt.timedelta(hours=6)
SPOT_HISTORY = dt.timedelta(days=90)
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def spot_price(instance_type: str, zone: str, at: dt.datetime) -> float | None:
    """Returns the spot price in dollars per hour, or None for an unknown type. Pure.

    It is 30 to 50 % of the on-demand price, and always the same for a given time.
    """
    on_demand = ON_DEMAND.get(instance_type)
    if on_demand is None:
        return None
    seed = f"{instance_type} {zone} {_step_of(at)}"
    share = 0.3 + 0.2 * int.from_bytes(hashlib.sha256(seed.encode()).digest()[:4]) / (1 << 32)
    return round(on_demand * share, 4)


def spot_times(begin: dt.datetime, end: dt.datetime, now: dt.datetime) -> Iterator[dt.datetime]:
    """Yields the start times of the prices in effect between two times, newest first. Pure."""
    begin = max(begin, now - SPOT_HISTORY)
    step = _step_of(min(end, now))
    while step >= _step_of(begin):
        yield EPOCH + step * SPOT_STEP
        step -= 1


def _step_of(at: dt.datetime) -> int:
    return (at - EPOCH) // SPOT_STEP


def get_products(request: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the response to GetProducts, on one page; without a regionCode, that of us-east-1. Pure.

    Raises RefusedError for an unknown service.
    """
    if request.get("ServiceCode", "AmazonEC2") != "AmazonEC2":
        message = "The sandbox's price list has AmazonEC2 only."
        raise RefusedError(Refusal(code="NotFoundException", message=message))
    filters: list[dict[str, str]] = request.get("Filters", [])
    region = {one["Field"]: one["Value"] for one in filters}.get("regionCode", "us-east-1")
    products = [product for product in _products(region) if _matches(product, filters)]
    return {"FormatVersion": "aws_v1", "PriceList": [json.dumps(product) for product in products]}


def _matches(product: dict[str, Any], filters: list[dict[str, str]]) -> bool:
    attributes = {**product["product"]["attributes"], "productFamily": product["product"]["productFamily"],
                  "ServiceCode": "AmazonEC2", "sku": product["product"]["sku"]}  # fmt: skip
    return all(attributes.get(wanted["Field"], "").lower() == wanted["Value"].lower() for wanted in filters)


def _products(region: str) -> Iterator[dict[str, Any]]:
    for instance_type, dollars in ON_DEMAND.items():
        what, attributes = f"On Demand Linux {instance_type} Instance Hour", _attributes(instance_type, region)
        yield _product("Compute Instance", instance_type, attributes, unit="Hrs", dollars=dollars, what=what)
    for family, name, usage, dollars, what in STORAGE:
        named = {"volumeApiName": name} if family == "Storage" else {}
        attributes = {**named, "regionCode": region, "usagetype": usage}
        yield _product(family, name, attributes, unit="GB-Mo", dollars=dollars, what=f"GB-month of {what}")


def _product(
    family: str, name: str, attributes: Mapping[str, str], *, unit: str, dollars: float, what: str
) -> dict[str, Any]:
    """Returns a product with its on-demand price, in the format of the price list. dollars: the price of one `unit`."""
    sku = hashlib.sha256(name.encode()).hexdigest()[:16].upper()
    term, rate = f"{sku}.JRTCKXETXF", f"{sku}.JRTCKXETXF.6YS6EN2CT7"
    dimension = {
        "unit": unit, "rateCode": rate, "beginRange": "0", "endRange": "Inf", "appliesTo": [],
        "description": f"${dollars} per {what} (approximately)", "pricePerUnit": {"USD": f"{dollars:.10f}"},
    }  # fmt: skip
    return {
        "product": {"productFamily": family, "sku": sku, "attributes": attributes},
        "serviceCode": "AmazonEC2",
        "terms": {"OnDemand": {term: {"sku": sku, "offerTermCode": "JRTCKXETXF", "termAttributes": {},
                                      "effectiveDate": "2025-06-01T00:00:00Z", "priceDimensions": {rate: dimension}}}},
        "version": "20250601000000",
        "publicationDate": "2025-06-01T00:00:00Z",
    }  # fmt: skip


def _attributes(instance_type: str, region: str) -> dict[str, str]:
    known = INSTANCE_TYPES[instance_type]
    return {
        "instanceType": instance_type, "regionCode": region, "operatingSystem": "Linux", "tenancy": "Shared",
        "preInstalledSw": "NA", "capacitystatus": "Used", "licenseModel": "No License required",
        "marketoption": "OnDemand", "operation": "RunInstances", "usagetype": f"BoxUsage:{instance_type}",
        "vcpu": str(known["VCpuInfo"]["DefaultVCpus"]), "memory": f"{known['MemoryInfo']['SizeInMiB'] / 1024:g} GiB",
    }  # fmt: skip
