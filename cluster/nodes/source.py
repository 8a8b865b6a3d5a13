"""Where a cluster's nodes come from: EC2 (ec2.py), or a list of existing hosts (hosts.py).

Commands that use nodes know only these two classes. Commands that launch, pause or delete instances use EC2 directly.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager

from bootstrap.ssh.connection import NodeConnection
from bootstrap.ssh.connections import Connections
from bootstrap.ssh.host import Host
from foundation.errors import ClusterError, NotFoundError
from provision.volumes.source import MountSource
from train.job.selection import Candidate, select_nodes

ConnectToOther = Callable[[Host], NodeConnection]


class Nodes(ABC):
    """The nodes of a cluster, as its source has described them.

    names: all of them, the head's first. excluded: those that no job may use.
    """

    def __init__(self, cluster: str, names: tuple[str, ...]) -> None:
        self.cluster = cluster
        self.names = names
        self.excluded: frozenset[str] = frozenset()

    @abstractmethod
    def runs(self, name: str) -> bool:
        """Whether a node may run processes."""

    @abstractmethod
    def find_host(self, name: str) -> Host:
        """A running node as ssh sees it. Raises ClusterError if it is not running or has no address."""

    @abstractmethod
    def find_hosts(self) -> tuple[Host, ...]:
        """All nodes as ssh sees them, the head first. Raises ClusterError if one cannot be used."""

    @abstractmethod
    def no_nodes(self) -> ClusterError:
        """The error for a cluster without nodes."""

    def find_gone(self, ids: Iterable[str]) -> list[str]:  # noqa: ARG002 - for the classes below this one
        """Those of these nodes' ids that no longer run, and so have no processes."""
        return []

    def find_name(self, word: str) -> str | None:
        """The name of the node that a word of the command line means."""
        return word if word in self.names else None

    @property
    def job_hosts(self) -> tuple[str, ...]:
        """The value of [train] hosts for a job that does not set it; (): every node once."""
        return ()

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        """The nodes, as [train] nodes selects among them."""
        return tuple(Candidate(name=name) for name in self.names)

    def select(self, selection: int | str, *, requested: int) -> tuple[str, ...]:
        """The value of [train] hosts for [train] nodes; (): every node once. Raises TooFewNodesError."""
        candidates = [one for one in self.candidates if one.name not in self.excluded]
        chosen = select_nodes(selection, candidates, requested=requested)
        if chosen == self.names:
            return self.job_hosts
        return tuple(word for word in self.job_hosts or self.names if self.find_name(word) in chosen)

    @property
    def has_role(self) -> bool:
        """Whether the head is an instance with a role."""
        return False

    @property
    def instance_types(self) -> dict[str, str]:
        """The nodes' instance types by name, as far as they have one."""
        return {}

    def find_warnings(self) -> Iterator[str]:
        """What a user should know before these nodes are used."""
        yield from ()

    def find_differences(self) -> Iterator[str]:
        """How the nodes differ from cluster.toml."""
        yield from ()

    def choose(self, words: Sequence[str] = ()) -> tuple[str, ...]:
        """The names of the nodes that these words mean, or all, the head first. Raises NotFoundError."""
        if not self.names:
            raise self.no_nodes()
        chosen = set()
        for word in words:
            name = self.find_name(word)
            if name is None:
                raise NotFoundError(
                    f"cluster {self.cluster} has no node {word}", hint=f"one of: {', '.join(self.names)}"
                )
            chosen.add(name)
        return tuple(name for name in self.names if not words or name in chosen)


class NodeSource(ABC):
    """Describes a cluster's nodes, and connects to them. instance_profile: the nodes' own in AWS, or "none"."""

    instance_profile = "none"

    @abstractmethod
    def describe(self) -> Nodes:
        """The cluster's nodes. Raises ClusterError's kinds."""

    @abstractmethod
    def check_access(self) -> None:
        """Raises ClusterError when this machine cannot log in to the nodes."""

    @abstractmethod
    def connect(self, nodes: Nodes, host: Host, *, wait_s: float) -> NodeConnection:
        """Connect to one node, which may take wait_s seconds to answer. Raises ConnectError, ClusterError."""

    @abstractmethod
    def connect_again(self, host: Host) -> NodeConnection:
        """Connect to a node that may have moved. Raises HeadGoneError if it no longer runs, ClusterError's kinds."""

    @abstractmethod
    def open_connections(self, nodes: Nodes, *, wait_s: float) -> AbstractContextManager[Connections]:
        """Connections to the nodes, without setting them up. Raises ClusterError when none is possible."""

    # -- for the set-up

    @abstractmethod
    def open_for_set_up(
        self, find_nodes: Callable[[], Nodes], *, wait_s: float, connect_to_other: ConnectToOther
    ) -> AbstractContextManager[Connections]:
        """Connections to nodes that are to be set up, and to the user's own hosts. Raises ClusterError."""

    @abstractmethod
    def begin(self, connections: Connections) -> None:
        """Start connecting before the nodes are described, where that is possible."""

    @abstractmethod
    def settle(self, hosts: tuple[Host, ...], connections: Connections) -> tuple[Host, ...]:
        """The hosts, with the addresses at which nodes reach each other. Raises ClusterError."""

    @abstractmethod
    def describe_mounts(self, nodes: Nodes) -> tuple[MountSource, ...]:
        """What the nodes mount, in the order of [[volumes]]. Raises ClusterError's kinds."""

    @abstractmethod
    def keep(self, hosts: Sequence[Host], *, left_out: Sequence[Host] = ()) -> None:
        """Remember hosts that have been set up, as far as they are nodes. Raises ClusterError.

        left_out: hosts that this command has not set up; an earlier one may have.
        """
