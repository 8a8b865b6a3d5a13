"""The source of a cluster's nodes: EC2 (ec2.py), or a list of existing hosts (hosts.py).

Commands that use nodes use only these two classes. Commands that launch, pause or delete instances use EC2 directly.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial

from bootstrap.apply import ReadyNode
from bootstrap.ssh.connection import NodeConnection
from bootstrap.ssh.connections import Connections
from bootstrap.ssh.host import Host
from foundation.errors import ClusterError, NotFoundError
from provision.model import Market
from provision.volumes.source import MountSource
from train.job.selection import select_nodes

ANSWER_TIMEOUT_S = 15.0


class Nodes(ABC):
    """The nodes of a cluster, as described by its source.

    names: the names of all nodes, the head's first. excluded: the nodes that no job may use.
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
        """Returns a running node as a host for ssh. Raises ClusterError if it is not running or has no address."""

    @abstractmethod
    def find_hosts(self) -> tuple[Host, ...]:
        """Returns all nodes as hosts for ssh, the head first. Raises ClusterError if one cannot be used."""

    @abstractmethod
    def no_nodes(self) -> ClusterError:
        """Returns the error for a cluster without nodes."""

    def find_gone(self, ids: Iterable[str]) -> list[str]:  # noqa: ARG002 - for subclasses
        """Returns those ids whose nodes no longer run, and therefore have no processes."""
        return []

    def find_name(self, word: str) -> str | None:
        """Returns the name of the node that a word of the command line means; None if there is none."""
        return word if word in self.names else None

    @property
    def job_hosts(self) -> tuple[str, ...]:
        """The value of [train] hosts for a job that does not set it. (): every node once."""
        return ()

    @property
    def markets(self) -> Mapping[str, Market]:
        """The nodes from which [train] nodes selects, with their markets."""
        return dict.fromkeys(self.names, "on-demand")

    def select(self, selection: int | str, *, requested: int) -> tuple[str, ...]:
        """Returns the value of [train] hosts for [train] nodes. (): every node once. Raises ClusterError."""
        candidates = {name: market for name, market in self.markets.items() if name not in self.excluded}
        chosen = select_nodes(selection, candidates, requested=requested)
        if chosen == self.names:
            return self.job_hosts
        return tuple(word for word in self.job_hosts or self.names if self.find_name(word) in chosen)

    def find_warnings(self) -> Iterator[str]:
        """Yields warnings to show before these nodes are used."""
        yield from ()

    def find_differences(self) -> Iterator[str]:
        """Yields the differences between the nodes and cluster.toml."""
        yield from ()

    def choose(self, words: Sequence[str] = ()) -> tuple[str, ...]:
        """Returns the names of the nodes that these words mean, or of all nodes; the head first. Raises NotFoundError.

        Without nodes, raises the error of `no_nodes`.
        """
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
    """Describes a cluster's nodes and connects to them. instance_profile: that of the nodes in AWS, or "none"."""

    instance_profile = "none"

    @abstractmethod
    def describe(self) -> Nodes:
        """Returns the cluster's nodes. Raises ClusterError or a subclass."""

    @abstractmethod
    def connect(self, host: Host, *, wait_s: float) -> NodeConnection:
        """Connects to one node, which may take wait_s seconds to answer. Raises ConnectError, ClusterError."""

    @abstractmethod
    def connect_again(self, host: Host) -> NodeConnection:
        """Connects to a node whose address may have changed.

        Raises HeadGoneError if it no longer runs, ClusterError or a subclass.
        """

    def open_connections(self, *, wait_s: float = ANSWER_TIMEOUT_S) -> Connections:
        """Returns connections to the nodes, without setting them up. They are closed at the end of the block.

        wait_s: how long a node may take to answer, in seconds. Raises ClusterError when none is possible.
        """
        return Connections(partial(self.connect, wait_s=wait_s))

    # -- for the set-up

    @abstractmethod
    def open_for_set_up(self, find_nodes: Callable[[], Nodes], *, wait_s: float) -> Connections:
        """Returns connections to nodes that will be set up. Raises ClusterError."""

    def begin(  # noqa: B027 - not all sources need it
        self, connections: Connections, *, ask_head: Callable[[NodeConnection], None] | None
    ) -> None:
        """Starts to connect before the nodes are described, if that is possible.

        ask_head: called with a connection to the last known head, if it is as this version has set it up.
        """

    def settle(self, hosts: tuple[Host, ...], connections: Connections) -> tuple[Host, ...]:  # noqa: ARG002 - for hosts
        """Returns the hosts with the addresses at which the nodes reach each other. Raises ClusterError."""
        return hosts

    @abstractmethod
    def let_head_in(self, nodes: Sequence[ReadyNode]) -> None:
        """Lets the head, the first of these nodes, log in to all of them. Raises ClusterError or a subclass."""

    @abstractmethod
    def describe_mounts(self, nodes: Nodes) -> tuple[MountSource, ...]:
        """Returns the mounts of the nodes, in the order of [[volumes]]. Raises ClusterError or a subclass."""

    def keep(self, hosts: Sequence[Host], *, left_out: Sequence[Host] = ()) -> None:  # noqa: B027 - not all sources need it
        """Remembers those hosts that are nodes and have been set up. Raises ClusterError.

        left_out: hosts that this command did not set up; an earlier command may have.
        """
