"""Resolves every `auto` of the configuration before anything is made. Only reads."""

from __future__ import annotations

import os
import ssl
import urllib.error
import urllib.request
from http.client import HTTPException
from ipaddress import AddressValueError, IPv4Address
from typing import TYPE_CHECKING

from botocore.exceptions import ClientError

from provision.aws import Clients, aws_errors, error_code
from provision.config import ProvisionConfig, setting_error
from provision.errors import AwsError, ClusterError
from provision.images import describe_image
from provision.model import ClusterState, LaunchTarget

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client
    from mypy_boto3_ec2.type_defs import InstanceTypeInfoTypeDef, SubnetTypeDef

CHECKIP_URL = "https://checkip.amazonaws.com"
_CHECKIP_TIMEOUT_S = 10


def find_caller_address() -> IPv4Address:
    """The address that this machine is seen with on the Internet, as checkip.amazonaws.com tells it.

    CLUSTER_CHECKIP_URL names another service of the kind, AWS_CA_BUNDLE further authorities to trust.
    Raises ClusterError when it cannot be had.
    """
    url = os.environ.get("CLUSTER_CHECKIP_URL") or CHECKIP_URL
    hint = 'say it yourself in cluster.toml: [provision] ssh_from = "ADDRESS/32"'
    if not url.startswith("https://"):
        raise ClusterError(f"CLUSTER_CHECKIP_URL is {url}: only https:// can be believed", hint=hint)
    try:
        context = ssl.create_default_context()
        if bundle := os.environ.get("AWS_CA_BUNDLE"):
            context.load_verify_locations(bundle)
        with urllib.request.urlopen(url, timeout=_CHECKIP_TIMEOUT_S, context=context) as reply:  # noqa: S310 - https
            text = reply.read(64).decode("ascii", errors="replace").strip()
        return IPv4Address(text)
    except AddressValueError as error:
        raise ClusterError(f"{url} did not answer with an IPv4 address but with {text!r}", hint=hint) from error
    except (OSError, HTTPException) as error:  # URLError, SSLError and timeouts are OSErrors
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        raise ClusterError(f"cannot find the address of this machine: {url}: {reason}", hint=hint) from error


def describe_launch_target(clients: Clients, *, config: ProvisionConfig, state: ClusterState) -> LaunchTarget:
    """Where and from what the nodes of `config` are launched beside those of `state`.

    Raises ConfigError when a setting cannot be met (it names the key), AwsError, or ClusterError when the
    caller's address cannot be found.
    """
    with aws_errors("asking who we are"):
        identity = clients.sts.get_caller_identity()
    with aws_errors("checking what is to be launched"):
        info = _describe_instance_type(clients.ec2, config)
        architecture = _architecture(info)
        image = describe_image(clients, config, info, architecture)
        missing = config.nodes - len(state.nodes)
        subnet = _choose_subnet(clients.ec2, config, state, free_addresses=max(missing, 0))
    return LaunchTarget(
        region=clients.region,
        account_id=identity["Account"],
        owner=identity["Arn"],
        instance_type=config.instance_type,
        architecture=architecture,
        vcpus=info["VCpuInfo"]["DefaultVCpus"],
        gpus=_gpus(info),
        image_id=image["ImageId"],
        image_name=image.get("Name", "without a name"),
        root_device=image["RootDeviceName"],
        subnet_id=subnet["SubnetId"],
        vpc_id=subnet["VpcId"],
        zone=subnet["AvailabilityZone"],
        ssh_from=f"{find_caller_address()}/32" if config.ssh_from == "auto" else config.ssh_from,
        public_address=config.ssh_address == "public",
    )


def _describe_instance_type(ec2: EC2Client, config: ProvisionConfig) -> InstanceTypeInfoTypeDef:
    hint = "aws ec2 describe-instance-type-offerings lists what a region has"
    try:
        found = ec2.describe_instance_types(InstanceTypes=[config.instance_type])["InstanceTypes"]  # type: ignore[list-item]  # any string; AWS judges
    except ClientError as error:
        if error_code(error) != "InvalidInstanceType":
            raise
        found = []
    if not found:
        raise setting_error(config, "instance_type", f"{config.region} has no such instance type", hint=hint)
    return found[0]


