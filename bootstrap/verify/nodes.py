"""Checks the nodes and the network between them, in parallel, with one ssh command per node. All waits have a timeout.

node/setup/verify.py checks each node, and writes no files.
"""

from collections.abc import Sequence
from contextlib import ExitStack, closing
from typing import Annotated, get_args

from msgspec import Meta, Struct

from bootstrap.apply import ReadyNode
from bootstrap.ssh.connections import on_all, try_on_all
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
from bootstrap.verify.measures import judge, read_measures
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


def verify(
    nodes: Sequence[ReadyNode],
    *,
    probes: Sequence[Probe] = (),
    kv_store: str | None = None,
    report: Report,
) -> tuple[Check, ...]:
    """Checks all nodes: `probes` and the framework's own probes on each, the ports between them, and disks.

    With PyTorch, all nodes on which it computes also add up a tensor together. kv_store: the type of MXNet's with which
    they are also measured; None: they are not.

    A node that stops answering is a failed check and does not delay the others. Returns the checks of the whole cluster
    first, then those of each node, in the order of `nodes`.
    """
    probes = (*compute_probes(nodes[0].framework, is_deep=kv_store is not None), *probes)
    with ExitStack() as stack:

        def begin(node: ReadyNode) -> _Talk:
            talk = stack.enter_context(closing(_Talk(node)))
            talk.begin()
            return talk

        def finish(talk: _Talk) -> None:
            report(Event(kind="start", what="computing, and connecting to the other nodes", where=talk.name))
            talk.finish([other for other in talks if other is not talk], probes)

        begun = try_on_all(nodes, begin)
        talks = [talk for talk in begun if isinstance(talk, _Talk)]
        finished = try_on_all(talks, finish)
        names = [*(node.host.name for node in nodes), *(talk.name for talk in talks)]
        ended = zip(names, (*begun, *finished), strict=True)
        checks = [check_connection(name, error) for name, error in ended if isinstance(error, ClusterError)]
        checks += _make_checks(talks, has_group=not all(node.host.spec for node in nodes))
        if nodes[0].framework == "pytorch" or (nodes[0].framework == "mxnet" and kv_store):
            failed = {
                check.node for check in checks if check.check in ("connection", "compute") and check.status != "ok"
            }
            left = [talk for talk in talks if talk.name not in failed]
            checks += _run_together(left, kv_store)
    checks = judge(checks, {node.host.name: (node.facts.cores, node.facts.gpus) for node in nodes})
    return sort_checks(checks, names=[node.host.name for node in nodes])


def _run_together(talks: "Sequence[_Talk]", kv_store: str | None) -> list[Check]:
    """The checks of one all_reduce, or of MXNet's kv-store, over these nodes, whose own probes have ended."""
    if not talks:
        return []
    head, port = talks[0].node.host, talks[0].begun.free
    if port is None:
        words = f"not checked: {head.name} cannot listen on {head.private_ip}"
        return [Check(node=head.name, check="all_reduce", subject="port", status="unchecked", result=words)]
    interfaces = {talk.name: talk.begun.interface for talk in talks}
    probes = joint_probes([talk.node for talk in talks], port=port, interfaces=interfaces, kv_store=kv_store)

    def run(talk: _Talk) -> tuple[Check, ...]:
        probe = probes[talk.name]
        try:
            return _find_checks(talk.node, probe, talk.run(probe))
        except ClusterError as error:
            return (check_connection(talk.name, error),)

    return [check for checks in on_all(talks, run) for check in checks]


def _find_checks(node: ReadyNode, probe: Probe, result: ProbeResult) -> tuple[Check, ...]:
    """A probe's own checks, and what it has measured."""
    return (*probe.find_checks(node, result), *read_measures(node.host.name, result.messages))


def _make_checks(talks: "Sequence[_Talk]", *, has_group: bool) -> list[Check]:
    checks: list[Check] = []
    for talk in talks:
        for probe, result in talk.results:
            checks += _find_checks(talk.node, probe, result)
        checks += check_disk(talk.name, talk.begun.disk)
    checks += check_ports(
        {talk.name: talk.begun.listening for talk in talks if talk.begun.listening},
        {talk.name: talk.begun.refused for talk in talks if talk.begun.refused is not None},
        [attempt for talk in talks for attempt in talk.attempts],
        has_group=has_group,
    )
    return checks


def sort_checks(checks: Sequence[Check], *, names: Sequence[str]) -> tuple[Check, ...]:
    """Sorts checks: those of all nodes first, then node by node in the order of `names`, by their kinds. Pure."""
    nodes, kinds = (EVERYWHERE, *names), get_args(Kind)
    return tuple(sorted(checks, key=lambda check: (nodes.index(check.node), kinds.index(check.check))))


class _Talk(NodeProgram):
    """The conversation with the program on one node, and what it has found. Raises ConnectError, NodeCommandError."""

    def __init__(self, node: ReadyNode) -> None:
        super().__init__(node.connection, "verify")
        self.node = node
        self.name = node.host.name
        self.begun = _Begun()
        self.attempts: tuple[PortTest, ...] = ()
        self.results: list[tuple[Probe, ProbeResult]] = []

    def begin(self) -> None:
        """Has the node listen."""
        order = {
            "address": self.node.host.private_ip,
            "ranges": RANGES,
            "loader": LOADER,
            "python": self.node.python,
            "setup": self.node.setup,
        }
        self.begun = self.call(order, _Begun, timeout_s=ANSWER_TIMEOUT_S)

    def finish(self, others: "Sequence[_Talk]", probes: Sequence[Probe]) -> None:
        """Has the node connect to its peers and run its probes, one after the other: they would compete for cores."""
        peers = {other.name: (other.name, other.node.host.private_ip, other.begun.listening) for other in others}
        tried = self.call({"peers": [*peers.values()]}, _Tried, timeout_s=PORTS_TIMEOUT_S)
        self.attempts = tuple(
            PortTest(source=self.name, target=target, port=port, error=error)
            for target, port, error in tried.ports
            if target in peers
        )
        for probe in probes:
            self.results.append((probe, self.run(probe)))

    def run(self, probe: Probe) -> ProbeResult:
        """Has the node run a probe. Returns its result."""
        message = {
            "program": probe.program,
            "modules": probe.modules,
            "order": dict(probe.order),
            "timeout_s": probe.timeout_s,
        }
        return self.call(message, ProbeResult, timeout_s=probe.timeout_s + ANSWER_TIMEOUT_S)
