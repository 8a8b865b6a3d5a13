"""The [provision] table of cluster.toml: what to launch, where, and who may reach it."""

import json
import re
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from ipaddress import IPv4Network
from typing import Annotated, Literal

from msgspec import Meta, field

from foundation.errors import ConfigError
from foundation.setting_types import ALONE, Settings, Shape
from provision.model import MAX_NODES, Market, SshAddress

NAME_PATTERN: re.Pattern[str] = re.compile(r"[a-z][a-z0-9-]{0,31}")
"""A cluster's name, for fullmatch. The name becomes part of EC2 names, tags, file names and host names."""

_WIDEST_SSH_PREFIX = 8


def _check_ssh_from(value: str) -> str:
    """Returns `auto`, or the network in its normal form: 203.0.113.7 becomes 203.0.113.7/32."""
    if value == "auto":
        return value
    allowed = '"auto" (this machine\'s public address) or an IPv4 network such as "203.0.113.0/24"'
    try:
        network = IPv4Network(value)
    except ValueError as error:
        raise ValueError(f"must be {allowed}") from error
    if network.prefixlen < _WIDEST_SSH_PREFIX:
        raise ValueError(
            f"would open ssh to {network.num_addresses:,} addresses; must be {allowed}, no wider than "
            f"/{_WIDEST_SSH_PREFIX}",
        )
    return str(network)


InstanceType = Annotated[
    str,
    Shape(r"[a-z][a-z0-9-]*\.[a-z0-9-]+", 'an EC2 instance type such as "c5.xlarge" or "g5.xlarge"'),
]


Region = Annotated[
    str,
    Shape(r"[a-z]{2}(-[a-z]+)+-[0-9]{1,2}", 'an AWS region such as "us-east-1"'),
]


TagKey = Annotated[
    str,
    Shape(
        r"(?![Aa][Ww][Ss]:|[Cc]luster:|[Nn]ame$)[A-Za-z0-9+=._:@-]{1,128}",
        'a key of letters, digits and + - = . _ : @, other than "Name", "aws:..." and "cluster:..."',
    ),
]
"""As instances have their tags in their metadata, and roles have them, too
(https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/Using_Tags.html#tag-restrictions)."""

TagValue = Annotated[str, Shape(r"[\w +=./:@-]{0,256}", "at most 256 letters, digits, spaces and + - = . _ / : @")]


