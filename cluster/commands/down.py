"""`cluster down`."""

import click

from cluster.app import App, pass_app
from cluster.interruption import ask_what_runs, confirm_ending
from provision.aws import make_clients
from provision.describe import describe_cluster
from provision.ending import ROLE, down, prepare_down
from provision.errors import AwsError, ClusterError
from provision.receipt import Receipt, receipt_document, render_receipt
from provision.render import render_plan


@click.command("down")
@click.option("-y", "--yes", is_flag=True, help="Do not ask before instances and their disks are deleted.")
@click.option("--json", "as_json", is_flag=True, help="Print the receipt as JSON.")
@pass_app
def command(app: App, *, yes: bool, as_json: bool) -> None:
    """Delete everything that `up` made, and prove it.

    Ends with a receipt: what was deleted, what a fresh look over the account still found (nothing), for how long the
    nodes ran, and what that cost.
    """
    config = app.config
    if not app.find_cloud():
        _print(app, Receipt(cluster=config.name), as_json=as_json)
        return
    clients = make_clients(config.provision.region)
    urls = [url for url in (config.data.url, config.data.results) if url is not None]
    asks = config.cloud == "aws" and not yes
    what_runs = ask_what_runs(app, describe_cluster(clients.ec2, name=config.name)) if asks else None
    ending = prepare_down(clients, name=config.name, files=app.files, report=app.report, urls=urls)
    if ending:
        app.say(render_plan(ending.plan).rstrip())
        if not confirm_ending(app, "Delete all of this?", what_runs):
            app.say("nothing was done")
            return
    receipt = down(ending, clients=clients, files=app.files, report=app.report)
    _print(app, receipt, as_json=as_json)
    if receipt.leftovers:
        raise ClusterError("not everything could be deleted", hint="cluster down, again in a minute")
    for unseen in receipt.unseen:
        if unseen.kind == ROLE and config.provision.instance_profile == "auto":
            raise AwsError(f"the {ROLE} that `up` made may still be there: {unseen.why}", hint="cluster iam-policy")


def _print(app: App, receipt: Receipt, *, as_json: bool) -> None:
    if as_json:
        app.print_json(receipt_document(receipt))
    else:
        app.print(render_receipt(receipt).rstrip())
