"""What a cluster is made of, as EC2 shows it: frozen values, no calls."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from foundation.errors import NotFoundError

SshAddress = Literal["public", "private"]
Market = Literal["on-demand", "spot"]
Role = Literal["head", "worker"]
InstanceState = Literal["pending", "running", "shutting-down", "terminated", "stopping", "stopped"]

MAX_NODES = 1000
"""One RunInstances and one TerminateInstances call take no more
(https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_TerminateInstances.html)."""
TAG_NAME = "cluster:name"
TAG_ROLE = "cluster:role"
TAG_OWNER = "cluster:owner"
TAG_INDEX = "cluster:index"
TAG_RAN = "cluster:ran"
MAX_TAG_LENGTH = 256
"""Characters of a tag's value (https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/Using_Tags.html)."""


def resource_name(name: str) -> str:
    """The name of the key pair, the security group and the placement group of the cluster `name`."""
    return f"cluster-{name}"


def profile_name(name: str, *, region: str) -> str:
    """The name of the cluster's role and instance profile: IAM has one set of names for all regions."""
    return f"cluster-{region}-{name}"


def federated_name(name: str) -> str:
    """The name by which AWS knows who uses the temporary credentials of the cluster's jobs: 32 characters at most.

    https://docs.aws.amazon.com/STS/latest/APIReference/API_GetFederationToken.html
    """
    return f"cluster-{name}"[:32]


def tags(*, name: str, owner: str, role: str) -> dict[str, str]:
    """The tags of everything that belongs to the cluster `name`. owner: an ARN."""
    return {TAG_NAME: name, TAG_ROLE: role, TAG_OWNER: owner[:MAX_TAG_LENGTH], "Name": resource_name(name)}


@dataclass(frozen=True, kw_only=True, slots=True)
class Instance:
    """An instance with a cluster's tag that has not been told to end.

    launched_at: when EC2 first launched it, in UTC; started_at: when it last began to run.
    ran: its tag cluster:ran, see provision/pause.py. volume_ids: of its disks.
    """

    instance_id: str
    state: InstanceState
    private_ip: str | None
    public_ip: str | None
    instance_type: str
    zone: str
    launched_at: datetime
    subnet_id: str | None = None
    vpc_id: str | None = None
    state_reason: str | None = None
    market: Market = "on-demand"
    started_at: datetime | None = None
    ran: str | None = None
    profile_arn: str | None = None
    volume_ids: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Node(Instance):
    """A node of a cluster: an instance that provision/membership.py trusts."""

    index: int
    role: Role

    @property
    def name(self) -> str:
        """What the command line calls it: node-0, node-1, ..."""
        return f"node-{self.index}"

    def address(self, kind: SshAddress) -> str | None:
        """The address to reach it at from this machine; None while EC2 has given it none."""
        return self.public_ip if kind == "public" else self.private_ip


@dataclass(frozen=True, kw_only=True, slots=True)
class UntrustedInstance(Instance):
    """An instance that carries a cluster's tag and is not one of its nodes: nothing is sent to it.

    owner: its tag cluster:owner, which anyone can choose. is_known: this machine launched, adopted or pinned it.
    problems: why it cannot be a node, whoever launched it; empty when `cluster adopt` would make it one.
    """

    owner: str | None
    image_id: str
    key_name: str | None
    group_ids: tuple[str, ...]
    is_known: bool
    problems: tuple[str, ...] = ()

    @property
    def why(self) -> str:
        """Why it is not trusted, in words."""
        return "; ".join([*(() if self.is_known else ("not launched by this machine",)), *self.problems])


@dataclass(frozen=True, kw_only=True, slots=True)
class KeyPair:
    """A key pair in EC2 that has the cluster's name; `ours`: it carries the cluster's tag as well.

    public_key: type and body as in an authorized_keys line, without comment.
    """

    key_name: str
    public_key: str | None
    ours: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class SecurityGroup:
    """A security group that has the cluster's name; `ours`: it carries the cluster's tag as well.

    ssh_from: the networks of the ssh rules that this program made, rules made by hand left out.
    ssh_open_to: all networks that may reach 22/tcp, whoever made the rule.
    open_to_members: everything is allowed in from its members; egress_to_members: and out to them, by a rule
    that names the group, as EFA needs it.
    """

    group_id: str
    vpc_id: str
    ours: bool
    ssh_from: tuple[str, ...]
    ssh_open_to: tuple[str, ...]
    open_to_members: bool
    egress_to_members: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Upload:
    """A multipart upload to S3 that was begun and not completed: its parts cost as objects do.

    idle_s: seconds since its newest part arrived. by_node: one of the cluster's nodes has begun it.
    """

    bucket: str
    key: str
    upload_id: str
    idle_s: float
    by_node: bool = False

    @property
    def url(self) -> str:
        """Where it goes."""
        return f"s3://{self.bucket}/{self.key}"


