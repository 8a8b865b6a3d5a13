"""From cluster.toml to nodes that are ready to train: what `up`, `verify` and `train` have in common."""

import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bootstrap.apply import Connections, ReadyNode, bootstrap
from bootstrap.bundle import cache_dir
from bootstrap.connection import Host
from bootstrap.host_keys import HostKeyPins
from cluster.app import App
from provision.errors import ClusterError, NotFoundError
from provision.model import ClusterState, Node
from provision.progress import Event, Report
from train.payload import collect_files

BOOT_TIMEOUT_S = 300.0
ANSWER_TIMEOUT_S = 15.0


@contextmanager
def ready_nodes(
    app: App, state: ClusterState, *, wait_s: float = ANSWER_TIMEOUT_S
) -> Iterator[tuple[tuple[ReadyNode, ...], str]]:
    """Connect to a cluster's nodes and bring them up to date; the nodes, head first, and the script's path there.

    wait_s: how long nodes may take to answer, in seconds. The connections end with the block.
    Raises NotFoundError when there is no cluster, ClusterError for what goes wrong on the nodes.
    """
    config = app.config
    hosts = find_hosts(app, state)
    if app.files.find_public_key() is None:
        raise ClusterError(
            f"the private key of cluster {config.name} is not on this machine ({app.files.private_key})",
            hint="run this where the cluster was made, or cluster down",
        )
    tree, script = collect_files(config.train.script, project_dir=app.project_dir)
    pins = HostKeyPins(app.files.known_hosts)
    pins.keep_only(host.instance_id for host in hosts)
    with Connections(private_key=app.files.private_key, pins=pins, wait_s=wait_s) as connections:
        with one_at_a_time(app.files.root, report=app.report):
            nodes = bootstrap(
                hosts,
                cluster=config.name,
                config=config.bootstrap,
                tree=tree,
                connections=connections,
                cache=cache_dir(),
                report=app.report,
            )
        yield nodes, script


@contextmanager
def one_at_a_time(folder: Path, *, report: Report) -> Iterator[None]:
    """Wait while another command sets the nodes up: two at once would write the same files there.

    The lock is the kernel's, on the cluster's folder: it ends with the process that holds it, however that ends.
    """
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report(Event(kind="info", what="waiting for another command that is setting up the nodes"))
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def find_hosts(app: App, state: ClusterState) -> tuple[Host, ...]:
    """The running nodes as ssh sees them, head first. Raises NotFoundError, ClusterError."""
    if not state.nodes:
        raise NotFoundError(f"cluster {state.name} has no nodes", hint="cluster up")
    stopped = [node for node in state.nodes if node.state != "running"]
    if stopped:
        listed = ", ".join(f"{node.name} ({node.state})" for node in stopped)
        raise ClusterError(f"not all nodes of cluster {state.name} are running: {listed}", hint="cluster up")
    ordered: Sequence[Node] = sorted(state.nodes, key=lambda node: (node.role != "head", node.index))
    return tuple(_host(node, app) for node in ordered)


def _host(node: Node, app: App) -> Host:
    address = node.address(app.config.provision.ssh_address)
    if address is None or node.private_ip is None:
        raise ClusterError(
            f"{node.name} ({node.instance_id}) has no {app.config.provision.ssh_address} address",
            hint='set [provision] ssh_address = "private" if you reach its network, or another subnet_id',
        )
    return Host(
        name=node.name,
        instance_id=node.instance_id,
        address=address,
        private_ip=node.private_ip,
        user=app.config.provision.user,
        is_head=node.role == "head",
    )
