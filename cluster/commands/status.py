"""`cluster status`, `cluster list` and `cluster cost`."""

from datetime import UTC, datetime

import click

from cluster import existing_hosts
from cluster.app import App, pass_app, wide_option
from cluster.status import describe_bills, describe_nothing, describe_regions, describe_status
from cluster.views.clusters import list_document, render_clusters
from cluster.views.cost import cost_document, render_costs
from cluster.views.status import render_status, status_document


@click.command("status")
@click.option("--json", "as_json", is_flag=True, help="Print the status as JSON.")
@wide_option
@pass_app
def status(app: App, *, as_json: bool, wide: bool) -> None:
    """Show the cluster's nodes, their cost and the running job.

    It also shows which nodes stopped or terminated unexpectedly, and why, and which job waits for nodes that it has
    lost. It only reads: `cluster up` replaces the nodes.
    """
    if not app.has_instances:
        existing_hosts.show_status(app, as_json=as_json, wide=wide)
        return
    shown = describe_status(app) if app.find_cloud() else describe_nothing(app)
    text = render_status(shown, columns=app.find_columns(wide=wide))
    app.show(text, status_document(shown), as_json=as_json, wrapped=not wide)


@click.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print the list as JSON.")
@wide_option
@pass_app
def list_(app: App, *, as_json: bool, wide: bool) -> None:
    """List all clusters in the region, or in all of [provision] regions.

    The list includes clusters that other people or machines created. KEY shows whether this machine has the private
    key. If a region does not answer, the exit code is 1, and the others are listed.
    """
    app.check_has_instances("list", instead="cluster status")
    found, errors = describe_regions(app, is_there=app.find_cloud(is_any_region=True))
    tables = []
    for one in found:
        table = render_clusters(one, columns=app.find_columns(wide=wide))
        tables.append(f"{one.region}:\n{table}" if len(found) > 1 and one.clusters else table)
    document = [entry for one in found for entry in list_document(one)]
    if found:
        app.show("\n".join(tables), document, as_json=as_json, wrapped=not wide)
    for other in errors[1:]:
        app.warn_of(other)
    if errors:
        raise errors[0]


@click.command("cost")
@click.option("--json", "as_json", is_flag=True, help="Print the costs as JSON.")
@wide_option
@pass_app
def cost(app: App, *, as_json: bool, wide: bool) -> None:
    """Show the costs of the cluster and of earlier ones of its name.

    For each node: the instance, its disk and its public address, from launch to end. Each machine knows the costs that
    its own commands have seen.
    """
    app.check_has_instances("cost", instead="cluster status")
    now = datetime.now(UTC).timestamp()
    bills = describe_bills(app, now=now) if app.find_cloud() else ()
    text = render_costs(app.config.name, bills, now=now, price_note=app.price_note, columns=app.find_columns(wide=wide))
    document = cost_document(app.config.name, bills, now=now, price_note=app.price_note)
    app.show(text, document, as_json=as_json, wrapped=not wide)
