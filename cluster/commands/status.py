"""`cluster status`."""

import click

from cluster.app import App, pass_app
from cluster.status import render_nodes, status_document
from provision.aws import make_clients
from provision.describe import describe_cluster
from provision.model import ClusterState


@click.command("status")
@click.option("--json", "as_json", is_flag=True, help="Print the status as JSON.")
@pass_app
def command(app: App, *, as_json: bool) -> None:
    """Show the cluster's nodes, as EC2 has them."""
    name = app.config.name
    if app.find_cloud():
        state = describe_cluster(make_clients(app.config.provision.region).ec2, name=name)
    else:
        state = ClusterState(name=name)
    if as_json:
        app.print_json(status_document(state))
    else:
        app.print(render_nodes(state))
