"""`cluster lease`."""

import time
from contextlib import suppress

import click
from msgspec import to_builtins

from cluster.app import App, pass_app
from cluster.costs import find_spending, note_costs
from cluster.lease import NodeLease, ask_nodes, describe_trouble, set_tags
from cluster.nodes.ec2 import describe_state, nodes_of
from cluster.views.status import lease_document, render_lease, render_lease_table
from foundation.durations import parse_duration
from foundation.errors import ClusterError
from provision.lease.lease_plan import Change, change_lease, find_near_end
from provision.membership import no_nodes


def read_extension(text: str) -> int:
    """Returns the seconds of a word such as "+4h". Raises ValueError."""
    found = parse_duration(text.removeprefix("+"))
    if found is None or not text.startswith("+"):
        raise ValueError(f"{text!r}: write +4h to put the end off by four hours")
    return found


def read_limit(text: str) -> int | str:
    """Returns a length of time in seconds, or "none". Raises ValueError."""
    found = parse_duration(text)
    return "none" if found is None else found


def read_amount(text: str) -> float | str:
    """Returns an amount in US dollars, or "none". Raises ValueError."""
    if text == "none":
        return text
    with suppress(ValueError):
        if 0 < float(text) < float("inf"):
            return float(text)
    raise ValueError(f"{text!r} is not an amount in US dollars")


@click.command("lease")
@click.argument("more", type=read_extension, metavar="[+DURATION]", required=False)
@click.option("--idle", type=read_limit, metavar="DURATION", help='End after so long without use: 1h; or "none".')
@click.option("--budget", type=read_amount, metavar="USD", help='End when the cluster has cost so much; or "none".')
@click.option("--none", "none", is_flag=True, help="Remove all limits: nothing ends the cluster but `cluster down`.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask before a change that ends the cluster within 5 minutes.")
@click.option("--json", "as_json", is_flag=True, help="Print the lease as JSON.")
@pass_app
def lease(
    app: App,
    *,
    more: int | None,
    idle: int | str | None,
    budget: float | str | None,
    none: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Show or change when the cluster ends by itself.

    +4h puts the deadline off by four hours, or sets one in four hours. A change goes to EC2's tags and to all nodes;
    nodes that do not answer are listed. cluster.toml is not changed: [lease] counts at the next `up` or `start`.
    """
    app.check_has_instances("lease", instead="cluster down, when you no longer need the hosts")
    app.enter_cloud()
    state = describe_state(app)
    change = Change(none=none, extend_s=more, idle_s=idle, budget_usd=budget)
    if not state.nodes and (not change.is_empty or not state.exists):
        raise no_nodes(state, what="whose lease could be changed" if state.exists else "")
    now, current = time.time(), state.lease
    if not change.is_empty:
        if all(node.state in {"stopping", "stopped"} for node in state.nodes):
            raise ClusterError(
                f"cluster {state.name} is stopped", hint="cluster start, which begins the lease in cluster.toml"
            )
        if isinstance(budget, float):
            note_costs(app, exists=True)
        spending, then = find_spending(app), app.config.lease.then
        changed = change_lease(current, change, now=now, spending=spending, then=then)
        near = find_near_end(current, changed, now=now)
        verb = "stops" if changed.then == "stop" else "terminates"
        question = f"This {verb} the nodes of cluster {state.name} {near}. Change the lease?"
        if near is not None:
            app.require(question, yes=yes)
        current = changed
        set_tags(app, state, current)
    nodes = nodes_of(app, state)
    leases: tuple[NodeLease, ...] = ask_nodes(app, nodes, lease=None if change.is_empty else current)
    if current is not None:
        app.warn(*describe_trouble(leases, current))
    lines = [f"cluster {state.name}: lease: {render_lease(state, current, now=now)}"]
    lines.append(render_lease_table(leases))
    document = {
        "cluster": state.name,
        "lease": lease_document(current, now=now),
        "nodes": [to_builtins(one) for one in leases],
    }
    app.show("\n".join(filter(None, lines)), document, as_json=as_json)
