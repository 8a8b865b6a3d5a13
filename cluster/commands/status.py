"""`cluster status`."""

from datetime import UTC, datetime

import click

from cluster.app import App, pass_app
from cluster.head_job import ask_for_job
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

    As EC2 has them, and which of them stopped or ended by themselves, and why; and the job that runs on them.
    """
    config = app.config
    state, prices, job = ClusterState(name=config.name), {}, None
    if app.find_cloud():
        clients = make_clients(config.provision.region)
        state = describe_cluster(clients.ec2, name=config.name, known=app.files.known_instances())
        find_job = ask_for_job(app, state)
        prices = dict(describe_node_prices(clients, (*state.nodes, *state.untrusted)))
        job = find_job()
    status = Status(
        state=state,
        asked=config.provision.nodes,
        now=datetime.now(UTC),
        prices=prices,
        at_work=find_command_at_work(app.files),
        job=job,
    )
    if as_json:
        app.print_json(status_document(status))
    else:
        app.print(render_status(status))
