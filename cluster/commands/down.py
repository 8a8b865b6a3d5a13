"""`cluster down`."""

import click

from cluster import existing_hosts
from cluster.app import App, pass_app
from cluster.nodes.deletion import delete_cluster


@click.command("down")
@click.option("-y", "--yes", is_flag=True, help="Delete instances and their disks without asking.")
@click.option("--json", "as_json", is_flag=True, help="Print the receipt as JSON.")
@pass_app
def down(app: App, *, yes: bool, as_json: bool) -> None:
    """Delete everything that `up` created.

    Then it searches the account again and prints a receipt: what was deleted, what is left, how long the nodes ran and
    what they cost. Existing hosts stay; it removes the cluster's key and files from them.
    """
    if not app.has_instances:
        existing_hosts.down(app, yes=yes, as_json=as_json)
        return
    delete_cluster(app, yes=yes, as_json=as_json)
