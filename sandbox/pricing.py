"""AWS's price list service, which moto lacks: GetProducts for Linux on demand and gp3 volumes.

https://docs.aws.amazon.com/aws-cost-management/latest/APIReference/API_pricing_GetProducts.html
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from moto.ec2.models.instance_types import INSTANCE_TYPES

from sandbox.prices import GP3_GIB_MONTH, ON_DEMAND

TARGET = "AWSPriceListService."
PAGE = 100
# https://docs.aws.amazon.com/general/latest/gr/rande.html; regions that are not here have no location.
LOCATIONS = {
    "us-east-1": "US East (N. Virginia)", "us-east-2": "US East (Ohio)", "us-west-1": "US West (N. California)",
    "us-west-2": "US West (Oregon)", "eu-west-1": "EU (Ireland)", "eu-west-2": "EU (London)",
    "eu-central-1": "EU (Frankfurt)", "eu-north-1": "EU (Stockholm)", "ap-northeast-1": "Asia Pacific (Tokyo)",
    "ap-southeast-1": "Asia Pacific (Singapore)", "ap-southeast-2": "Asia Pacific (Sydney)",
    "ap-south-1": "Asia Pacific (Mumbai)", "ca-central-1": "Canada (Central)", "sa-east-1": "South America (Sao Paulo)",
}  # fmt: skip


class PricingError(Exception):
    """What was asked for is not possible; `code` is AWS's."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def answer_pricing(app: WSGIApplication, region: str) -> WSGIApplication:
    """Adds the price list service to an application; prices are those of the sandbox's one region."""

    def answering(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        target = environ.get("HTTP_X_AMZ_TARGET", "")
        if not target.startswith(TARGET):
            return app(environ, start_response)
        asked = json.loads(environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0)) or b"{}")
        try:
            status, answer = "200 OK", answer_call(target.removeprefix(TARGET), asked, region)
        except PricingError as error:
            status, answer = "400 Bad Request", {"__type": error.code, "message": str(error)}
        body = json.dumps(answer).encode()
        start_response(status, [("Content-Type", "application/x-amz-json-1.1"), ("Content-Length", str(len(body)))])
        return [body]

    return answering


def answer_call(action: str, asked: dict[str, Any], region: str) -> dict[str, Any]:
    """The answer to a call. Pure. Raises PricingError."""
    actions: dict[str, Callable[[dict[str, Any], str], dict[str, Any]]] = {
        "GetProducts": _get_products,
        "DescribeServices": lambda _, __: {"Services": [{"ServiceCode": "AmazonEC2",
                                                         "AttributeNames": sorted(_attributes("m5.large", region))}]},
    }  # fmt: skip
    if action not in actions:
        raise PricingError("InvalidParameterException", f"The sandbox's price list has no {action}.")
    if asked.get("ServiceCode", "AmazonEC2") != "AmazonEC2":
        raise PricingError("NotFoundException", "The sandbox's price list has AmazonEC2 only.")
    return actions[action](asked, region)


def _get_products(asked: dict[str, Any], region: str) -> dict[str, Any]:
    products = [product for product in _products(region) if _matches(product, asked.get("Filters", []))]
    begin = int(asked.get("NextToken") or 0)
    end = begin + min(int(asked.get("MaxResults") or PAGE), PAGE)
    answer: dict[str, Any] = {"FormatVersion": "aws_v1", "PriceList": [json.dumps(p) for p in products[begin:end]]}
    if end < len(products):
        answer["NextToken"] = str(end)
    return answer


def _matches(product: dict[str, Any], filters: list[dict[str, str]]) -> bool:
    attributes = {**product["product"]["attributes"], "productFamily": product["product"]["productFamily"],
                  "ServiceCode": "AmazonEC2", "sku": product["product"]["sku"]}  # fmt: skip
    return all(attributes.get(wanted["Field"], "").lower() == wanted["Value"].lower() for wanted in filters)


def _products(region: str) -> Iterator[dict[str, Any]]:
    for instance_type, dollars in ON_DEMAND.items():
        what = f"On Demand Linux {instance_type} Instance Hour"
        attributes = _attributes(instance_type, region)
        yield _product("Compute Instance", instance_type, attributes, unit="Hrs", dollars=dollars, what=what)
    what = "GB-month of General Purpose (gp3) provisioned storage"
    yield _product("Storage", "gp3", _gp3_attributes(region), unit="GB-Mo", dollars=GP3_GIB_MONTH, what=what)


def _product(
    family: str, name: str, attributes: Mapping[str, str], *, unit: str, dollars: float, what: str
) -> dict[str, Any]:
    """A product with its price on demand, in the form of the price list. dollars: for each `unit`."""
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


def _gp3_attributes(region: str) -> dict[str, str]:
    return {
        "volumeApiName": "gp3",
        "volumeType": "General Purpose",
        "storageMedia": "SSD-backed",
        "maxVolumeSize": "16 TiB",
        "maxIopsvolume": "16000",
        "maxThroughputvolume": "1000 MiB/s",
        "regionCode": region,
        "location": LOCATIONS.get(region, region),
        "locationType": "AWS Region",
        "operation": "",
        "usagetype": "EBS:VolumeUsage.gp3",
        "servicecode": "AmazonEC2",
        "servicename": "Amazon Elastic Compute Cloud",
    }


def _attributes(instance_type: str, region: str) -> dict[str, str]:
    known = INSTANCE_TYPES[instance_type]
    gpus = sum(gpu["Count"] for gpu in known.get("GpuInfo", {}).get("Gpus", []))
    return {
        "instanceType": instance_type,
        "regionCode": region,
        "location": LOCATIONS.get(region, region),
        "locationType": "AWS Region",
        "operatingSystem": "Linux",
        "tenancy": "Shared",
        "preInstalledSw": "NA",
        "capacitystatus": "Used",
        "licenseModel": "No License required",
        "marketoption": "OnDemand",
        "operation": "RunInstances",
        "usagetype": f"BoxUsage:{instance_type}",
        "servicecode": "AmazonEC2",
        "servicename": "Amazon Elastic Compute Cloud",
        "currentGeneration": "Yes" if known.get("CurrentGeneration") else "No",
        "vcpu": str(known["VCpuInfo"]["DefaultVCpus"]),
        "memory": f"{known['MemoryInfo']['SizeInMiB'] / 1024:g} GiB",
        **({"gpu": str(gpus)} if gpus else {}),
    }