class ProvisionConfig(Settings, frozen=True, kw_only=True):
    """The resources that `cluster up` provisions. Every setting has a default."""

    region: Annotated[Region, Meta(description="The AWS region of all resources.")] = "us-east-1"
    regions: Annotated[
        tuple[Region, ...],
        Meta(
            description="Other regions to try, in this order, when `region` has no capacity, too low a quota, or does "
            "not offer the types. All nodes of a cluster are in one region; all commands find it.",
        ),
    ] = ()
    nodes: Annotated[
        int,
        Meta(
            ge=0,
            le=MAX_NODES,
            description=f"The number of instances, 0 to {MAX_NODES}. node-0 is the head: the node that starts the "
            "job, and a worker like the others. `cluster up` needs at least 1.",
        ),
    ] = 2
    instance_type: Annotated[InstanceType, Meta(description="The EC2 instance type of every node.")] = "c5.xlarge"
    instance_types: Annotated[
        tuple[InstanceType, ...],
        Meta(
            description="Other types to try, in this order, when AWS has no capacity for instance_type. All nodes of "
            "a cluster have the same type.",
        ),
    ] = ()
    market: Annotated[
        tuple[Market, ...],
        ALONE,
        Meta(
            description='"on-demand", "spot", or a list of both in the order in which they are tried. Spot '
            "instances cost less, and AWS may end them at two minutes' notice.",
        ),
    ] = ("on-demand",)
    reservation: Annotated[
        str,
        Shape(r"none|cr-[0-9a-f]{8,17}", '"none" or a capacity reservation such as "cr-0123456789abcdef0"'),
        Meta(
            description="An On-Demand Capacity Reservation or a Capacity Block, by its id: it is tried first, before "
            "every market. Its instance type must be one of the types above.",
        ),
    ] = "none"
    min_nodes: Annotated[
        Literal["all"] | Annotated[int, Meta(ge=1, le=MAX_NODES)],
        Meta(
            description='"all": launch `nodes` instances or none. A number up to `nodes`: when AWS lacks capacity, '
            "accept this many.",
        ),
    ] = "all"
    capacity_wait_s: Annotated[
        int,
        Meta(
            ge=0,
            le=86400,
            description="When no zone, type and market has capacity: how many seconds to keep retrying them, 0 to "
            "86400.",
        ),
    ] = 0
    placement_group: Annotated[
        Literal["auto", "none"],
        Meta(
            description='"auto": launch more than one node close together, in a cluster placement group, if the type '
            'supports it; "none": anywhere in the zone.',
        ),
    ] = "auto"
    efa: Annotated[
        bool, Meta(description="Give every node an Elastic Fabric Adapter. `up` rejects types that have none.")
    ] = False
    instance_profile: Annotated[
        str,
        Shape(r"none|auto|[A-Za-z0-9+=,.@_-]{1,128}", '"none", "auto" or the name of an instance profile'),
        Meta(
            description='What the nodes themselves may do in AWS. "none": nothing; jobs get temporary credentials '
            'derived from yours. "auto": `up` makes a role for the nodes and their jobs that can only read [data] url, '
            "write [data] results, and launch and end nodes of this cluster. Or the name of an existing instance "
            "profile.",
        ),
    ] = "none"
    ami: Annotated[
        str,
        Shape(r"auto|baked|ami-[0-9a-f]{8,17}", '"auto", "baked" or an image id such as "ami-0123456789abcdef0"'),
        Meta(
            description='The machine image. "auto" takes the newest Ubuntu 22.04: AWS\'s Deep Learning Base AMI '
            "(with NVIDIA's driver) for an instance type with GPUs, Canonical's own for one without. "
            '"baked" takes the newest one of `cluster image bake` that fits.',
        ),
    ] = "auto"
    user: Annotated[
        str,
        Shape(r"[a-z_][a-z0-9_-]{0,31}", 'a Linux user name such as "ubuntu"'),
        Meta(description="The user to log in as; the image gives this user the key pair."),
    ] = "ubuntu"
    volume_size_gib: Annotated[
        int,
        Meta(
            ge=8,
            le=16384,
            description="The size of each node's root volume in GiB, 8 to 16384: gp3, encrypted, deleted with "
            "its instance.",
        ),
    ] = 100
    ssh_from: Annotated[
        str,
        _check_ssh_from,
        Meta(
            description='Who may reach the nodes by ssh: an IPv4 network such as "203.0.113.0/24", or "auto" for '
            "this machine's public address. Nothing else is open to the outside.",
        ),
    ] = "auto"
    subnet_id: Annotated[
        str,
        Shape(r"auto|subnet-[0-9a-f]{8,17}", '"auto" or a subnet id such as "subnet-0123456789abcdef0"'),
        Meta(
            description='The subnet of all nodes. "auto" takes a default subnet in a zone that offers the instance '
            "type.",
        ),
    ] = "auto"
    ssh_address: Annotated[
        SshAddress,
        Meta(
            description='The address that this machine connects to: "public", or "private" from within the VPC or '
            "over a VPN (the nodes then get no public address).",
        ),
    ] = "public"

    tags: Annotated[
        dict[TagKey, TagValue],
        Meta(
            description="More tags of everything that `cluster up` creates, which a policy of the account or its cost "
            'allocation needs: { CostCenter = "4711" }.',
        ),
    ] = field(default_factory=dict)

    def conflicts(self, given: AbstractSet[str]) -> Iterator[str]:  # noqa: ARG002 - includes defaults
        """Yields a message for each invalid combination of valid settings."""
        for key, listed in (("instance_types", all_types(self)), ("market", self.market)):
            if not listed or len(set(listed)) != len(listed):
                yield f"{key} is empty or has duplicates: {', '.join(listed) or '[]'}"
        if len({self.region, *self.regions}) != 1 + len(self.regions):
            yield f"regions has duplicates, or names region itself: {', '.join((self.region, *self.regions))}"
        for key in ("subnet_id", "ami"):
            if self.regions and getattr(self, key) != "auto":
                yield f'regions needs {key} = "auto": {getattr(self, key)} is in one region only'
        if self.min_nodes != "all" and self.min_nodes > self.nodes:
            yield f"min_nodes = {self.min_nodes} is greater than nodes = {self.nodes}"
        if self.ssh_address == "private" and self.ssh_from == "auto":
            yield (
                'ssh_address = "private" needs a network in ssh_from, such as "10.0.0.0/16": "auto" is this '
                "machine's public address, not its address in the VPC"
            )


def all_types(config: ProvisionConfig) -> tuple[str, ...]:
    """The instance types in the order in which they are tried."""
    return (config.instance_type, *config.instance_types)


def all_regions(config: ProvisionConfig) -> tuple[str, ...]:
    """The regions in the order in which they are tried."""
    return (config.region, *config.regions)


def setting_error(config: ProvisionConfig, key: str, problem: str, *, hint: str) -> ConfigError:
    """The error for a well-formed setting that AWS cannot satisfy."""
    return ConfigError(f"[provision] {key} = {json.dumps(getattr(config, key))}: {problem}", hint=hint)
