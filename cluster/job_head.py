"""The head of a cluster as commands about jobs use it, with or without its nodes being set up first."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from typing import TYPE_CHECKING

from bootstrap.connection import NodeConnection, wait_for_connection
from bootstrap.connections import Connections
from bootstrap.host_keys import HostKeyPins
from bootstrap.private_key import load_private_key
from cluster.app import App
from cluster.session import ANSWER_TIMEOUT_S, choose_nodes, describe, find_host, open_connections, open_console
from provision.model import ClusterState, Node
from train.head import SILENCE_S, Head, HeadGoneError, found_program_command, program_command
from train.payload import code_digest
from train.run import RemoteEnd, end_everywhere

if TYPE_CHECKING:
    from bootstrap.apply import ReadyNode


def head_of(app: App, nodes: "Sequence[ReadyNode]") -> Head:
    """The head of nodes that are set up; their connection is used until it breaks."""
    head = nodes[0]
    return Head(
        name=head.host.name,
        connect=partial(_connect_again, app, head.host.instance_id, head.host.name),
        command=lambda words: program_command("jobs.py", words, python=head.python, code_dir=head.code_dir),
        connection=head.connection,
    )


@contextmanager
def open_head(app: App, state: ClusterState, *, wait_s: float = ANSWER_TIMEOUT_S) -> Iterator[Head]:
    """The head of a cluster, whose nodes are left as they are.

    wait_s: how long it may take to answer, in seconds. Raises NotFoundError and ClusterError when it does not run;
    whether it can be reached shows at the first use.
    """
    node = choose_nodes(state)[0]
    host = find_host(app, node)
    load_private_key(app.files.private_key)
    known = [state]

    def connect() -> NodeConnection:
        # What was just described need not be asked again; later it may have ended.
        return _connect(app, known.pop(), node, wait_s) if known else _connect_again(app, host.instance_id, host.name)

    digest = cache(code_digest)
    head = Head(
        name=node.name,
        connect=connect,
        command=lambda words: found_program_command("jobs.py", words, digest=digest()),
    )
    try:
        yield head
    finally:
        head.close()


def _connect_again(app: App, instance_id: str, name: str) -> NodeConnection:
    """A new connection to a head, which may have another address by now. Raises HeadGoneError, ClusterError's kinds."""
    state = describe(app)
    node = next((node for node in state.nodes if node.instance_id == instance_id), None)
    if node is None or node.state not in {"pending", "running"}:
        raise HeadGoneError(
            f"{name} ({instance_id}) {'does not exist any more' if node is None else f'is {node.state}'}",
            hint="cluster status",
        )
    return _connect(app, state, node, ANSWER_TIMEOUT_S)


def _connect(app: App, state: ClusterState, node: Node, wait_s: float) -> NodeConnection:
    pins = HostKeyPins(app.files.known_hosts)
    pins.keep_only(other.instance_id for other in state.nodes)
    console = open_console(app.config.provision.region)
    return wait_for_connection(
        find_host(app, node), private_key=app.files.private_key, pins=pins, console=console, timeout_s=wait_s
    )


def end_from_here(app: App, job: str) -> dict[str, list[list[object]]]:
    """End a job's processes on every running node, and on hosts of the user's own; what is not known to have ended.

    For when the head cannot do it. Raises ClusterError when not even EC2 can be asked.
    """
    state = describe(app)
    running = [node for node in state.nodes if node.state == "running"]
    others: tuple[RemoteEnd, ...] = ()
    if app.files.other_hosts.exists():
        from cluster.other_hosts import ends_of_job  # noqa: PLC0415 - not for those who have none

        others = ends_of_job(app, job)
    if not running:
        return end_everywhere(others)
    command = found_program_command("role.py", ["end", job], digest=code_digest())
    with open_connections(app, state) as connections:
        return end_everywhere(
            [*(RemoteEnd(name=node.name, run=_runner(app, connections, node, command)) for node in running), *others]
        )


def _runner(app: App, connections: Connections, node: Node, command: str) -> Callable[[], str]:
    return lambda: connections.get(find_host(app, node)).run(command, timeout_s=SILENCE_S, what="role.py end").stdout
