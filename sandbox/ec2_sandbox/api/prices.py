"""Approximate prices of instances, in a small table.

On-demand Linux in us-east-1, in dollars per hour, as of 2025. The exact prices: https://aws.amazon.com/ec2/pricing/on-demand/
Spot prices are invented: a share of the on-demand price that differs by type and zone.

Implements GetProducts of AWS's price list service, which moto lacks, for on-demand Linux, gp3 volumes and snapshots:
https://docs.aws.amazon.com/aws-cost-management/latest/APIReference/API_pricing_GetProducts.html
"""

import datetime as dt
import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

from moto.ec2.models.instance_types import INSTANCE_TYPES

from ec2_sandbox.api.refusals import Refusal, RefusedError

# In most families, the price is proportional to the size. The unit here is one xlarge.
UNITS = {"large": 0.5, "xlarge": 1, "2xlarge": 2, "4xlarge": 4, "8xlarge": 8, "9xlarge": 9, "12xlarge": 12,
         "16xlarge": 16, "18xlarge": 18, "24xlarge": 24}  # fmt: skip
SMALL = ("large", "xlarge", "2xlarge", "4xlarge")
USUAL = (*SMALL, "8xlarge", "12xlarge", "16xlarge", "24xlarge")
# By family: the price of an xlarge in dollars per hour, and the sizes.
FAMILIES: dict[str, tuple[float, tuple[str, ...]]] = {
    "c5": (0.17, (*SMALL, "9xlarge", "12xlarge", "18xlarge", "24xlarge")),
    "c5n": (0.216, (*SMALL, "9xlarge", "18xlarge")),
    "c6i": (0.17, USUAL), "c6a": (0.153, USUAL), "c7i": (0.1785, USUAL), "c6g": (0.136, USUAL[:-1]),
    "m5": (0.192, USUAL), "m6i": (0.192, USUAL), "m7i": (0.2016, USUAL), "m6g": (0.154, USUAL[:-1]),
    "r5": (0.252, USUAL), "r6i": (0.252, USUAL),
}  # fmt: skip
OTHERS = {
    "t2.micro": 0.0116, "t3.nano": 0.0052, "t3.micro": 0.0104, "t3.small": 0.0208, "t3.medium": 0.0416,
    "t3.large": 0.0832, "t3.xlarge": 0.1664, "t3.2xlarge": 0.3328, "t4g.micro": 0.0084, "m1.small": 0.044,
    "g4dn.xlarge": 0.526, "g4dn.2xlarge": 0.752, "g4dn.4xlarge": 1.204, "g4dn.8xlarge": 2.176, "g4dn.12xlarge": 3.912,
    "g4dn.16xlarge": 4.352, "g4dn.metal": 7.824,
    "g5.xlarge": 1.006, "g5.2xlarge": 1.212, "g5.4xlarge": 1.624, "g5.8xlarge": 2.448, "g5.12xlarge": 5.672,
    "g5.16xlarge": 4.096, "g5.24xlarge": 8.144, "g5.48xlarge": 16.288,
    "g6.xlarge": 0.8048, "g6.2xlarge": 0.9776, "g6.4xlarge": 1.3232, "g6.8xlarge": 2.0144, "g6.12xlarge": 4.6016,
    "g6.16xlarge": 3.3968, "g6.24xlarge": 6.6752, "g6.48xlarge": 13.3504,
    "g6e.xlarge": 1.861, "g6e.2xlarge": 2.2421, "g6e.4xlarge": 3.0042, "g6e.8xlarge": 4.5286, "g6e.12xlarge": 10.4926,
    "g6e.16xlarge": 7.5772, "g6e.24xlarge": 15.0656, "g6e.48xlarge": 30.1312,
    "p3dn.24xlarge": 31.212, "p4d.24xlarge": 21.9576, "p4de.24xlarge": 27.4471, "p5.48xlarge": 55.04,
    "p5en.48xlarge": 63.296, "p6-b200.48xlarge": 113.9328,
}  # fmt: skip
ON_DEMAND: dict[str, float] = OTHERS | {
    f"{family}.{size}": round(price * UNITS[size], 4) for family, (price, sizes) in FAMILIES.items() for size in sizes
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
