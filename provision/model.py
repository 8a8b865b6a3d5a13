"""The parts of a cluster, as EC2 reports them: frozen values, no calls."""

import hashlib
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Literal

from msgspec import Struct, field

from foundation.errors import NotFoundError
from provision.lease.terms import Lease, find_newest

SshAddress = Literal["public", "private"]
Market = Literal["on-demand", "spot"]
Role = Literal["head", "worker"]
InstanceState = Literal["pending", "running", "shutting-down", "terminated", "stopping", "stopped"]

MAX_NODES = 1000
"""The maximum of one RunInstances or TerminateInstances call
(https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_TerminateInstances.html)."""
TAG_NAME = "cluster:name"
TAG_ROLE = "cluster:role"
TAG_OWNER = "cluster:owner"
TAG_INDEX = "cluster:index"
TAG_KEEP = "cluster:keep"
TAG_LEASE = "cluster:lease"
SHARED_ROLE = "shared-volume"
"""The role tag of the volume for [[volumes]] source = "head"."""
MAX_TAG_LENGTH = 256
"""The maximum length of a tag's value (https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/Using_Tags.html)."""


def resource_name(name: str) -> str:
    """The name of the key pair, the security group and the placement group of the cluster `name`."""
    return f"cluster-{name}"


def bake_name(name: str) -> str:
    """The name of the temporary cluster that `cluster image bake` launches for the cluster `name`: no user's choice."""
    return f"bake-{hashlib.sha256(name.encode()).hexdigest()[:12]}"


def profile_name(name: str, *, region: str) -> str:
    """The name of the cluster's role and instance profile. It contains the region, since names in IAM are global."""
    return f"cluster-{region}-{name}"


def federated_name(name: str) -> str:
    """The user name in the temporary credentials of the cluster's jobs: at most 32 characters.

    https://docs.aws.amazon.com/STS/latest/APIReference/API_GetFederationToken.html
    """
    return f"cluster-{name}"[:32]


def domain_of(region: str) -> str:
    """The domain of AWS's addresses in a region."""
    return "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"


def tags(*, name: str, owner: str, role: str) -> dict[str, str]:
    """The tags of every resource of the cluster `name`. owner: an ARN."""
    return {TAG_NAME: name, TAG_ROLE: role, TAG_OWNER: owner[:MAX_TAG_LENGTH], "Name": resource_name(name)}


class Instance(Struct, frozen=True, kw_only=True):
    """An instance with a cluster's tag, as EC2 reports it. What it claims to be, anyone in the account can set.

    launched_at: when EC2 first launched it, in UTC; started_at: when it last started; stopped_at: when a call stopped
    or terminated it, as Unix time, if EC2 says so. is_reclaimed: EC2 ended a spot instance. is_block: it is in a
    Capacity Block, which is paid in advance. image_id: its AMI. own_volume_ids: those that are deleted with it.
    cluster, owner, lease, indices: its tags; indices: of all nodes of its launch, launch_index: its place among them.
    reservation_id: of the RunInstances call.
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
    is_block: bool = False
    is_reclaimed: bool = False
    started_at: datetime | None = None
    stopped_at: float | None = None
    cluster: str | None = None
    owner: str | None = None
    lease: str | None = None
    indices: tuple[int, ...] = ()
    launch_index: int = 0
    reservation_id: str = ""
    client_token: str | None = None
    key_name: str | None = None
    group_ids: tuple[str, ...] = ()
    profile_arn: str | None = None
    image_id: str = ""
    volume_ids: tuple[str, ...] = ()
    own_volume_ids: tuple[str, ...] = ()

    @property
    def tagged_index(self) -> int | None:
        """The index from its tag; None if the tag is missing or invalid."""
        return self.indices[self.launch_index] if self.launch_index < len(self.indices) else None

    @property
    def age_order(self) -> tuple[datetime, int, str]:
        """Sorts instances by their launch."""
        return self.launched_at, self.launch_index, self.instance_id


class Node(Instance, frozen=True, kw_only=True):
    """A node of a cluster: an instance that provision/membership.py trusts."""

    index: int
    role: Role

    @property
    def name(self) -> str:
        """The node's name on the command line: node-0, node-1, ..."""
        return f"node-{self.index}"

    def address(self, kind: SshAddress) -> str | None:
        """The address that this machine connects to; None until EC2 has assigned one."""
        return self.public_ip if kind == "public" else self.private_ip


