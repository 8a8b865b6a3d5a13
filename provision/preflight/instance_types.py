"""What EC2 says of the instance types that are asked for, and where it offers them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from provision.config import ProvisionConfig, setting_error
from provision.errors import ConfigError

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client
    from mypy_boto3_ec2.type_defs import InstanceTypeInfoTypeDef

HINT_TYPES = "aws ec2 describe-instance-type-offerings lists what a region has"


@dataclass(frozen=True, kw_only=True, slots=True)
class TypeFacts:
    """An instance type.

    architecture: x86_64 or arm64. gpus: such as "4x NVIDIA T4", None without; gpu_makers: who made them.
    in_cluster_placement: it may be in a placement group of the strategy `cluster`. efa: it may have an Elastic Fabric
    Adapter. on_spot: it is sold on the spot market.
    """

    name: str
    architecture: str
    vcpus: int
    gpus: str | None
    gpu_makers: frozenset[str]
    in_cluster_placement: bool
    efa: bool
    on_spot: bool


def describe_types(ec2: EC2Client, config: ProvisionConfig, types: Sequence[str]) -> dict[str, TypeFacts]:
    """The types in their order. Raises ConfigError for the first that the region does not have, or boto3's errors."""
    pages = ec2.get_paginator("describe_instance_types").paginate(
        Filters=[{"Name": "instance-type", "Values": list(types)}]
    )
    found = {str(info["InstanceType"]): info for page in pages for info in page["InstanceTypes"]}
    for name in types:
        if name not in found:
            raise type_error(config, name, f"{config.region} has no such instance type", hint=HINT_TYPES)
    for name in types:
        architectures = found[name]["ProcessorInfo"]["SupportedArchitectures"]
        if not {"x86_64", "arm64"} & set(architectures):  # Macs: x86_64_mac and arm64_mac, on Dedicated Hosts alone
            problem = f"is for {', '.join(architectures)}; no image of Linux runs there"
            raise type_error(config, name, problem, hint='take another type, such as "c5.xlarge" or "g5.xlarge"')
    return {name: _facts(name, found[name]) for name in types}


def describe_offered_zones(ec2: EC2Client, types: Sequence[str]) -> Mapping[str, frozenset[str]]:
    """The zones of the region that offer each type. Raises boto3's errors."""
    pages = ec2.get_paginator("describe_instance_type_offerings").paginate(
        LocationType="availability-zone",
        Filters=[{"Name": "instance-type", "Values": list(types)}],
    )
    zones: dict[str, set[str]] = {name: set() for name in types}
    for page in pages:
        for offering in page["InstanceTypeOfferings"]:
            zones[str(offering["InstanceType"])].add(offering["Location"])
    return {name: frozenset(offered) for name, offered in zones.items()}


def type_error(config: ProvisionConfig, instance_type: str, problem: str, *, hint: str) -> ConfigError:
    """The error for a type that cannot be had or does not fit; names the key that it stands under. Pure."""
    if instance_type == config.instance_type:
        return setting_error(config, "instance_type", problem, hint=hint)
    return ConfigError(f'[provision] instance_types, "{instance_type}": {problem}', hint=hint)


def _facts(name: str, info: InstanceTypeInfoTypeDef) -> TypeFacts:
    gpus = info.get("GpuInfo", {}).get("Gpus", [])
    listed = ", ".join(f"{gpu['Count']}x {gpu['Manufacturer']} {gpu['Name']}" for gpu in gpus)
    return TypeFacts(
        name=name,
        architecture="x86_64" if "x86_64" in info["ProcessorInfo"]["SupportedArchitectures"] else "arm64",
        vcpus=info["VCpuInfo"]["DefaultVCpus"],
        gpus=listed or None,
        gpu_makers=frozenset(gpu["Manufacturer"] for gpu in gpus),
        in_cluster_placement="cluster" in info.get("PlacementGroupInfo", {}).get("SupportedStrategies", []),
        efa=info.get("NetworkInfo", {}).get("EfaSupported", False),
        on_spot="spot" in info.get("SupportedUsageClasses", []),
    )
