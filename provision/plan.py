"""A plan: steps in their order. Plans are pure; a step's `apply` carries it out (provision/apply.py runs them)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from foundation.progress import Report
from provision.aws.clients import Clients
from provision.config import ProvisionConfig
from provision.files import ClusterFiles
from provision.model import (
    Caller,
    ClusterState,
    LaunchOption,
    Preflight,
    SecurityGroup,
    UntrustedInstance,
    resource_name,
)


@dataclass(kw_only=True, slots=True)
class Context:
    """What the steps of a plan share while they are carried out.

    cluster and owner go into the tags. What this run did: made_group_id is the security group that it made, launched
    the ids of the instances that it launched, option where, and without the indices of the nodes that it did without
    because there was no capacity. groups: the cluster's security groups, once somebody has read them.
    """

    cluster: str
    owner: str
    clients: Clients
    files: ClusterFiles
    report: Report
    made_group_id: str | None = field(default=None, init=False)
    launched: set[str] = field(default_factory=set, init=False)
    option: LaunchOption | None = field(default=None, init=False)
    without: set[int] = field(default_factory=set, init=False)
    groups: tuple[SecurityGroup, ...] | None = field(default=None, init=False)

    def group_id(self, known: str | None) -> str:
        """The security group's id: the one the plan knew, or the one made since."""
        group_id = known or self.made_group_id
        if group_id is None:
            raise ValueError("the plan uses a security group before it makes it")
        return group_id


class Step(ABC):
    """One thing to do, with all that is needed to do it.

    makes, unmakes: the kind of resource that the step makes under a name and without a token, or deletes again. EC2's
    lists may not show what was just made: `down` waits for it.
    """

    __slots__ = ()
    makes: ClassVar[str | None] = None
    unmakes: ClassVar[str | None] = None

    @abstractmethod
    def describe(self) -> str:
        """In a few words."""

    @abstractmethod
    def apply(self, context: Context) -> bool:
        """Carries it out; False when it changed nothing. Raises ClusterError, and boto3's errors."""

    def details(self) -> Iterable[str]:
        """Further lines for a plan that is shown."""
        return ()

    def deletions(self) -> Iterable[tuple[str, Sequence[str]]]:
        """Kinds of resources, and the ids of each that the step deletes."""
        return ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    """What a cluster is to be, and what is there: all that the plans of its resources are made from.

    preflight: None when no node is missing. local_key: the public half of the private key on this machine, None when
    there is none. role_policy: of the role that is made for the nodes, as JSON; None when there is to be none.
    """

    name: str
    config: ProvisionConfig
    state: ClusterState
    caller: Caller
    preflight: Preflight | None = None
    local_key: str | None = None
    role_policy: str | None = None

    @property
    def resource_name(self) -> str:
        """Of the key pair, the security group and the placement group."""
        return resource_name(self.name)

    @property
    def missing(self) -> tuple[int, ...]:
        """The indices of the nodes that are to be launched."""
        return tuple(sorted(set(range(self.config.nodes)) - {node.index for node in self.state.nodes}))

    @property
    def least(self) -> int | None:
        """How many nodes the cluster must have; None: all."""
        return None if self.config.min_nodes == "all" else min(self.config.min_nodes, self.config.nodes)

    @property
    def least_missing(self) -> int:
        """How many of the missing nodes there must be, at least; 0 when the cluster can do without them."""
        staying = sum(node.index < self.config.nodes for node in self.state.nodes)
        return max((self.config.nodes if self.least is None else self.least) - staying, 0)

    @property
    def vpc_id(self) -> str:
        """The VPC that the nodes are in, or will be: all ways to launch are in the same one."""
        if self.preflight is not None:
            return self.preflight.options[0].vpc_id
        return next((node.vpc_id for node in self.state.nodes if node.vpc_id), "")


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """Steps in their order; false when there is nothing to do.

    cluster and owner, an ARN, go into tags. wanted: what a plan that launches nodes was made from, for those who read
    it. left_alone: instances with the cluster's tag that the plan does not touch, because they are not trusted.
    """

    cluster: str
    steps: tuple[Step, ...]
    owner: str = ""
    wanted: Wanted | None = None
    left_alone: tuple[UntrustedInstance, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.steps)
