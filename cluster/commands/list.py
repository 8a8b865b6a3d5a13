"""`cluster list`."""

from datetime import UTC, datetime

import click

from cluster.app import App, pass_app
from cluster.listing import list_document, render_clusters
from provision.aws import make_clients
from provision.errors import ClusterError
from provision.files import ClusterFiles
from provision.listing import ClusterSummary, describe_clusters
from provision.membership import KnownInstances
from provision.preflight.prices import describe_node_prices


@click.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print the list as JSON.")
@pass_app
def command(app: App, *, as_json: bool) -> None:
    """Show all clusters in the region.

    Those that other people and machines made, too; KEY says of which this machine has the private key.
    """
    region = app.config.provision.region
    clusters: tuple[ClusterSummary, ...] = ()
    prices = {}
    if app.find_cloud():
        clients = make_clients(region)
        clusters = describe_clusters(clients.ec2, known=lambda name: _find_known(app, name))
        prices = dict(describe_node_prices(clients, [each for cluster in clusters for each in cluster.instances]))
    keys_here = {cluster.name for cluster in clusters if _is_key_here(app, cluster)}
    now = datetime.now(UTC)
    if as_json:
        app.print_json(list_document(clusters, prices=prices, keys_here=keys_here, now=now))
    else:
        app.print(render_clusters(clusters, region=region, prices=prices, keys_here=keys_here, now=now))


def _find_known(app: App, name: str) -> KnownInstances:
    """What this machine knows of a cluster's instances; nothing where its files cannot be read."""
    try:
        return ClusterFiles(app.files.root.with_name(name)).known_instances()
    except ClusterError as error:  # one damaged file is no reason to show no list
        app.say(error.message, style="yellow")
        return KnownInstances()


def _is_key_here(app: App, cluster: ClusterSummary) -> bool:
    """Whether this machine has the cluster's private key, and not one of an earlier cluster of that name."""
    try:
        here = ClusterFiles(app.files.root.with_name(cluster.name)).find_public_key()
    except ClusterError as error:  # one damaged key is no reason to show no list
        app.say(error.message, style="yellow")
        return False
    return here is not None and cluster.public_key in {None, here}
