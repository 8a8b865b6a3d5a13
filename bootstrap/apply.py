"""From running nodes to nodes that can train: all side by side, each as soon as it can be reached."""

import io
import shlex
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from bootstrap.bundle import Bundle, fetch_bundle
from bootstrap.config import BootstrapConfig
from bootstrap.connection import Host, NodeConnection, wait_for_connection
from bootstrap.facts import NodeFacts, gather_facts
from bootstrap.host_keys import HostKeyPins
from bootstrap.internal_ssh import authorize_script, authorized_line, known_hosts_text
from bootstrap.plan import INCOMING, NodeStep, SendFile, UnpackTree, plan_node, render_script
from bootstrap.side_by_side import on_all
from bootstrap.tree import FileTree
from bootstrap.wheels import WheelTarget, choose_wheels
from provision.errors import ClusterError
from provision.progress import Event, Report

STEPS_TIMEOUT_S = 900.0


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadyNode:
    """A node that can train. `python` and `tree_dir` are absolute paths there."""

    host: Host
    connection: NodeConnection
    facts: NodeFacts
    python: str
    tree_dir: str
    changed: bool


class _Bundles:
    """Each target's bundle, fetched once however many nodes ask for it at the same time."""

    def __init__(self, cache: Path, report: Report) -> None:
        self._cache = cache
        self._report = report
        self._lock = threading.Lock()
        self._futures: dict[WheelTarget, Future[Bundle]] = {}

    def get(self, target: WheelTarget) -> Bundle:
        with self._lock:
            future = self._futures.get(target)
            mine = future is None
            if future is None:
                future = self._futures[target] = Future()
        if mine:
            try:
                future.set_result(fetch_bundle(target, cache=self._cache, report=self._report))
            except BaseException as error:
                future.set_exception(error)
                raise
        return future.result()


class Connections:
    """The open connections to a cluster's nodes, by instance id. A context manager: leaving it hangs up."""

    def __init__(self, *, private_key: Path, pins: HostKeyPins, wait_s: float) -> None:
        self._private_key = private_key
        self._pins = pins
        self._wait_s = wait_s
        self._open: dict[str, NodeConnection] = {}
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        for connection in self._open.values():
            connection.close()

    def get(self, host: Host) -> NodeConnection:
        """The connection to a host, opened if need be. Raises ConnectError."""
        connection = self._open.get(host.instance_id)
        if connection is None:
            connection = wait_for_connection(
                host, private_key=self._private_key, pins=self._pins, timeout_s=self._wait_s
            )
            with self._lock:
                self._open[host.instance_id] = connection
        return connection

    @property
    def pins(self) -> HostKeyPins:
        """The host keys of this cluster."""
        return self._pins


def bootstrap(
    hosts: Sequence[Host],
    *,
    cluster: str,
    config: BootstrapConfig,
    tree: FileTree,
    connections: Connections,
    cache: Path,
    report: Report,
) -> tuple[ReadyNode, ...]:
    """Make every host ready to train; a second run finds nothing to do. In the order of `hosts`.

    Raises ClusterError (or one below it) that names every node that failed.
    """
    bundles = _Bundles(cache, report)
    ready: dict[str, ReadyNode] = {}

    def prepare(host: Host) -> None:
        ready[host.instance_id] = _prepare_node(
            host,
            cluster=cluster,
            config=config,
            tree=tree,
            connections=connections,
            bundles=bundles,
            report=report,
        )

    on_all(hosts, prepare, name=lambda host: host.name)
    nodes = tuple(ready[host.instance_id] for host in hosts)
    _connect_nodes(nodes, pins=connections.pins, report=report)
    return nodes


def _prepare_node(
    host: Host,
    *,
    cluster: str,
    config: BootstrapConfig,
    tree: FileTree,
    connections: Connections,
    bundles: _Bundles,
    report: Report,
) -> ReadyNode:
    connection = connections.get(host)
    facts = gather_facts(connection, python=config.python)
    target = choose_wheels(facts, mxnet=config.mxnet, packages=config.packages, node=host.name)
    bundle = bundles.get(target)
    steps = plan_node(facts, bundle=bundle, tree=tree, cluster=cluster, is_head=host.is_head, node=host.name)
    if steps:
        started = time.monotonic()
        size_mb = sum(step.file.size_bytes for step in steps if isinstance(step, SendFile)) / 1e6
        report(Event(kind="start", what=f"sending {size_mb:.0f} MB and setting up", where=host.name))
        _send(connection, steps)
        connection.run(render_script(steps), timeout_s=STEPS_TIMEOUT_S, what="the script that sets the node up")
        report(Event(kind="done", what="ready to train", where=host.name, duration_s=time.monotonic() - started))
    else:
        report(Event(kind="same", what="nothing to change", where=host.name))
    home = f"{facts.home}/.cluster"
    return ReadyNode(
        host=host,
        connection=connection,
        facts=facts,
        python=f"{home}/env/{bundle.digest}/bin/python",
        tree_dir=f"{home}/tree/{tree.digest}",
        changed=bool(steps),
    )


def _send(connection: NodeConnection, steps: Sequence[NodeStep]) -> None:
    connection.run(f"umask 077 && mkdir -p {INCOMING}")
    for step in steps:
        if isinstance(step, SendFile):
            connection.put(step.file.path, f"{INCOMING}/{step.file.sha256}")
        elif isinstance(step, UnpackTree):
            connection.put(io.BytesIO(step.tree.pack()), f"{INCOMING}/{step.tree.digest}")


def _connect_nodes(nodes: Sequence[ReadyNode], *, pins: HostKeyPins, report: Report) -> None:
    """Let the head reach every node, itself included, with the cluster's own key, and know their host keys."""
    head = next(node for node in nodes if node.host.is_head)
    key = head.facts.cluster_key
    if key is None:
        key = head.connection.run("cat .cluster/ssh/id_ed25519.pub").stdout.strip()
    line = authorized_line(key, head_ip=head.host.private_ip)
    text = known_hosts_text(_pinned_keys(nodes, pins))

    def connect_node(node: ReadyNode) -> None:
        is_head = node is head
        script = authorize_script(node.facts, line=line, known_hosts=text if is_head else None)
        if script:
            node.connection.run(script, timeout_s=60, what="the script that lets the head in")
            report(Event(kind="done", what="may be reached by the head", where=node.host.name))

    on_all(nodes, connect_node, name=lambda node: node.host.name)


def _pinned_keys(nodes: Sequence[ReadyNode], pins: HostKeyPins) -> Mapping[str, tuple[str, str]]:
    keys = {}
    for node in nodes:
        pinned = pins.find(node.host.instance_id)
        if pinned is None:
            raise ClusterError(
                f"{node.host.name}: its host key is no longer in {shlex.quote(str(pins.path))}",
                hint="run the command again; the key is then pinned anew",
            )
        keys[node.host.private_ip] = pinned
    return keys
