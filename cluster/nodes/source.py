"""A cluster's nodes, and their source: EC2 (ec2.py), or a list of existing hosts (hosts.py).

Commands that use nodes use only these two classes. Commands that launch, pause or delete instances use EC2 directly.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial

from msgspec import Struct

from bootstrap.apply import ReadyNode
from bootstrap.ssh.connection import NodeConnection
from bootstrap.ssh.connections import Connections
from bootstrap.ssh.host import Host
from foundation.errors import ClusterError, NotFoundError
from provision.model import ClusterState, Market
from provision.volumes.source import MountSource
from train.job.selection import select_nodes

ANSWER_TIMEOUT_S = 15.0


class Nodes(Struct, kw_only=True):
    """The nodes of a cluster, as described by its source."""

    cluster: str
    missing: ClusterError  # raised in place of the nodes of a cluster that has none
    names: tuple[str, ...] = ()  # of all nodes, the head's first
    hosts: Mapping[str, Host] = {}  # for ssh; not of instances that are stopped
    running: tuple[str, ...] = ()  # the names of those that may run processes; existing hosts are assumed to run
    problems: Mapping[str, ClusterError] = {}  # why nodes cannot be reached, by name
    problem: ClusterError | None = None  # why not all of them together can be used
    excluded: frozenset[str] = frozenset()  # the names of nodes that no job may use
    warnings: tuple[str, ...] = ()  # to show before these nodes are used
    differences: tuple[str, ...] = ()  # between the nodes and cluster.toml
    state: ClusterState | None = None  # of instances
    markets: Mapping[str, Market] = {}  # of instances
    job_hosts: tuple[str, ...] = ()  # existing hosts as they are listed: one that is listed twice runs two processes
    aliases: Mapping[str, str] = {}  # the names of existing hosts, by the words that mean them

    def find_host(self, name: str) -> Host:
        """Returns a running node as a host for ssh. Raises ClusterError if it is not running or has no address."""
        if name in self.problems:
            raise self.problems[name]
        return self.hosts[name]

    def find_hosts(self) -> tuple[Host, ...]:
        """Returns all nodes as hosts for ssh, the head first. Raises ClusterError if one cannot be used."""
        self.choose()
        if self.problem is not None:
            raise self.problem
        return tuple(map(self.find_host, self.names))

    def find_gone(self, ids: Iterable[str]) -> list[str]:
        """Returns those ids whose instances are stopped or have ended, and therefore have no processes."""
        if self.state is None:
            return []
        live = {node.instance_id for node in self.state.nodes if node.state != "stopped"}.union(self.state.ending)
        return [instance_id for instance_id in ids if instance_id not in live]

    def find_name(self, word: str) -> str | None:
        """Returns the name of the node that a word of the command line means; None if there is none."""
        return word if word in self.names else self.aliases.get(word)

    def select(self, selection: int | str, *, requested: int) -> tuple[str, ...]:
        """Returns the value of [train] hosts for [train] nodes. (): every node once. Raises ClusterError."""
        candidates = {name: self.markets.get(name, "on-demand") for name in self.names if name not in self.excluded}
        chosen = select_nodes(selection, candidates, requested=requested)
        if chosen == self.names:
            return self.job_hosts
        return tuple(word for word in self.job_hosts or self.names if self.find_name(word) in chosen)

    def choose(self, words: Sequence[str] = ()) -> tuple[str, ...]:
        """Returns the names of the nodes that these words mean, or of all nodes; the head first. Raises NotFoundError.

        Without nodes, raises `missing`.
        """
        if not self.names:
            raise self.missing
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

    def connect_again(self, host: Host) -> NodeConnection:
        """Connects to a node whose address may have changed.

        Raises HeadGoneError if it no longer runs, ClusterError or a subclass.
        """
        return self.connect(host, wait_s=ANSWER_TIMEOUT_S)

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
