"""A plan: steps in order. Planning is pure; provision/apply.py runs each step's `apply`."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from msgspec import Struct

from foundation.progress import Report
from provision.aws.clients import Clients
from provision.config import ProvisionConfig
from provision.files import ClusterFiles
from provision.lease.config import NO_LEASE, LeaseConfig
from provision.model import (
    Caller,
    ClusterState,
    LaunchOption,
    Preflight,
    SecurityGroup,
    UntrustedInstance,
    resource_name,
)
from provision.volumes.config import VolumeConfig


@dataclass(kw_only=True, slots=True)
class Context:
    """The state that the steps of a plan share while they are applied.

    cluster, owner and `tags` (those of cluster.toml) are written into the tags. groups: the cluster's security groups,
    once read. The other fields record the results of this run. made_group_id: the security group that it created.
    volume_id: the head's volume; made_volume_id: the same, if this run created it. launched: ids of its instances.
    option: where they were launched. without: indices of nodes that it could not launch for lack of capacity.
    """

    cluster: str
    owner: str
    tags: Mapping[str, str]
    clients: Clients
    files: ClusterFiles
    report: Report
    made_group_id: str | None = field(default=None, init=False)
    volume_id: str | None = field(default=None, init=False)
    made_volume_id: str | None = field(default=None, init=False)
    launched: set[str] = field(default_factory=set, init=False)
    option: LaunchOption | None = field(default=None, init=False)
    without: set[int] = field(default_factory=set, init=False)
    groups: tuple[SecurityGroup, ...] | None = field(default=None, init=False)

    def group_id(self, known: str | None) -> str:
        """Returns the security group's id: from the plan, or of the group created since."""
        group_id = known or self.made_group_id
        if group_id is None:
            raise ValueError("the plan uses a security group before it makes it")
        return group_id


class Step(ABC):
    """One step of a plan, with everything that it needs.

    makes: the kind of resource that the step creates without a token. EC2's lists may not show it yet: `down` waits.
    """

    __slots__ = ()
    makes: ClassVar[str | None] = None

    @abstractmethod
    def describe(self) -> str:
        """A short description of the step."""

    @abstractmethod
    def apply(self, context: Context) -> bool:
        """Applies the step. Returns False when it changed nothing. Raises ClusterError and boto3's errors."""

    def details(self) -> Iterable[str]:
        """More lines for the printed plan."""
        return ()

    def deletions(self) -> Iterable[tuple[str, Sequence[str]]]:
        """The resources that the step deletes: kinds, each with its ids."""
        return ()


class Request(Struct, frozen=True, kw_only=True):
    """The cluster that the user wants.

    data_url, results_url: the folders that a role for its nodes may read and write. volumes: the volumes that its nodes
    mount. lease: when it ends by itself. replaces_nodes: such a role may also launch replacements for lost nodes.
    from_head: set if the head itself launches the nodes, and creates nothing else: the authorized_keys line that lets
    the head log in to them. recipe: finds what a baked image must be for. find_spent: finds what a cluster has
    cost, in US dollars; called with ClusterState.exists if it has no nodes, or a budget.
    """

    name: str
    config: ProvisionConfig
    data_url: str | None = None
    results_url: str | None = None
    volumes: tuple[VolumeConfig, ...] = ()
    lease: LeaseConfig = NO_LEASE
    replaces_nodes: bool = False
    from_head: str | None = None
    recipe: Callable[[], str] = str
    find_spent: Callable[[bool], float] = lambda _: 0.0


class World(Struct, frozen=True, kw_only=True):
    """What is asked and what is there: the input of all plans.

    preflight: None when no node is missing. local_key: the public half of this machine's private key, if any.
    role_policy: the policy of the nodes' role, as JSON; None without a role. spent_usd: see Request.find_spent.
    """

    request: Request
    state: ClusterState
    caller: Caller
    preflight: Preflight | None = None
    local_key: str | None = None
    role_policy: str | None = None
    spent_usd: float = 0.0

    @property
    def resource_name(self) -> str:
        """The name of the key pair, the security group and the placement group."""
        return resource_name(self.request.name)

    @property
    def missing(self) -> tuple[int, ...]:
        """The indices of the nodes to launch."""
        return tuple(sorted(set(range(self.request.config.nodes)) - {node.index for node in self.state.nodes}))

    @property
    def least(self) -> int | None:
        """The smallest accepted number of nodes; None: all are required."""
        config = self.request.config
        return None if config.min_nodes == "all" else min(config.min_nodes, config.nodes)

    @property
    def least_missing(self) -> int:
        """How many of the missing nodes must be launched at least; 0 when none is required."""
        least = self.request.config.nodes if self.least is None else self.least
        return max(least - len(self.state.nodes), 0)

    @property
    def vpc_id(self) -> str:
        """The VPC of the nodes: all ways to launch are in the same VPC."""
        if self.preflight is not None:
            return self.preflight.options[0].vpc_id
        return next((node.vpc_id for node in self.state.nodes if node.vpc_id), "")


class Plan(Struct, frozen=True, kw_only=True):
    """Steps in order; false when there is nothing to do.

    cluster, owner (an ARN) and `tags` (those of cluster.toml) are written into tags. world: the input of `up` and
    `resize`, for the printed plan. left_alone: untrusted instances with the cluster's tag, which the plan does not
    touch.
    """

    cluster: str
    steps: tuple[Step, ...]
    owner: str = ""
    tags: Mapping[str, str] = {}
    world: World | None = None
    left_alone: tuple[UntrustedInstance, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.steps)
