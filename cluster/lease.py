"""The lease on running nodes: queries their lease programs and sends them changes, over ssh."""

from collections.abc import Callable, Sequence

from msgspec import Struct

from bootstrap.apply import ReadyNode
from bootstrap.ssh.connection import NodeConnection
from bootstrap.ssh.connections import on_all
from cluster.app import App
from cluster.costs import find_spending
from cluster.nodes.source import Nodes
from cluster.session import source_of
from foundation.decode import decode
from foundation.errors import ClusterError
from foundation.remote_command import run_as_root
from provision.apply import apply
from provision.lease.arm import plan_lease
from provision.lease.lease_plan import describe_lease, update_budget
from provision.lease.terms import Lease, render_lease, render_number
from provision.lease.user_data import PROGRAM
from provision.model import ClusterState
from provision.plan import Plan

ANSWER_S = 20.0


class NodeAnswer(Struct, frozen=True, kw_only=True):
    """The answer of a node's lease program, node/lease.sh."""

    lease: str
    idle_s: float | None
    why: str | None
    saved: bool


class NodeLease(Struct, frozen=True, kw_only=True):
    """A node's answer. error: the reason why there is none; the other fields are then None. busy: what uses it.

    tag: its lease, in the form of the tag.
    """

    node: str
    error: str | None = None
    idle_s: float | None = None
    busy: str | None = None
    tag: str | None = None
    saved: bool | None = None


def ask_nodes(app: App, nodes: Nodes, *, lease: Lease | None = None) -> tuple[NodeLease, ...]:
    """Queries all running nodes, and sends them the lease, if one is given. A node that does not answer is no error."""
    if not nodes.running:
        return ()
    with source_of(app).open_connections() as connections:
        return _ask_all(nodes.running, lambda name: connections.get(nodes.find_host(name)), lease)


def send_lease(app: App, state: ClusterState, ready: Sequence[ReadyNode], *, now: float) -> None:
    """After `up`, `resize` or `start`, send all nodes the newest lease, with the end of its budget.

    A node that cannot be reached follows its tag, so this is only a warning. Raises AwsError.
    """
    lease = count_budget(app, state, now=now)
    if lease is None:
        return
    connections = {node.host.name: node.connection for node in ready}
    app.warn(*describe_trouble(_ask_all(tuple(connections), connections.__getitem__, lease), lease))
    app.message(f"lease: {describe_lease(lease, now=now)}")


def count_budget(app: App, state: ClusterState, *, now: float) -> Lease | None:
    """Returns the newest lease, tagged with the end of its budget for the nodes of `state`. Raises AwsError.

    Warns if that end is unknown: it stays the one for the nodes before.
    """
    lease = state.lease
    if lease is None or lease.budget_usd is None or not state.nodes:
        return lease
    spending = find_spending(app)
    if spending.usd_per_hour is None:
        budget = f"the budget of ${render_number(lease.budget_usd)} may be exceeded"
        app.warn(f"{budget}: a price is unknown, so its deadline was not computed again; cluster lease shows it")
    updated = update_budget(lease, spending, now=now)
    if updated is not lease:
        set_tags(app, state, updated)
    return updated


def set_tags(app: App, state: ClusterState, lease: Lease) -> None:
    """Writes the lease into EC2's tags, which are authoritative. Raises AwsError, ClusterError."""
    plan = Plan(cluster=state.name, steps=plan_lease(state, lease))
    apply(plan, clients=app.clients, files=app.files, report=app.report)


def describe_trouble(leases: Sequence[NodeLease], lease: Lease) -> list[str]:
    """Returns warnings about nodes that did not answer, have another lease, or could not save it to disk."""
    wanted = render_lease(lease)
    found = [
        f"{one.node} did not answer ({one.error}); it follows its tag within a minute, unless its metadata service is "
        "off"
        for one in leases
        if one.error is not None
    ]
    late = [one for one in leases if one.tag not in {None, wanted}]
    found += [f"{one.node} has another lease until it reads its tag, within a minute: {one.tag}" for one in late]
    return found + [
        f"{one.node} cannot keep the lease on its disk: after a reboot it depends on its tag"
        for one in leases
        if one.saved is False
    ]


def _ask_all(
    names: Sequence[str], connect: Callable[[str], NodeConnection], lease: Lease | None
) -> tuple[NodeLease, ...]:
    """Queries nodes in parallel, and sends them the lease, if one is given. No answer is no error."""
    command = run_as_root("sh", PROGRAM, *(["show"] if lease is None else ["set", render_lease(lease)]))

    def ask(name: str) -> NodeLease:
        try:
            text = connect(name).run(command, timeout_s=ANSWER_S, what="the lease program")
            found = decode(text.last_line.encode(), NodeAnswer)
        except ClusterError as error:
            return NodeLease(node=name, error=error.message.partition("\n")[0])
        except ValueError as error:
            return NodeLease(node=name, error=f"its lease program answers {error}")
        return NodeLease(node=name, idle_s=found.idle_s, busy=found.why, tag=found.lease, saved=found.saved)

    return tuple(on_all(names, ask))
