"""What a cluster is made of, as EC2 shows it: frozen values, no calls."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from provision.config import MAX_NODES, SshAddress
from provision.errors import NotFoundError

Role = Literal["head", "worker"]
InstanceState = Literal["pending", "running", "shutting-down", "terminated", "stopping", "stopped"]

TAG_NAME = "cluster:name"
TAG_ROLE = "cluster:role"
TAG_OWNER = "cluster:owner"
TAG_INDEX = "cluster:index"
MAX_TAG_LENGTH = 256
"""Characters of a tag's value (https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/Using_Tags.html)."""


def resource_name(name: str) -> str:
    """The name of the key pair and of the security group of the cluster `name`."""
    return f"cluster-{name}"


def tags(*, name: str, owner: str, role: str) -> dict[str, str]:
    """The tags of everything that belongs to the cluster `name`. owner: an ARN."""
    return {TAG_NAME: name, TAG_ROLE: role, TAG_OWNER: owner[:MAX_TAG_LENGTH], "Name": resource_name(name)}


@dataclass(frozen=True, kw_only=True, slots=True)
class Node:
    """An instance of a cluster that has not been told to end.

    launched_at: when EC2 launched it, in UTC.
    """

    instance_id: str
    index: int
    role: Role
    state: InstanceState
    private_ip: str | None
    public_ip: str | None
    instance_type: str
    zone: str
    launched_at: datetime
    subnet_id: str | None = None
    state_reason: str | None = None

    @property
    def name(self) -> str:
        """What the command line calls it: node-0, node-1, ..."""
        return f"node-{self.index}"

    def address(self, kind: SshAddress) -> str | None:
        """The address to reach it at from this machine; None while EC2 has given it none."""
        return self.public_ip if kind == "public" else self.private_ip


@dataclass(frozen=True, kw_only=True, slots=True)
class KeyPair:
    """A key pair in EC2 that has the cluster's name; `ours`: it carries the cluster's tag as well.

    public_key: type and body as in an authorized_keys line, without comment.
    """

    key_name: str
    key_pair_id: str
    public_key: str | None
    ours: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class SecurityGroup:
    """A security group that has the cluster's name; `ours`: it carries the cluster's tag as well.

    ssh_from: the networks of the ssh rules that this program made, rules made by hand left out.
    ssh_open_to: all networks that may reach 22/tcp, whoever made the rule.
    open_to_members: everything is allowed between its members.
    """

    group_id: str
    vpc_id: str
    ours: bool
    ssh_from: tuple[str, ...]
    ssh_open_to: tuple[str, ...]
    open_to_members: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class ClusterState:
    """All of one cluster that EC2 knows of.

    nodes: live instances in the order of their index; `ending`: ids of instances that are shutting down.
    security_groups: those that have the cluster's name, at most one in each VPC.
    """

    name: str
    nodes: tuple[Node, ...] = ()
    ending: tuple[str, ...] = ()
    key_pair: KeyPair | None = None
    security_groups: tuple[SecurityGroup, ...] = ()

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
class LaunchTarget:
    """Where and from what nodes are launched: every `auto` of the configuration resolved.

    ssh_from: the network that may reach the nodes by ssh. architecture: x86_64 or arm64.
    root_device: the image's root device name. public_address: the nodes get one.
    """

    region: str
    account_id: str
    owner: str
    instance_type: str
    architecture: str
    vcpus: int
    gpus: str | None
    image_id: str
    image_name: str
    root_device: str
    subnet_id: str
    vpc_id: str
    zone: str
    ssh_from: str
    public_address: bool


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
