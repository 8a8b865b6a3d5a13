"""Finds unhealthy nodes: health_report.py observes all nodes at the same time, and this machine judges the reports."""

import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path

from msgspec import Struct, json

from bootstrap.apply import ReadyNode
from bootstrap.homes import Turns, find_homes_of
from bootstrap.runtime.runtime import RuntimePlacing
from bootstrap.ssh.connection import NodeConnection
from bootstrap.ssh.connections import Connections, on_all, try_on_all
from bootstrap.ssh.host import Host
from bootstrap.ssh.node_program import NodeProgram
from bootstrap.transfer.distribute import Distribution
from bootstrap.transfer.tree import TreeArchives
from bootstrap.verify.checks import Check, Offset, find_offset, find_wrong
from foundation.errors import ClusterError
from foundation.progress import Event, Report, silent
from foundation.remote_command import Quoted, RemoteCommand
from node import health
from node.protocol import Unhealthy as Kept
from provision.model import count
from provision.preflight.machines import Hardware

TIMEOUT_S = health.GPUS_TIMEOUT_S + 2 * health.LOG_TIMEOUT_S + 5.0
Unhealthy = Mapping[str, tuple[str, ...]]
"""The unhealthy nodes, by name, with the reasons why they must not be used."""


class NodeFinding(Struct, frozen=True, kw_only=True):
    """The report of health_report.py on a node, and the node's clock compared with this machine's."""

    report: health.Report
    offset: Offset


Findings = Mapping[str, NodeFinding]
"""Those of several nodes, by name."""


def check_before_set_up(
    hosts: Sequence[Host], connections: Connections, *, python: str, cache: Path, report: Report
) -> Findings:
    """Checks nodes that are about to be set up, and keeps their facts. Places the runtime, which it needs.

    python: [bootstrap] python. cache: foundation.user_folders.cache_folder().
    Raises ClusterError, which names every node that cannot be checked.
    """
    homes = find_homes_of(hosts, connections, silent).values()
    first = {home[0] for home in homes}
    turns = Turns(homes)
    with Distribution(report=report) as distribution, TreeArchives((), cache=cache) as archives:
        placing = RuntimePlacing(cache, archives, distribution)

        def examine(host: Host) -> NodeFinding:
            with turns.taken(host.instance_id):
                connection, facts = connections.describe(host, python=python)
                facts = placing.place(connection, facts)
                if host.instance_id in first:  # the others will have what the set-up of the first places there
                    connection.facts = facts
            early, connection.answer = connection.answer, None
            return early if isinstance(early, NodeFinding) else check_node(connection)

        return dict(zip((host.name for host in hosts), on_all(hosts, examine), strict=True))


def describe_health(nodes: Sequence[ReadyNode]) -> tuple[Findings, Mapping[str, ClusterError]]:
    """Checks nodes that have been set up. Returns also the errors of those that could not be checked."""
    asked = try_on_all(nodes, lambda node: check_node(node.connection))
    found = {node.host.name: one for node, one in zip(nodes, asked, strict=True)}
    errors = {name: one for name, one in found.items() if isinstance(one, ClusterError)}
    return {name: one for name, one in found.items() if not isinstance(one, ClusterError)}, errors


def check_node(connection: NodeConnection) -> NodeFinding:
    """Checks a node that has this version's runtime. Raises ClusterError."""
    sent = time.time()
    with closing(NodeProgram(connection, "health")) as program:
        report = program.read(next(program.messages(time.monotonic() + TIMEOUT_S)), health.Report)
    return NodeFinding(report=report, offset=find_offset(sent, report.now, time.time()))


def find_unhealthy(findings: Findings, hardware: Mapping[str, Hardware], *, with_clocks: bool = True) -> Unhealthy:
    """The unhealthy nodes, with the reasons. hardware: that of each node's type, by the node's name. Pure."""
    wrong = find_wrong({name: one.offset for name, one in findings.items()}) if with_clocks else ()
    found = health.judge_all(
        {name: one.report for name, one in findings.items()},
        {name: (its.gpus, its.memory_mib) for name, its in hardware.items()},
        {name: findings[name].offset.ahead_s for name in wrong},
    )
    return {name: tuple(reasons) for name, reasons in found.items()}


def keep_on_head(
    head: NodeConnection, findings: Findings, unhealthy: Unhealthy, *, ids: Mapping[str, str], report: Report
) -> None:
    """Stores the unhealthy nodes on the head, for `cluster status`. ids: all nodes' instance ids, by name.

    Only warns if that fails: a head whose disk is not writable is itself among the unhealthy nodes.
    """
    kept = {name: Kept(id=ids[name], reasons=reasons) for name, reasons in unhealthy.items()}
    before = findings.get(head.host.name)
    if before is None or before.report.kept == kept:
        return
    path = health.KEPT
    written = Quoted(json.encode(kept).decode())
    script = RemoteCommand("umask 077; printf %s ", written, f" >{path}.new && mv {path}.new {path}")
    try:
        head.run(script, timeout_s=60, what="the script that keeps what is unhealthy")
    except ClusterError as error:
        report(Event(kind="warn", what=f"cluster status will not show unhealthy nodes: {error.message}"))


def advise(names: Sequence[str]) -> str:
    """The next command for unhealthy nodes. Pure."""
    nodes = " ".join(f"--node {name}" for name in names)
    return (
        f"cluster exec {nodes} -- sudo reboot; if that does not help, terminate the instance, and cluster up "
        "launches another"
    )


def check_health(node: str, report: health.Report, reasons: Sequence[str], hardware: Hardware | None) -> Check:
    """The check of `cluster verify` for one node. reasons: those of find_unhealthy. Pure."""
    if reasons:
        return Check(
            node=node, check="health", subject="node", status="failed", result="; ".join(reasons), hint=advise([node])
        )
    looked = ["disks"]
    looked += ["memory"] * (hardware is not None)
    looked += [count(len(report.gpus), "GPU")] if report.gpus is not None else []
    looked += ["kernel log"] * bool(report.gpus is not None and report.xids is not None)
    message = f"no faults: {', '.join(looked)}"
    if report.gpus is not None and report.xids is None:
        hint = f"cluster exec --node {node} -- sudo dmesg"
        message += "; its kernel log cannot be read"
        return Check(node=node, check="health", subject="node", status="unchecked", result=message, hint=hint)
    return Check(node=node, check="health", subject="node", status="ok", result=message)