def _architecture(info: InstanceTypeInfoTypeDef) -> str:
    supported = info["ProcessorInfo"]["SupportedArchitectures"]
    return "x86_64" if "x86_64" in supported else "arm64"


def _gpus(info: InstanceTypeInfoTypeDef) -> str | None:
    """4x NVIDIA T4, or None."""
    listed = info.get("GpuInfo", {}).get("Gpus", [])
    return ", ".join(f"{gpu['Count']}x {gpu['Manufacturer']} {gpu['Name']}" for gpu in listed) or None


def _choose_subnet(
    ec2: EC2Client, config: ProvisionConfig, state: ClusterState, *, free_addresses: int
) -> SubnetTypeDef:
    """One subnet for the whole cluster: its nodes', else the one asked for, else the first that serves.

    Always the same one for the same account, so that a repeated launch is the same request.
    """
    of_nodes = {node.subnet_id for node in state.nodes if node.subnet_id}
    if of_nodes:
        return ec2.describe_subnets(SubnetIds=[min(of_nodes)])["Subnets"][0]
    zones = _find_zones(ec2, config)
    if config.subnet_id != "auto":
        return _named_subnet(ec2, config, zones)
    subnets = ec2.describe_subnets(Filters=[{"Name": "default-for-az", "Values": ["true"]}])["Subnets"]
    if not subnets:
        raise AwsError(
            f"{config.region} has no default subnet in this account",
            hint="name one in cluster.toml ([provision] subnet_id), or make one: aws ec2 create-default-vpc",
        )
    serving = [subnet for subnet in subnets if subnet["AvailabilityZone"] in zones]
    if not serving:
        problem = f"offered in {', '.join(sorted(zones)) or 'no zone'} only, where no default subnet is"
        raise setting_error(
            config,
            "instance_type",
            problem,
            hint="take another type, or name a subnet: [provision] subnet_id",
        )
    roomy = [subnet for subnet in serving if subnet["AvailableIpAddressCount"] >= free_addresses]
    if not roomy:
        raise AwsError(
            f"no default subnet of {config.region} has {free_addresses} free addresses",
            hint="name a larger one in cluster.toml: [provision] subnet_id",
        )
    return min(roomy, key=lambda subnet: (subnet["AvailabilityZone"], subnet["SubnetId"]))


def _find_zones(ec2: EC2Client, config: ProvisionConfig) -> frozenset[str]:
    """The zones of the region that offer the instance type."""
    offerings = ec2.describe_instance_type_offerings(
        LocationType="availability-zone",
        Filters=[{"Name": "instance-type", "Values": [config.instance_type]}],
    )
    return frozenset(offering["Location"] for offering in offerings["InstanceTypeOfferings"])


def _named_subnet(ec2: EC2Client, config: ProvisionConfig, zones: frozenset[str]) -> SubnetTypeDef:
    try:
        subnets = ec2.describe_subnets(SubnetIds=[config.subnet_id])["Subnets"]
    except ClientError as error:
        if error_code(error) not in {"InvalidSubnetID.NotFound", "InvalidSubnetID.Malformed"}:
            raise
        subnets = []
    if not subnets:
        problem = f"{config.region} has no such subnet"
        raise setting_error(config, "subnet_id", problem, hint='set subnet_id = "auto" in cluster.toml')
    if subnets[0]["AvailabilityZone"] not in zones:
        problem = f"is in {subnets[0]['AvailabilityZone']}, which does not offer {config.instance_type}"
        raise setting_error(
            config, "subnet_id", problem, hint=f"it is offered in: {', '.join(sorted(zones)) or 'no zone'}"
        )
    return subnets[0]
