"""From cluster.toml to nodes that are ready to train: what `up`, `verify` and `train` have in common."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from rich.filesize import decimal

from bootstrap.apply import ReadyNode, Trees, bootstrap
from bootstrap.environment.framework import is_of_framework
from bootstrap.environment.project import LockedProject, check_against_lock, read_project
from bootstrap.environment.requirements import Wanted, read_packages
from bootstrap.ssh.connections import Connections
from bootstrap.ssh.host import Host
from bootstrap.ssh.keys import Console, HostKeyPins, load_private_key
from cluster.app import App
from cluster.last_known import remember_names
from cluster.other_hosts import OtherHosts
from foundation.errors import ClusterError, NotFoundError, UsageError
from foundation.files import one_at_a_time
from foundation.progress import Event
from foundation.user_folders import cache_folder
from provision.aws.clients import Clients, make_clients
from provision.describe import describe_nodes
from provision.membership import describe_untrusted, no_nodes
from provision.model import ClusterState, Node, count
from provision.resources.console import find_host_fingerprints, find_last_console_lines
from train.job.payload import collect_trees

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client

ASK_ABOVE_BYTES = 100_000_000
BOOT_TIMEOUT_S = 300.0
ANSWER_TIMEOUT_S = 15.0


def describe(app: App, clients: Clients | None = None) -> ClusterState:
    """The cluster's nodes as EC2 has them. Call enter_cloud first. clients: those that were made already."""
    clients = clients or make_clients(app.config.provision.region)
    state = describe_nodes(clients.ec2, name=app.config.name, known=app.files.known_instances())
    remember_names(app.config_path, "nodes", [node.name for node in state.nodes])
    return state


def describe_and_warn(app: App) -> ClusterState:
    """Like describe; warns of instances with the cluster's tag that are not nodes."""
    state = describe(app)
    warn_untrusted(app, state)
    return state


def warn_untrusted(app: App, state: ClusterState) -> None:
    """Warn of instances with the cluster's tag that are not nodes; without nodes, the error names them."""
    if state.nodes and state.untrusted:
        what = (
            f"cluster {state.name}: {describe_untrusted(state.untrusted)}; nothing is sent to them (see cluster status)"
        )
        app.report(Event(kind="warn", what=what))


@contextmanager
def ready_nodes(
    app: App,
    state: ClusterState | Callable[[], ClusterState],
    *,
    wait_s: float = ANSWER_TIMEOUT_S,
    hostfile: Sequence[str] = (),
    command: Sequence[str] = (),
) -> Iterator[tuple[tuple[ReadyNode, ...], str]]:
    """Connect to a cluster's nodes and bring them up to date; the nodes, head first, and the script's path on each.

    state: or a function that returns it; then connecting starts meanwhile, at the addresses of the last time.
    wait_s: how long nodes may take to answer, in seconds. hostfile: lines that may name hosts of the user's own, which
    are set up as well, and come last. command: what a job runs in place of [train] script. The connections are closed
    with the block.
    Raises NotFoundError when there is no cluster, ConfigError for a line that names no host, ClusterError for what goes
    wrong on the nodes.
    """
    config = app.config
    if app.files.find_public_key() is None:
        find_hosts(app, state() if callable(state) else state)  # raises first when there is no cluster
        raise ClusterError(
            f"the private key of cluster {config.name} is not on this machine ({app.files.private_key})",
            hint="run this on the machine that created the cluster, or delete the cluster: cluster down",
        )
    others = OtherHosts(app, hostfile) if hostfile else None
    with Connections(
        private_key=app.files.private_key,
        pins=HostKeyPins(app.files.known_hosts),
        console=open_console(config.provision.region),
        wait_s=wait_s,
        connect_to_other=others.connect if others is not None else None,
    ) as connections:
        # Two commands at once would write the same files on the nodes.
        with one_at_a_time(app.files.root, does="is setting up the nodes", report=app.report):
            if callable(state):
                connections.begin(_last_hosts(app), python=config.bootstrap.python)
            nodes, script = _prepare(app, state, connections, others, command)
        yield nodes, script


def _prepare(
    app: App,
    state: ClusterState | Callable[[], ClusterState],
    connections: Connections,
    others: OtherHosts | None,
    command: Sequence[str],
) -> tuple[tuple[ReadyNode, ...], str]:
    config = app.config
    packages, project = find_packages(app)
    hosts = find_hosts(app, state() if callable(state) else state)
    payload = collect_trees(
        config.train.script,
        sync=config.bootstrap.sync,
        exclude=config.bootstrap.exclude,
        project_dir=app.project_dir,
        report=app.report,
        command=command,
        approve=partial(_approve, app),
    )
    connections.pins.keep_only(host.instance_id for host in hosts)
    nodes = bootstrap(
        hosts if others is None else (*hosts, *others.find(hosts, connections)),
        cluster=config.name,
        config=config.bootstrap,
        packages=packages,
        project=project,
        trees=Trees(code=payload.code, project=payload.project),
        connections=connections,
        cache=cache_folder(),
        report=app.report,
    )
    if others is not None:
        others.let_head_in(nodes)
    with suppress(ClusterError):  # such as a full disk; only the next command's start is slower
        app.files.keep_addresses({host.instance_id: host.address for host in hosts})
    folder = nodes[0].project_dir if payload.is_own else nodes[0].code_dir
    return nodes, f"{folder}/{payload.script}"