@dataclass(frozen=True, kw_only=True, slots=True)
class ClusterState:
    """All of one cluster that EC2 knows of.

    nodes: live instances that are trusted, in the order of their index; untrusted: the other live instances.
    ending: ids of instances that are shutting down.
    ended: id -> why, for those that are shutting down or terminated and that EC2 still shows.
    security_groups: those that have the cluster's name, at most one in each VPC.
    found: what `up` and `down` have found besides, by kind (provision/resources/table.py).
    """

    name: str
    nodes: tuple[Node, ...] = ()
    untrusted: tuple[UntrustedInstance, ...] = ()
    ending: tuple[str, ...] = ()
    ended: Mapping[str, str] = field(default_factory=dict)
    key_pair: KeyPair | None = None
    security_groups: tuple[SecurityGroup, ...] = ()
    found: Mapping[str, Any] = field(default_factory=dict)

    @property
    def security_group(self) -> SecurityGroup | None:
        """The group that is ours, if there is one."""
        return next((group for group in self.security_groups if group.ours), None)

    @property
    def head(self) -> Node | None:
        """The node that launch.py runs on."""
        return next((node for node in self.nodes if node.role == "head"), None)

    @property
    def exists(self) -> bool:
        """Whether EC2 has anything of this cluster."""
        key_is_ours = self.key_pair is not None and self.key_pair.ours
        return bool(self.nodes or self.ending or self.security_group or key_is_ours)

    def node(self, name: str) -> Node:
        """The node called `name` (node-0) or with that instance id. Raises NotFoundError."""
        for node in self.nodes:
            if name in {node.name, node.instance_id}:
                return node
        known = ", ".join(node.name for node in self.nodes) or "none"
        raise NotFoundError(
            f"cluster {self.name} has no node called {name}; it has: {known}",
            hint="cluster status",
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Caller:
    """Who is asking, and from where. owner: an ARN. ssh_from: the network that may reach the nodes by ssh."""

    region: str
    account_id: str
    owner: str
    ssh_from: str


@dataclass(frozen=True, kw_only=True, slots=True)
class LaunchOption:
    """One way to get the nodes: a market, a type and a zone, with every `auto` of the configuration resolved.

    architecture: x86_64 or arm64. root_device: the image's root device name. image_created_at: None when
    AWS does not say. placement: whether the nodes go into the cluster's placement group. efa: whether they
    get an Elastic Fabric Adapter. usd_per_hour: of one node; None when it cannot be had.
    """

    market: Market
    instance_type: str
    architecture: str
    vcpus: int
    gpus: str | None
    image_id: str
    image_name: str
    image_created_at: datetime | None
    root_device: str
    subnet_id: str
    vpc_id: str
    zone: str
    free_addresses: int
    placement: bool = False
    efa: bool = False
    usd_per_hour: float | None = None

    @property
    def label(self) -> str:
        """In a few words."""
        return f"{self.instance_type} {'on spot' if self.market == 'spot' else 'on demand'} in {self.zone}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Quota:
    """A limit of the account on the vCPUs that run at once, of a kind of instance types and a market.

    needed, in_use and limit are vCPUs; limit and in_use are None when they cannot be had, and `unknown` says
    why. needed: of the whole launch.
    """

    code: str
    name: str
    needed: int
    limit: float | None
    in_use: int | None
    unknown: str | None = None

    @property
    def suffices(self) -> bool:
        """Whether the launch fits; an unknown limit is not known to be in the way."""
        return self.limit is None or (self.in_use or 0) + self.needed <= self.limit


@dataclass(frozen=True, kw_only=True, slots=True)
class Permissions:
    """What the caller may do, of all that `up` and `down` will call: actions such as ec2:RunInstances.

    unknown: those that a dry run could not tell about. without: those that are missing, and that can be done without.
    """

    allowed: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    without: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Preflight:
    """What was found out before a launch. options: in the order in which they are tried, never empty.

    skipped: why other ways are not tried, in words. public_address: the nodes get one.
    volume_usd_per_gib_month: of the disks; None when it cannot be had.
    """

    options: tuple[LaunchOption, ...]
    skipped: tuple[str, ...] = ()
    quotas: tuple[Quota, ...] = ()
    permissions: Permissions = Permissions()
    public_address: bool = True
    volume_usd_per_gib_month: float | None = None


def count(number: int, noun: str, plural: str | None = None) -> str:
    """1 node, 2 nodes."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


def format_indices(indices: Iterable[int]) -> str:
    """Indices as text: 0-3,7 for 0, 1, 2, 3 and 7."""
    runs: list[tuple[int, int]] = []
    for index in sorted(set(indices)):
        if runs and runs[-1][1] == index - 1:
            runs[-1] = (runs[-1][0], index)
        else:
            runs.append((index, index))
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def parse_indices(text: str) -> tuple[int, ...]:
    """The reverse of format_indices; () when the text is not one of its results."""
    indices: list[int] = []
    for run in text.split(","):
        first, _, last = run.partition("-")
        if not first.isdecimal() or not (last or first).isdecimal() or int(last or first) >= MAX_NODES:
            return ()
        indices.extend(range(int(first), int(last or first) + 1))
    return tuple(indices) if format_indices(indices) == text else ()
