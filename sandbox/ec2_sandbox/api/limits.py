"""The limits of a launch: zones that offer a type, vCPU quotas and capacity. Also AWS's Service Quotas, for EC2.

https://docs.aws.amazon.com/servicequotas/2019-06-24/apireference/API_GetServiceQuota.html
"""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from moto.ec2.exceptions import EC2ClientError
from moto.ec2.models.instance_types import INSTANCE_TYPE_OFFERINGS, INSTANCE_TYPES
from moto.servicequotas.exceptions import NoSuchResource
from moto.servicequotas.responses import ServiceQuotasResponse

from ec2_sandbox.config import GRANTED, QUOTAS, Market, Quota
from ec2_sandbox.faults import FaultBook


def find_quota(instance_type: str, market: Market) -> Quota | None:
    """Returns the quota of a type, or None for types that the sandbox does not count."""
    # For example c for c5.xlarge, gr for gr6.4xlarge. dl1 is not in the D family; im4gn and is4gen are in the I family.
    letters = re.split(r"[\d.]", instance_type)[0]
    letters = {"im": "i", "is": "i"}.get(letters, letters)
    return next((q for q in QUOTAS.values() if q.market == market and letters in q.families), None)


def zones_offering(instance_type: str, region: str) -> list[str]:
    """Returns the region's zones that offer a type, according to AWS's published list, sorted."""
    offerings = INSTANCE_TYPE_OFFERINGS["availability-zone"].get(region, [])
    return sorted(offer["Location"] for offer in offerings if offer["InstanceType"] == instance_type)


def check_offered(instance_type: str, zone: str, region: str) -> None:
    """Raises EC2ClientError if a zone does not offer a type."""
    zones = zones_offering(instance_type, region)
    if zone not in zones:
        elsewhere = f" or choosing {', '.join(zones)}" if zones else ""
        raise EC2ClientError(
            "Unsupported",
            f"Your requested instance type ({instance_type}) is not supported in your requested Availability Zone "
            f"({zone}). Please retry your request by not specifying an Availability Zone{elsewhere}.",
        )


def check_architecture(instance_type: str, architecture: str) -> None:
    """Raises EC2ClientError if an image cannot run on a type."""
    supported = INSTANCE_TYPES[instance_type]["ProcessorInfo"]["SupportedArchitectures"]
    if architecture not in supported:
        raise EC2ClientError(
            "InvalidParameterValue",
            f"The architecture '{','.join(supported)}' of the specified instance type does not match the architecture "
            f"'{architecture}' of the specified AMI. Specify an instance type and an AMI that have matching "
            "architectures, and try again.",
        )


def check_strategy(instance_type: str, strategy: str, group_name: str) -> None:
    """Raises EC2ClientError if a type does not support a placement group's strategy."""
    supported = INSTANCE_TYPES[instance_type].get("PlacementGroupInfo", {}).get("SupportedStrategies", [])
    if strategy not in supported:
        raise EC2ClientError(
            "InvalidParameterCombination",
            f"The placement group '{group_name}' has the strategy '{strategy}', which instances of type "
            f"'{instance_type}' do not support.",
        )


def reserve_capacity(
    instance_type: str, market: Market, low: int, high: int, *, zones: Iterable[str], book: FaultBook, named: bool
) -> tuple[str, int, str | None]:
    """Returns the zone that has capacity for the most instances of a launch, and how many it gets, `low` to `high`.

    Also returns the id of the capacity fault whose `free` the launch reduces, so that the end of its instances can
    increase it again; None if there is none. Raises EC2ClientError for fewer than `low` instances.

    zones: the zones to choose from. named: whether the caller chose the zone.
    """
    faults = {zone: book.find("capacity", type=instance_type, market=market, zone=zone) for zone in zones}
    room = {zone: int(fault.parameters.get("free", "0")) if fault else high for zone, fault in faults.items()}
    zone = max(room, key=lambda name: room[name])  # the first of several with equal room
    count, fault = min(high, room[zone]), faults[zone]
    if count >= low:
        if fault is None or "free" not in fault.parameters:
            return zone, count, None
        book.spend(fault.id, "free", count)
        return zone, count, fault.id
    # A refused launch counts once for each fault, regardless of the number of zones.
    for name, in_zone in {fault.id: (name, fault) for name, fault in faults.items() if fault}.values():
        book.take(in_zone.kind, type=instance_type, market=market, zone=name)
    where = f"in the Availability Zone you requested ({zone})" if named else "in any of the region's Availability Zones"
    elsewhere = ", ".join(name for name in zones_offering(instance_type, zone[:-1]) if name != zone)
    advice = f" or choosing {elsewhere}" if named and elsewhere else ""
    kind = "Spot" if market == "spot" else instance_type
    raise EC2ClientError(
        "InsufficientInstanceCapacity",
        f"We currently do not have sufficient {kind} capacity {where}. Our system will be working on provisioning "
        f"additional capacity. You can currently get {instance_type} capacity by not specifying an Availability Zone "
        f"in your request{advice}.",
    )


class SandboxQuotasResponse(ServiceQuotasResponse):
    """The two actions that read quotas. `granted`: the vCPUs by quota code, where they differ from the default."""

    granted: ClassVar[Mapping[str, int]] = {}

    def list_service_quotas(self) -> str:
        """Returns the account's quotas. Of other services, there are none."""
        service = json.loads(self.body)["ServiceCode"]
        return json.dumps({"Quotas": [self._render(quota) for quota in QUOTAS.values() if service == "ec2"]})

    def get_service_quota(self) -> str:
        """Returns one of the account's quotas."""
        quota = QUOTAS.get(json.loads(self.body)["QuotaCode"])
        if quota is None:
            raise NoSuchResource
        return json.dumps({"Quota": self._render(quota)})

    def _render(self, quota: Quota) -> dict[str, Any]:
        return {
            "ServiceCode": "ec2", "ServiceName": "Amazon Elastic Compute Cloud (Amazon EC2)",
            "QuotaArn": f"arn:aws:servicequotas:{self.region}:{self.current_account}:ec2/{quota.code}",
            "QuotaCode": quota.code, "QuotaName": quota.name, "Unit": "None", "Adjustable": True, "GlobalQuota": False,
            "Value": float(self.granted.get(quota.code, GRANTED)),
        }  # fmt: skip
