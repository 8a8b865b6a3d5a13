"""`cluster cost`."""

from datetime import UTC, datetime

import click

from cluster.app import App, pass_app, wide_option
from cluster.costs import note_costs
from cluster.views.cost import cost_document, render_costs
from provision.aws.clients import Clients, make_clients
from provision.cost import storage
from provision.cost.bill import ClusterBill, make_bills
from provision.cost.ledger import Ledger
from provision.cost.observe import find_histories


@click.command("cost")
@click.option("--json", "as_json", is_flag=True, help="Print the costs as JSON.")
@wide_option
@pass_app
def cost(app: App, *, as_json: bool, wide: bool) -> None:
    """Show what the cluster costs, and what earlier clusters of its name cost.

    For each node: the instance, its disk and its public address, from launch to end. Spot instances are billed at each
    hour's price. With [data] results in S3, the costs are also kept there, in costs/NAME.json.
    """
    app.check_has_instances("cost", instead="cluster status")
    now = datetime.now(UTC).timestamp()
    bills: tuple[ClusterBill, ...] = ()
    if app.find_cloud():
        clients = make_clients(app.config.provision.region)
        ledger = note_costs(app, clients)
        bills = find_bills(clients, storage.read(app.files.root) if ledger is None else ledger, now=now)
    app.show(
        render_costs(app.config.name, bills, now=now, price_note=app.price_note, columns=app.find_columns(wide=wide)),
        cost_document(app.config.name, bills, now=now, price_note=app.price_note),
        as_json=as_json,
        wrapped=not wide,
    )


def find_bills(clients: Clients, ledger: Ledger, *, now: float) -> tuple[ClusterBill, ...]:
    """The bills of a ledger, with the spot prices of the instances that run. Raises nothing."""
    running = [node for node in ledger.nodes if node.runs]
    return make_bills(ledger, histories=find_histories(clients, running), now=now)
