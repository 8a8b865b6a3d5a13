"""`cluster status`."""

from datetime import UTC, datetime

import click

from cluster.app import App, pass_app
from cluster.status import Status, render_status, status_document
from provision.at_work import find_command_at_work
from provision.aws import make_clients
from provision.describe import describe_cluster
from provision.model import ClusterState
from provision.preflight.prices import describe_node_prices


@click.command("status")
@click.option("--json", "as_json", is_flag=True, help="Print the status as JSON.")
@pass_app
def command(app: App, *, as_json: bool) -> None:
    """Show the cluster's nodes, and what they cost.

    As EC2 has them, and which of them stopped or ended by themselves, and why.
    """
    config = app.config
    state, prices = ClusterState(name=config.name), {}
    if app.find_cloud():
        clients = make_clients(config.provision.region)
        state = describe_cluster(clients.ec2, name=config.name)
        prices = dict(describe_node_prices(clients, state.nodes))
    status = Status(
        state=state,
        asked=config.provision.nodes,
        now=datetime.now(UTC),
        prices=prices,
        at_work=find_command_at_work(app.files),
    )
    if as_json:
        app.print_json(status_document(status))
    else:
        app.print(render_status(status))
