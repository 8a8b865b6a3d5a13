"""The subnets where nodes could be launched, and what prevents it. Only reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from foundation.errors import NoCapacityError
from provision.config import ProvisionConfig, setting_error
from provision.model import ClusterState

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client
    from mypy_boto3_ec2.type_defs import FilterTypeDef, RouteTableTypeDef, RouteTypeDef, SubnetTypeDef


REMEDY = 'set subnet_id to one that has, or ssh_address = "private" for a machine in the VPC or behind a VPN'
"""The settings of [provision] that help if a subnet has an obstacle."""


class Subnet(Struct, frozen=True, kw_only=True):
    """A subnet. free_addresses: how many further instances it can hold. obstacle: why it cannot have nodes."""

    subnet_id: str
    vpc_id: str
    zone: str
    free_addresses: int
    obstacle: str | None = None


def describe_subnets(ec2: EC2Client, config: ProvisionConfig, state: ClusterState) -> tuple[Subnet, ...]:
    """Returns the subnet of the nodes, the configured one, or the default subnets, of which there may be none.

    They are sorted by zone, so that a repeated launch sends the same request. Raises ConfigError, and boto3's errors.
    """
    of_nodes = {node.subnet_id for node in state.nodes if node.subnet_id}
    if of_nodes:
        found = ec2.describe_subnets(SubnetIds=[min(of_nodes)])["Subnets"]
    elif config.subnet_id != "auto":
        found = _describe_named(ec2, config)
    else:
        found = ec2.describe_subnets(Filters=[{"Name": "default-for-az", "Values": ["true"]}])["Subnets"]
    tables: Sequence[RouteTableTypeDef] | None = None
    if found and config.ssh_address == "public" and not of_nodes:
        vpcs: FilterTypeDef = {"Name": "vpc-id", "Values": sorted({subnet["VpcId"] for subnet in found})}
        pages = ec2.get_paginator("describe_route_tables").paginate(Filters=[vpcs])
        tables = [table for page in pages for table in page["RouteTables"]]
    subnets = (
        Subnet(
            subnet_id=subnet["SubnetId"],
            vpc_id=subnet["VpcId"],
            zone=subnet["AvailabilityZone"],
            free_addresses=subnet["AvailableIpAddressCount"],
            obstacle=find_obstacle(subnet, tables),
        )
        for subnet in found
    )
    return tuple(sorted(subnets, key=lambda subnet: (subnet.zone, subnet.subnet_id)))


def _describe_named(ec2: EC2Client, config: ProvisionConfig) -> list[SubnetTypeDef]:
    # A filter: for an unknown subnet, EC2 returns an empty list, not an error.
    found = ec2.describe_subnets(Filters=[{"Name": "subnet-id", "Values": [config.subnet_id]}])["Subnets"]
    if not found:
        hint = 'set subnet_id = "auto" in cluster.toml, or correct region'
        raise setting_error(config, "subnet_id", f"{config.region} has no such subnet", hint=hint)
    return found


def find_obstacle(subnet: SubnetTypeDef, tables: Sequence[RouteTableTypeDef] | None) -> str | None:
    """Returns why a subnet cannot have nodes; None if it can. Pure.

    tables: the route tables of its VPC; None if the nodes need no public address.
    """
    table = _find_route_table(subnet, tables or ())
    if table is None or any(map(_may_reach_internet, table["Routes"])):
        return None
    return f'has no route to an internet gateway ({table["RouteTableId"]}), which ssh_address = "public" needs'


def _find_route_table(subnet: SubnetTypeDef, tables: Sequence[RouteTableTypeDef]) -> RouteTableTypeDef | None:
    """Returns the subnet's own table, or else its VPC's main table."""
    main = None
    for table in tables:
        for association in table["Associations"] if table["VpcId"] == subnet["VpcId"] else ():
            if association.get("SubnetId") == subnet["SubnetId"]:
                return table
            if association.get("Main", False):
                main = table
    return main


def _may_reach_internet(route: RouteTypeDef) -> bool:
    """Returns whether a route leads to an internet gateway, or to something that may forward to one.

    This is a firewall's endpoint, or the network interface of an appliance.
    """
    if route.get("State") == "blackhole" or "DestinationIpv6CidrBlock" in route:
        return False
    gateway = route.get("GatewayId", "")
    is_firewall = gateway.startswith("vpce-") and "DestinationCidrBlock" in route  # S3's endpoint has a prefix list
    return gateway.startswith("igw-") or is_firewall or "NetworkInterfaceId" in route


def no_default_subnet(config: ProvisionConfig) -> NoCapacityError:
    """Returns the error for an account without default subnets."""
    return NoCapacityError(
        f"{config.region} has no default subnet in this account",
        hint=f"set [provision] subnet_id, or make one: aws ec2 create-default-vpc --region {config.region}",
    )
