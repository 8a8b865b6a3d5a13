"""Checks the nodes and the network between them, in parallel, with one ssh command per node. All waits have a timeout.

node/setup/verify.py checks each node, and writes no files.
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from typing import Annotated, Any, get_args

from msgspec import Meta, Struct, field

from bootstrap.apply import ReadyNode
from bootstrap.ssh.connections import on_all
from bootstrap.ssh.node_program import LOADER, NodeProgram
from bootstrap.verify.checks import (
    EVERYWHERE,
    RANGES,
    Check,
    Kind,
    PortTest,
    Probe,
    ProbeResult,
    check_connection,
    check_disk,
    check_ports,
    compute_probes,
    joint_probes,
)
from bootstrap.verify.measures import find_measures, judge
from foundation.errors import ClusterError
from foundation.progress import Event, Report

ANSWER_TIMEOUT_S = 30.0
PORTS_TIMEOUT_S = 60.0
Port = Annotated[int, Meta(ge=1, le=65535)]


class _Begun(Struct, frozen=True):
    listening: tuple[Port, ...] = ()
    refused: str | None = None
    free: Port | None = None
    interface: str | None = None
    disk: tuple[tuple[str, int, Annotated[int, Meta(ge=0)]], ...] = ()


class _Tried(Struct, frozen=True):
    ports: tuple[tuple[str, Port, str | None], ...]


class _Result(Struct, kw_only=True):
    """The results of a node so far; `error` is the reason why the rest is missing."""

    begun: _Begun = field(default_factory=_Begun)
    attempts: tuple[PortTest, ...] = ()
    results: list[tuple[Probe, ProbeResult]] = field(default_factory=list)
    error: ClusterError | None = None


def verify(
    nodes: Sequence[ReadyNode],
    *,
    probes: Sequence[Probe] = (),
    is_deep: bool = False,
    kv_store: str = "dist_sync",
    report: Report,
) -> tuple[Check, ...]:
    """Checks all nodes: `probes` and the framework's own probes on each, the ports between them, and disks.

    With PyTorch, all nodes on which it computes also add up a tensor together. is_deep: also measures them, with MXNet
    by this type of kv_store.

    A node that stops answering is a failed check and does not delay the others. Returns the checks of the whole cluster
    first, then those of each node, in the order of `nodes`.
    """
    probes = (*compute_probes(nodes[0].framework, is_deep=is_deep), *probes)
    found = {node.host.name: _Result() for node in nodes}
    talks: dict[str, _Talk] = {}

    def begin(node: ReadyNode) -> None:
        name = node.host.name
        try:
            talks[name] = talk = stack.enter_context(closing(_Talk(node)))
            found[name].begun = talk.begin(_order(node))
        except ClusterError as error:
            found[name].error = error

    def finish(node: ReadyNode) -> None:
        name = node.host.name
        peers = [
            (other.host.name, other.host.private_ip, found[other.host.name].begun.listening)
            for other in nodes
            if other != node
        ]
        report(Event(kind="start", what="computing, and connecting to the other nodes", where=name))
        try:
            talks[name].finish(found[name], peers, probes)
        except ClusterError as error:
            found[name].error = error

    with ExitStack() as stack:
        on_all(nodes, begin)
        left = [node for node in nodes if found[node.host.name].error is None]
        on_all(left, finish)
        checks = _make_checks(nodes, found)
        if nodes[0].framework == "pytorch" or (nodes[0].framework == "mxnet" and is_deep):
            failed = {
                check.node for check in checks if check.check in ("connection", "compute") and check.status != "ok"
            }
            left = [node for node in left if node.host.name not in failed]
            checks += _run_together(left, found, talks, is_deep=is_deep, kv_store=kv_store)
    checks = judge(checks, {node.host.name: (node.facts.cores, node.facts.gpus) for node in nodes})
    return sort_checks(checks, names=[node.host.name for node in nodes])


def _run_together(
    nodes: Sequence[ReadyNode],
    found: Mapping[str, _Result],
    talks: Mapping[str, "_Talk"],
    *,
    is_deep: bool,
    kv_store: str,
) -> list[Check]:
    """The checks of one all_reduce, or of MXNet's kv-store, over these nodes, whose own probes have ended."""
    if not nodes:
        return []
    head = nodes[0].host
    port = found[head.name].begun.free
    if port is None:
        words = f"not checked: {head.name} cannot listen on {head.private_ip}"
        return [Check(node=head.name, check="all_reduce", subject="port", status="unchecked", result=words)]
    interfaces = {name: here.begun.interface for name, here in found.items()}
    probes = joint_probes(nodes, port=port, interfaces=interfaces, is_deep=is_deep, kv_store=kv_store)

    def run(node: ReadyNode) -> tuple[Check, ...]:
        name = node.host.name
        try:
            return _find_checks(node, probes[name], talks[name].run(probes[name]))
        except ClusterError as error:
            return (check_connection(name, error),)

    return [check for checks in on_all(nodes, run) for check in checks]


