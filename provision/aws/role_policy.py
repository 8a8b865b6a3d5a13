"""The policy of the nodes' role, `instance_profile = "auto"`: the least permissions that nodes need in AWS. Pure.

A node uses its own folders of S3, terminates nodes of its own cluster (provision/lease/), and launches replacements for
lost nodes (cluster/recovery/). Anyone who can run a program on a node can do the same. The resources and condition keys
of each action: https://docs.aws.amazon.com/service-authorization/latest/reference/list_amazonec2.html
"""

from collections.abc import Mapping
from typing import Any

from provision.aws.iam_policy import (
    S3Scope,
    Statement,
    allow,
    allow_passing,
    partition_of,
    render_document,
    s3_statements,
)
from provision.config import ProvisionConfig, all_types
from provision.model import TAG_INDEX, TAG_LEASE, TAG_NAME, TAG_OWNER, profile_name, resource_name, tags
from provision.preflight.machines import OWNERS

Condition = Mapping[str, Mapping[str, Any]]

MAX_POLICY_LENGTH = 10240
"""The maximum of characters of all inline policies of a role, without white space
(https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_iam-quotas.html)."""

_LAUNCH_LOOKS = (
    "ec2:DescribeCapacityReservations",
    "ec2:DescribeImages",
    "ec2:DescribeInstanceTypeOfferings",
    "ec2:DescribeInstanceTypes",
    "ec2:DescribeKeyPairs",
    "ec2:DescribePlacementGroups",
    "ec2:DescribeSecurityGroups",
    "ec2:DescribeSpotPriceHistory",
    "ec2:DescribeSubnets",
    "ec2:DescribeVolumes",
)
"""The reads for launching a replacement node. Not ec2:Describe*: DescribeInstanceAttribute shows user data."""


def render_role_policy(
    config: ProvisionConfig,
    *,
    name: str,
    region: str,
    data_url: str | None,
    results_url: str | None,
    replaces_nodes: bool,
) -> str:
    """Returns the policy of the role of the nodes of the cluster `name`, as JSON.

    replaces_nodes: the role may launch replacements for lost nodes. data_url, to read below it, and results_url, to
    write and read below it, are "s3://BUCKET/FOLDER/". Raises the errors of s3_statements.
    """
    statements = s3_statements(S3Scope(data_url=data_url, results_url=results_url), region=region)
    ours: Condition = {"StringEquals": {f"aws:ResourceTag/{TAG_NAME}": name}}
    here: Condition = {"StringEquals": {"aws:RequestedRegion": region}}
    instances = f"arn:{partition_of(region)}:ec2:{region}:*:instance/*"
    statements.append(allow("FindNodes", ["ec2:DescribeInstances"], ["*"], here))
    if replaces_nodes:
        statements.append(allow("EndNodes", ["ec2:TerminateInstances"], [instances], ours))
        statements += _launch_statements(config, name=name, region=region, here=here, ours=ours)
    return render_document(statements)


def _launch_statements(
    config: ProvisionConfig, *, name: str, region: str, here: Condition, ours: Condition
) -> list[Statement]:
    """Allows launching only nodes of this cluster: its image, types, markets and tags, its group, key and role.

    EC2 refuses a subnet outside the group's VPC. An instance profile is limited by the role that it passes. No
    condition key shows whether a launch sets termination protection: `down` lifts it (TerminateInstances).
    """
    partition = partition_of(region)

    def ec2(*resources: str) -> list[str]:
        return [f"arn:{partition}:ec2:{region}:*:{one}" for one in resources]

    fixed = {**config.tags, **tags(name=name, owner="", role="node")}
    keys = {"aws:TagKeys": [*fixed, TAG_INDEX, TAG_LEASE]}
    values = {f"aws:RequestTag/{key}": value for key, value in fixed.items() if key != TAG_OWNER}

    def tagged(more: Mapping[str, Any]) -> Condition:
        return {"StringEquals": {**values, **more}, "ForAllValues:StringEquals": keys}

    markets = {*config.market, *(("on-demand", "capacity-block") if config.reservation != "none" else ())}
    typed = tagged({"ec2:InstanceType": list(all_types(config)), "ec2:InstanceMarketType": sorted(markets)})
    at_launch = tagged({"ec2:CreateAction": "RunInstances"})
    image = f"arn:{partition}:ec2:{region}::image/{'*' if config.ami in {'auto', 'baked'} else config.ami}"
    owners: Condition = {"StringEquals": {"ec2:Owner": list(OWNERS[partition])}}
    owned = {"auto": owners, "baked": ours}.get(config.ami)
    subnet = f"subnet/{'*' if config.subnet_id == 'auto' else config.subnet_id}"
    # A spot request that RunInstances makes has no condition keys.
    requests = ("spot-instances-request/*",) if "spot" in config.market else ()
    if config.reservation != "none":
        requests = (*requests, f"capacity-reservation/{config.reservation}")
    named = (f"key-pair/{resource_name(name)}", f"placement-group/{resource_name(name)}")
    created = ("volume/*", "network-interface/*")
    role = f"arn:{partition}:iam::*:role/{profile_name(name, region=region)}"
    return [
        allow("LookForPlaces", list(_LAUNCH_LOOKS), ["*"], here),
        allow("FindHostKeys", ["ec2:GetConsoleOutput"], ec2("instance/*"), ours),
        allow("FindPrices", ["pricing:GetProducts"], ["*"]),
        allow("LaunchNodes", ["ec2:RunInstances"], ec2("instance/*"), typed),
        allow("LaunchDisks", ["ec2:RunInstances"], ec2(*created), tagged({})),
        allow("LaunchImage", ["ec2:RunInstances"], [image], owned),
        allow("LaunchInGroup", ["ec2:RunInstances"], ec2("security-group/*"), ours),
        allow("LaunchWith", ["ec2:RunInstances"], ec2(subnet, *named, *requests)),
        allow("TagWhatIsLaunched", ["ec2:CreateTags"], ec2("instance/*", *created, *requests[:1]), at_launch),
        allow_passing(role, region=region),
    ]