class UntrustedInstance(Instance, frozen=True, kw_only=True):
    """An instance that carries a cluster's tag but is not one of its nodes: nothing is sent to it.

    is_known: this machine launched, adopted or pinned it. problems: why it cannot be a node, regardless of who launched
    it; empty if `cluster adopt` would make it one.
    """

    is_known: bool
    problems: tuple[str, ...] = ()

    @property
    def why(self) -> str:
        """Why the instance is not trusted, in words."""
        return "; ".join([*(() if self.is_known else ("not launched by this machine",)), *self.problems])


class KeyPair(Struct, frozen=True, kw_only=True):
    """A key pair in EC2 with the cluster's name; `ours`: it also carries the cluster's tag.

    public_key: type and body as in an authorized_keys line, without comment.
    """

    key_name: str
    public_key: str | None
    ours: bool


class SecurityGroup(Struct, frozen=True, kw_only=True):
    """A security group with the cluster's name; `ours`: it also carries the cluster's tag.

    ssh_from: the networks of the ssh rules that this program created, without those created by hand.
    ssh_open_to: all networks that may reach 22/tcp, regardless of who created the rule.
    open_to_members: its members may send it all traffic. egress_to_members: a rule that names the group allows all
    outbound traffic to its members, which EFA needs. lease: its tag cluster:lease.
    """

    group_id: str
    vpc_id: str
    ours: bool
    ssh_from: tuple[str, ...]
    ssh_open_to: tuple[str, ...]
    open_to_members: bool
    egress_to_members: bool = False
    lease: str | None = None


class ClusterState(Struct, frozen=True, kw_only=True):
    """One cluster, as EC2 reports it.

    nodes: trusted live instances, in the order of their index; untrusted: the other live instances.
    ending: ids of instances that are shutting down.
    ended: id -> reason, for instances that are shutting down or terminated and that EC2 still lists.
    outlived: ids of terminated instances that were launched before all nodes. The nodes replaced them, or belong to a
    later cluster.
    security_groups: those with the cluster's name, at most one in each VPC.
    by_token: ClientToken -> ids of the instances that carry it, ended ones included.
    found: further resources that `up` and `down` have found, by kind (provision/resources/table.py).
    In a list of clusters, owner: an ARN, if known; disks_gib: the size of all disks.
    """

    name: str
    nodes: tuple[Node, ...] = ()
    untrusted: tuple[UntrustedInstance, ...] = ()
    ending: tuple[str, ...] = ()
    ended: Mapping[str, str] = field(default_factory=dict)
    outlived: frozenset[str] = frozenset()
    by_token: Mapping[str, frozenset[str]] = field(default_factory=dict)
    key_pair: KeyPair | None = None
    security_groups: tuple[SecurityGroup, ...] = ()
    found: Mapping[str, Any] = field(default_factory=dict)
    owner: str | None = None
    disks_gib: int = 0

    @property
    def instances(self) -> tuple[Instance, ...]:
        """All live instances with the cluster's tag, which all cost money."""
        return (*self.nodes, *self.untrusted)

    @property
    def security_group(self) -> SecurityGroup | None:
        """The group that carries the cluster's tag."""
        return next((group for group in self.security_groups if group.ours), None)

    @property
    def head(self) -> Node | None:
        """The node that starts the job."""
        return next((node for node in self.nodes if node.role == "head"), None)

    @property
    def lease(self) -> Lease | None:
        """When the cluster ends by itself: the newest lease of its nodes and its group. None without a lease."""
        ours = [group.lease for group in self.security_groups if group.ours]
        return find_newest([text for text in (*(node.lease for node in self.nodes), *ours) if text])

    @property
    def exists(self) -> bool:
        """Whether EC2 lists any resource of this cluster."""
        key_is_ours = self.key_pair is not None and self.key_pair.ours
        return bool(self.nodes or self.ending or self.security_group or key_is_ours)

    def node(self, name: str) -> Node:
        """Returns the node called `name` (node-0) or with that instance id. Raises NotFoundError."""
        for node in self.nodes:
            if name in {node.name, node.instance_id}:
                return node
        known = ", ".join(node.name for node in self.nodes) or "none"
        raise NotFoundError(
            f"cluster {self.name} has no node called {name}; it has: {known}",
            hint="cluster status",
        )


