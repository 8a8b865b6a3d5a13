"""Nodes that are EC2 instances: described by EC2, and reached with the cluster's key and pinned host keys."""

from collections.abc import Callable, Sequence
from functools import cached_property

from bootstrap.apply import ReadyNode, let_head_in
from bootstrap.environment.facts import NodeFacts
from bootstrap.runtime.code import runtime_digest
from bootstrap.ssh.connection import InstanceAccess, NodeConnection, wait_for_connection
from bootstrap.ssh.connections import Connections
from bootstrap.ssh.host import Host
from bootstrap.ssh.keys import Console, HostKeyPins, load_private_key
from bootstrap.verify.node_health import check_node
from cluster.app import App
from cluster.nodes.source import ANSWER_TIMEOUT_S, Nodes, NodeSource
from foundation.errors import ClusterError
from provision.aws.clients import Clients
from provision.config import ProvisionConfig
from provision.describe import find_end
from provision.membership import describe_untrusted, no_nodes
from provision.model import ClusterState, Node
from provision.preflight.caller import describe_own
from provision.resources.console import find_console_lines, find_host_fingerprints
from provision.status import find_differences
from provision.volumes.describe import describe_mounts
from provision.volumes.source import MountSource
from train.follow.head import HeadGoneError


def nodes_of(app: App, state: ClusterState) -> Nodes:
    """Returns the nodes among the cluster's instances. Raises ConfigError."""
    config = app.config.provision
    nodes = {node.name: node for node in sorted(state.nodes, key=lambda node: (node.role != "head", node.index))}
    found = {name: _find_host(node, config) for name, node in nodes.items()}
    stopped = [f"{name} ({node.state})" for name, node in nodes.items() if node.state != "running"]
    text = f"not all nodes of cluster {state.name} are running: {', '.join(stopped)}"
    untrusted = state.nodes and state.untrusted  # without nodes, no_nodes names them
    warning = f"cluster {state.name}: {describe_untrusted(state.untrusted)}; nothing is sent to them"
    return Nodes(
        cluster=state.name,
        missing=no_nodes(state),
        names=tuple(nodes),
        hosts={name: one for name, one in found.items() if isinstance(one, Host)},
        running=tuple(name for name, node in nodes.items() if node.state == "running"),
        problems={name: one for name, one in found.items() if isinstance(one, ClusterError)},
        problem=ClusterError(text, hint="cluster start") if stopped else None,
        warnings=(f"{warning} (see cluster status)",) if untrusted else (),
        differences=tuple(find_differences(config, state.nodes)),
        state=state,
        markets={name: node.market for name, node in nodes.items()},
    )


def _find_host(node: Node, config: ProvisionConfig) -> Host | ClusterError:
    """Returns a node as a host for ssh, or why it cannot be reached from here."""
    if node.state != "running":
        return ClusterError(f"{node.name} ({node.instance_id}) is {node.state}", hint="cluster start")
    address = node.address(config.ssh_address)
    if address is None or node.private_ip is None:
        return ClusterError(
            f"{node.name} ({node.instance_id}) has no {config.ssh_address} address",
            hint='set [provision] ssh_address = "private" if you can reach its network, or another subnet_id',
        )
    return Host(
        name=node.name,
        instance_id=node.instance_id,
        address=address,
        private_ip=node.private_ip,
        user=config.user,
        is_head=node.role == "head",
    )