def find_packages(app: App) -> tuple[tuple[Wanted, ...], LockedProject]:
    """What [bootstrap] packages and project ask for.

    Raises ConfigError for a file that cannot be used, and for packages that contradict the project.
    """
    config = app.config.bootstrap
    found = read_packages(config.packages, folder=app.project_dir)
    project = read_project(config.project, folder=app.project_dir)
    check_against_lock(found, project.packages)
    for wanted in found:
        if is_of_framework(wanted.requirement, config.framework):
            key, name = ("mxnet", "MXNet") if config.framework == "mxnet" else ("torch", "PyTorch")
            what = f"{wanted.place}: {wanted.requirement} is ignored: [bootstrap] {key} chooses the nodes' {name}"
            app.report(Event(kind="warn", what=what))
    return found, project


def _approve(app: App, folder: Path, files: int, size_bytes: int) -> None:
    """Say which files of the user are sent; ask if they are large. Raises UsageError."""
    what = f"{count(files, 'file')} ({decimal(size_bytes)}) of {folder}"
    if size_bytes <= ASK_ABOVE_BYTES:
        app.report(Event(kind="info", what=f"files for the job: {what}"))
        return
    hint = (
        "exclude what the job does not need with .gitignore or [bootstrap] exclude; to send everything without a "
        'question, set [bootstrap] sync = ["."]'
    )
    if not app.is_interactive():
        raise UsageError(f"{what} would be sent to every node; this needs a confirmation at a terminal", hint=hint)
    if not app.confirm(f"Send {what} to every node?", yes=False):
        raise UsageError("nothing was sent", hint=hint)


def _last_hosts(app: App) -> tuple[Host, ...]:
    """The nodes at their last known addresses."""
    user = app.config.provision.user
    return tuple(
        Host(name=id_, instance_id=id_, address=address, private_ip=address, user=user, is_head=False)
        for id_, address in app.files.addresses().items()
    )


def open_console(region: str) -> Console:
    """The consoles of a region's instances. Thread-safe; the client is made on first use."""
    making = threading.Lock()
    made = cache(lambda: make_clients(region).ec2)

    def ec2() -> "EC2Client":
        with making:  # otherwise several threads would each make a client
            return made()

    return Console(
        find_fingerprints=lambda instance_id: find_host_fingerprints(ec2(), instance_id),
        find_last_lines=lambda instance_id: find_last_console_lines(ec2(), instance_id),
    )


def find_hosts(app: App, state: ClusterState) -> tuple[Host, ...]:
    """The running nodes as ssh sees them, head first. Raises NotFoundError, ClusterError."""
    nodes = choose_nodes(state)
    stopped = [node for node in nodes if node.state != "running"]
    if stopped:
        listed = ", ".join(f"{node.name} ({node.state})" for node in stopped)
        raise ClusterError(f"not all nodes of cluster {state.name} are running: {listed}", hint="cluster start")
    return tuple(find_host(app, node) for node in nodes)


def choose_nodes(state: ClusterState, names: Sequence[str] = ()) -> tuple[Node, ...]:
    """The nodes of these names, or all of them, head first. Raises NotFoundError, which lists the names."""
    if not state.nodes:
        raise no_nodes(state)
    known = [node.name for node in sorted(state.nodes, key=lambda node: node.index)]
    for name in names:
        if name not in known:
            raise NotFoundError(f"cluster {state.name} has no node {name}", hint=f"one of: {', '.join(known)}")
    ordered = sorted(state.nodes, key=lambda node: (node.role != "head", node.index))
    return tuple(node for node in ordered if not names or node.name in names)


def find_host(app: App, node: Node) -> Host:
    """A running node as ssh sees it. Raises ClusterError when it is not running, or cannot be reached from here."""
    if node.state != "running":
        raise ClusterError(f"{node.name} ({node.instance_id}) is {node.state}", hint="cluster start")
    address = node.address(app.config.provision.ssh_address)
    if address is None or node.private_ip is None:
        raise ClusterError(
            f"{node.name} ({node.instance_id}) has no {app.config.provision.ssh_address} address",
            hint='set [provision] ssh_address = "private" if you can reach its network, or another subnet_id',
        )
    return Host(
        name=node.name,
        instance_id=node.instance_id,
        address=address,
        private_ip=node.private_ip,
        user=app.config.provision.user,
        is_head=node.role == "head",
    )


@contextmanager
def open_connections(app: App, state: ClusterState, *, wait_s: float = ANSWER_TIMEOUT_S) -> Iterator[Connections]:
    """Connections to a cluster's nodes, without setting them up. They are closed with the block.

    wait_s: how long a node may take to answer, in seconds. Raises ClusterError when the private key cannot be used.
    """
    load_private_key(app.files.private_key)
    pins = HostKeyPins(app.files.known_hosts)
    pins.keep_only(node.instance_id for node in state.nodes)
    console = open_console(app.config.provision.region)
    with Connections(private_key=app.files.private_key, pins=pins, console=console, wait_s=wait_s) as connections:
        yield connections