class Caller(Struct, frozen=True, kw_only=True):
    """The caller's identity and location. owner: an ARN. ssh_from: the network that may reach the nodes by ssh."""

    region: str
    account_id: str
    owner: str
    ssh_from: str


class LaunchOption(Struct, frozen=True, kw_only=True):
    """One way to launch the nodes: a market, a type and a zone, with every `auto` of the configuration resolved.

    architecture: x86_64 or arm64. gpus: such as "4x NVIDIA T4". root_device: the image's root device name. placement:
    whether the nodes are launched into the cluster's placement group. efa: whether they get an Elastic Fabric Adapter.
    usd_per_hour: of one node, None if unknown. reservation: the capacity reservation that they use, or None; is_block:
    it is a Capacity Block.
    """

    market: Market
    instance_type: str
    architecture: str
    vcpus: int
    gpus: str
    image_id: str
    image_name: str
    image_created_at: datetime
    root_device: str
    subnet_id: str
    vpc_id: str
    zone: str
    free_addresses: int
    placement: bool = False
    efa: bool = False
    usd_per_hour: float | None = None
    reservation: str | None = None
    is_block: bool = False

    @property
    def label(self) -> str:
        """The option in messages: c5.xlarge on demand in us-east-1a."""
        return f"{self.instance_type} {self.how} in {self.zone}"

    @property
    def how(self) -> str:
        """The market in messages: on demand, on spot, in reservation cr-0123, in Capacity Block cr-0123."""
        if self.reservation is not None:
            return f"in {'Capacity Block' if self.is_block else 'reservation'} {self.reservation}"
        return "on spot" if self.market == "spot" else "on demand"


class Quota(Struct, frozen=True, kw_only=True):
    """The account's limit on running vCPUs in a region, for one kind of instance types and one market.

    needed: vCPUs of the whole launch; in_use, limit: vCPUs, None if unknown; `unknown`: why the limit is unknown.
    """

    code: str
    name: str
    region: str
    needed: int
    limit: float | None
    in_use: int | None
    unknown: str | None = None

    @property
    def suffices(self) -> bool:
        """Whether the launch fits; True for an unknown limit."""
        return self.limit is None or (self.in_use or 0) + self.needed <= self.limit


class Permissions(Struct, frozen=True, kw_only=True):
    """The caller's permissions for the calls of `up` and `down`: actions such as ec2:RunInstances.

    unknown: the dry runs were inconclusive.
    """

    allowed: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()


class Preflight(Struct, frozen=True, kw_only=True):
    """The result of the checks before a launch. options: in the order in which they are tried, never empty.

    skipped: other ways to launch, and why they are not tried.
    volume_usd_per_gib_month: None if unknown. mounts: lines about the volumes.
    """

    options: tuple[LaunchOption, ...]
    skipped: tuple[str, ...] = ()
    quotas: tuple[Quota, ...] = ()
    permissions: Permissions = Permissions()
    volume_usd_per_gib_month: float | None = None
    mounts: tuple[str, ...] = ()


def count(number: int, noun: str, plural: str | None = None) -> str:
    """Returns a number with its noun: 1 node, 2 nodes."""
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


def format_indices(indices: Iterable[int]) -> str:
    """Returns indices as text: "0-3,7" for 0, 1, 2, 3 and 7."""
    runs: list[tuple[int, int]] = []
    for index in sorted(set(indices)):
        if runs and runs[-1][1] == index - 1:
            runs[-1] = (runs[-1][0], index)
        else:
            runs.append((index, index))
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)


def parse_indices(text: str) -> tuple[int, ...]:
    """Parses the text of format_indices; returns () when it is not such a text."""
    indices: list[int] = []
    for run in text.split(","):
        first, _, last = run.partition("-")
        if not first.isdecimal() or not (last or first).isdecimal() or int(last or first) >= MAX_NODES:
            return ()
        indices.extend(range(int(first), int(last or first) + 1))
    return tuple(indices) if format_indices(indices) == text else ()