class Ec2Source(NodeSource):
    """The source of nodes that are EC2 instances. Call App.enter_cloud first."""

    def __init__(self, app: App) -> None:
        self._app = app
        self.instance_profile = app.config.provision.instance_profile

    def describe(self) -> Nodes:
        """Returns the cluster's nodes as EC2 shows them. Raises AwsError."""
        return nodes_of(self._app, describe_state(self._app))

    def connect(self, host: Host, *, wait_s: float) -> NodeConnection:
        """Connects to a node. Raises ConnectError, AwsError, ClusterError."""
        return wait_for_connection(host, self._access, timeout_s=wait_s)

    def connect_again(self, host: Host) -> NodeConnection:
        """Connects to a node whose address may have changed. Raises HeadGoneError, ClusterError or a subclass."""
        state = describe_state(self._app)
        node = next((node for node in state.nodes if node.instance_id == host.instance_id), None)
        if node is None or node.state not in {"pending", "running"}:
            raise HeadGoneError(
                f"{host.name} ({host.instance_id}) {'does not exist any more' if node is None else f'is {node.state}'}",
                hint="cluster status" if node is None else "cluster start",
            )
        now = nodes_of(self._app, state).find_host(node.name)
        return self.connect(now, wait_s=ANSWER_TIMEOUT_S)

    def open_connections(self, *, wait_s: float = ANSWER_TIMEOUT_S) -> Connections:
        """Returns connections to the nodes. Raises ClusterError when the private key cannot be used."""
        load_private_key(self._app.files.private_key)
        return super().open_connections(wait_s=wait_s)

    def open_for_set_up(self, find_nodes: Callable[[], Nodes], *, wait_s: float) -> Connections:
        """Returns connections to the nodes. Raises ClusterError without the private key."""
        app = self._app
        if app.files.find_public_key() is None:
            find_nodes().find_hosts()  # raises first when there is no cluster
            raise ClusterError(
                f"the private key of cluster {app.config.name} is not on this machine ({app.files.private_key})",
                hint="run this on the machine that created the cluster, or delete the cluster: cluster down",
            )
        return super().open_connections(wait_s=wait_s)

    def begin(self, connections: Connections, *, ask_head: Callable[[NodeConnection], None] | None) -> None:
        """Starts connecting to the nodes at their last known addresses, and looking at their health."""
        user = self._app.config.provision.user
        last = [
            Host(name=id_, instance_id=id_, address=address, private_ip=address, user=user, is_head=False)
            for id_, address in self._app.files.addresses().items()
        ]

        def ask(connection: NodeConnection, facts: NodeFacts) -> object:
            if runtime_digest() not in facts.runtimes:
                return None
            if ask_head is not None and connection.host.instance_id == last[0].instance_id:
                ask_head(connection)
            return check_node(connection)

        connections.begin(last, self._access, python=self._app.config.bootstrap.python, ask=ask)

    def let_head_in(self, nodes: Sequence[ReadyNode]) -> None:
        """Lets the head, the first of these nodes, log in to all of them. Raises ClusterError or a subclass."""
        let_head_in(nodes, pins=self._access.pins, report=self._app.report)

    def describe_mounts(self, nodes: Nodes) -> tuple[MountSource, ...]:
        """Returns the mounts in cluster.toml, as found in AWS.

        Raises AwsError, ClusterError if the disk is not attached.
        """
        config = self._app.config
        if not config.volumes or nodes.state is None:
            return ()
        return describe_mounts(self._app.clients, config.volumes, nodes.state)

    def keep(self, hosts: Sequence[Host], *, left_out: Sequence[Host] = ()) -> None:
        """Stores the addresses, for `begin`. Raises ClusterError."""
        if hosts and hosts[0].name != "node-0":
            return  # the head has ended; the stored id of its instance is needed to find and continue its jobs
        files = self._app.files
        known = files.addresses()
        kept = [*hosts, *(host for host in left_out if host.instance_id in known)]
        files.keep_addresses({host.instance_id: host.address for host in kept if not host.spec})

    @cached_property
    def _access(self) -> InstanceAccess:
        """The cluster's keys: one lock for the file of pins."""
        return InstanceAccess(
            private_key=self._app.files.private_key,
            pins=HostKeyPins(self._app.files.known_hosts),
            console=open_console(lambda: self._app.clients),
        )


def describe_state(app: App) -> ClusterState:
    """Returns the cluster's instances, key pair and security groups as EC2 shows them. Raises AwsError."""
    return describe_own(app.clients, name=app.config.name, files=app.files)


def find_gone(app: App, state: ClusterState) -> frozenset[str]:
    """Returns the ids of the instances that this machine last set up, did not end itself, and that have ended.

    Empty once the cluster is deleted.
    """
    if not (app.files.exist and state.exists):
        return frozenset()
    return frozenset(app.files.addresses()) - {node.instance_id for node in state.nodes}


def open_console(clients: Callable[[], Clients]) -> Console:
    """Returns access to the consoles of the cluster's instances. Thread-safe. clients: called on first use."""
    return Console(
        find_fingerprints=lambda instance_id: find_host_fingerprints(clients().ec2, instance_id),
        find_lines=lambda instance_id: find_console_lines(clients().ec2, instance_id),
        find_end=lambda instance_id: find_end(clients().ec2, instance_id),
    )