def _order(node: ReadyNode) -> dict[str, Any]:
    return {
        "address": node.host.private_ip,
        "ranges": RANGES,
        "loader": LOADER,
        "python": node.python,
        "setup": node.setup,
    }


def _find_checks(node: ReadyNode, probe: Probe, result: ProbeResult) -> tuple[Check, ...]:
    """A probe's own checks, and what it has measured."""
    return (*probe.to_checks(node, result), *find_measures(node.host.name, probe, result))


def _make_checks(nodes: Sequence[ReadyNode], found: Mapping[str, _Result]) -> list[Check]:
    checks: list[Check] = []
    for node in nodes:
        name = node.host.name
        here = found[name]
        if here.error is not None:
            checks.append(check_connection(name, here.error))
        for probe, result in here.results:
            checks += _find_checks(node, probe, result)
        checks += check_disk(name, here.begun.disk)
    checks += check_ports(
        {name: here.begun.listening for name, here in found.items() if here.begun.listening},
        {name: here.begun.refused for name, here in found.items() if here.begun.refused is not None},
        [attempt for here in found.values() for attempt in here.attempts],
        has_group=not all(node.host.spec for node in nodes),
    )
    return checks


def sort_checks(checks: Sequence[Check], *, names: Sequence[str]) -> tuple[Check, ...]:
    """Sorts checks: those of all nodes first, then node by node in the order of `names`, by their kinds. Pure."""
    nodes, kinds = (EVERYWHERE, *names), get_args(Kind)
    return tuple(sorted(checks, key=lambda check: (nodes.index(check.node), kinds.index(check.check))))


class _Talk(NodeProgram):
    """The conversation with the program on one node. Its methods raise ConnectError, NodeCommandError."""

    def __init__(self, node: ReadyNode) -> None:
        super().__init__(node.connection, "verify")

    def begin(self, order: Mapping[str, Any]) -> _Begun:
        """Has the node listen."""
        return self.call(order, _Begun, timeout_s=ANSWER_TIMEOUT_S)

    def finish(self, found: _Result, peers: Sequence[tuple[str, str, Sequence[int]]], probes: Sequence[Probe]) -> None:
        """Has the node connect to its peers and run its probes, one after the other: they would compete for cores."""
        tried = self.call({"peers": peers}, _Tried, timeout_s=PORTS_TIMEOUT_S)
        found.attempts = tuple(
            PortTest(source=self.connection.host.name, target=target, port=port, error=error)
            for target, port, error in tried.ports
            if target in {name for name, _, _ in peers}
        )
        for probe in probes:
            found.results.append((probe, self.run(probe)))

    def run(self, probe: Probe) -> ProbeResult:
        """Has the node run a probe. Returns its result."""
        message = {
            "program": probe.program,
            "modules": probe.modules,
            "order": dict(probe.order),
            "timeout_s": probe.timeout_s,
        }
        return self.call(message, ProbeResult, timeout_s=probe.timeout_s + ANSWER_TIMEOUT_S)
