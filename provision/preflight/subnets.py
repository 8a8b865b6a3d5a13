"""The subnets that nodes may be launched into: one of them is to hold the whole cluster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from botocore.exceptions import ClientError

from provision.aws import aws_words, error_code
from provision.config import ProvisionConfig, setting_error
from provision.errors import AwsError, ConfigError
from provision.model import ClusterState

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client
    from mypy_boto3_ec2.type_defs import SubnetTypeDef


@dataclass(frozen=True, kw_only=True, slots=True)
class Subnet:
    """A subnet. free_addresses: how many more instances it has room for."""

    subnet_id: str
    vpc_id: str
    zone: str
    free_addresses: int


def describe_subnets(ec2: EC2Client, config: ProvisionConfig, state: ClusterState) -> tuple[Subnet, ...]:
    """The one that the cluster's nodes are in, else the one asked for, else the default subnets; by zone.

    Always in the same order for the same account, so that a repeated launch is the same request; never empty.
    Raises ConfigError, AwsError, and boto3's errors.
    """
    of_nodes = {node.subnet_id for node in state.nodes if node.subnet_id}
    if of_nodes:
        found = ec2.describe_subnets(SubnetIds=[min(of_nodes)])["Subnets"]
    elif config.subnet_id != "auto":
        found = _describe_named(ec2, config)
    else:
        found = ec2.describe_subnets(Filters=[{"Name": "default-for-az", "Values": ["true"]}])["Subnets"]
        if not found:
            raise AwsError(
                f"{config.region} has no default subnet in this account",
                hint="name one in cluster.toml ([provision] subnet_id), or make one: aws ec2 create-default-vpc",
            )
    subnets = (
        Subnet(
            subnet_id=subnet["SubnetId"],
            vpc_id=subnet["VpcId"],
            zone=subnet["AvailabilityZone"],
            free_addresses=subnet["AvailableIpAddressCount"],
        )
        for subnet in found
    )
    return tuple(sorted(subnets, key=lambda subnet: (subnet.zone, subnet.subnet_id)))


def _describe_named(ec2: EC2Client, config: ProvisionConfig) -> list[SubnetTypeDef]:
    try:
        found = ec2.describe_subnets(SubnetIds=[config.subnet_id])["Subnets"]
    except ClientError as error:
        if error_code(error) not in {"InvalidSubnetID.NotFound", "InvalidSubnetID.Malformed"}:
            raise
        raise _no_such_subnet(config, f"AWS says: {aws_words(error)}: ") from error
    if not found:
        raise _no_such_subnet(config, "")
    return found


def _no_such_subnet(config: ProvisionConfig, words: str) -> ConfigError:
    problem = f"{words}{config.region} has no such subnet"
    return setting_error(config, "subnet_id", problem, hint='set subnet_id = "auto" in cluster.toml, or correct region')
