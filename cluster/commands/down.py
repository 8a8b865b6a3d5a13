"""`cluster down`."""

import click

from cluster.app import App, pass_app
from provision.aws import make_clients
from provision.errors import ClusterError
from provision.lifecycle import down, prepare_down
from provision.receipt import render_receipt
from provision.render import render_plan


@click.command("down")
@click.option("-y", "--yes", is_flag=True, help="Do not ask before instances and their disks are deleted.")
@pass_app
def command(app: App, *, yes: bool) -> None:
    """Delete everything that `up` made, and prove it.

    Ends with a receipt: what was deleted, and what a fresh look over the account still found (nothing).
    """
    if not app.find_cloud():
        app.print(f"cluster {app.config.name}: there is nothing to delete")
        return
    clients = make_clients(app.config.provision.region)
    plan = prepare_down(clients, name=app.config.name, files=app.files, report=app.report)
    if not plan:
        app.print(f"cluster {app.config.name}: there is nothing to delete")
        return
    app.say(render_plan(plan).rstrip())
    if app.config.cloud == "aws" and not app.confirm("Delete all of this?", yes=yes):
        app.say("nothing was done")
        return
    receipt = down(plan, clients=clients, files=app.files, report=app.report)
    app.print(render_receipt(receipt).rstrip())
    if receipt.leftovers:
        raise ClusterError("not everything could be deleted", hint="cluster down, again in a minute")
