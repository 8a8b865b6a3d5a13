"""`cluster down`."""

from dataclasses import replace

import click

from cluster.app import App, pass_app
from cluster.interruption import ask_what_runs, confirm_ending
from provision.aws import make_clients
from provision.describe import describe_nodes
from provision.ending import ROLE, down, prepare_down
from provision.errors import AwsError, ClusterError
from provision.leftovers import Resource, Unseen
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
    what_runs = None
    if asks:
        state = describe_nodes(clients.ec2, name=config.name, known=app.files.known_instances())
        what_runs = ask_what_runs(app, state)
    ending = prepare_down(clients, name=config.name, files=app.files, report=app.report, urls=urls)
    others = app.files.other_hosts.exists()
    if ending:
        app.say(render_plan(ending.plan).rstrip())
        if others:
            app.say(_render_others(app))
        if not confirm_ending(app, "Delete all of this?", what_runs):
            app.say("nothing was done")
            return
    done, left = _release_others(app) if others else ((), ())
    receipt = down(ending, clients=clients, files=app.files, report=app.report)
    receipt = replace(receipt, deleted=(*receipt.deleted, *done), unseen=(*receipt.unseen, *left))
    _print(app, receipt, as_json=as_json)
    if receipt.leftovers:
        raise ClusterError("not everything could be deleted", hint="cluster down, again in a minute")
    for unseen in receipt.unseen:
        if unseen.kind == ROLE and config.provision.instance_profile == "auto":
            raise AwsError(f"the {ROLE} that `up` made may still be there: {unseen.why}", hint="cluster iam-policy")


def _render_others(app: App) -> str:
    """What of the plan is not AWS's."""
    from cluster.other_hosts import memory_of  # noqa: PLC0415 - not for those who have none

    _, known = memory_of(app).read()
    return f"on hosts of yours, take back the cluster's key and ~/.cluster: {', '.join(entry.spec for entry in known)}"


def _release_others(app: App) -> tuple[tuple[Resource, ...], tuple[Unseen, ...]]:
    """Before AWS's part, with which the way to them may end."""
    from cluster.other_hosts import release  # noqa: PLC0415 - as above

    return release(app)


def _print(app: App, receipt: Receipt, *, as_json: bool) -> None:
    if as_json:
        app.print_json(receipt_document(receipt))
    else:
        app.print(render_receipt(receipt).rstrip())
