"""`cluster up`."""

import click

from cluster.app import App, pass_app
from cluster.session import BOOT_TIMEOUT_S, ready_nodes
from cluster.status import render_nodes
from provision.aws import make_clients
from provision.lifecycle import prepare_up, up
from provision.oracle import check_mxnet
from provision.render import render_plan
from train.payload import find_script


@click.command("up")
@click.option("--nodes", type=int, metavar="N", help="How many nodes, instead of [provision] nodes.")
@click.option("--dry-run", is_flag=True, help="Print what would be done, and do nothing.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask before instances are launched that cost money.")
@pass_app
def command(app: App, *, nodes: int | None, dry_run: bool, yes: bool) -> None:
    """Launch the cluster's nodes and make them ready to train.

    What is there already is left as it is: a second `up` has nothing to do, and one after an `up` that was interrupted
    completes it.
    """
    if nodes is not None:
        app.overrides["provision.nodes"] = nodes
    config = app.config
    find_script(config.train.script, project_dir=app.project_dir)  # rather now than when the nodes are paid for
    for warning in check_mxnet(
        instance_type=config.provision.instance_type, mxnet=config.bootstrap.mxnet, ami=config.provision.ami
    ):
        app.say(f"warning: {warning}", style="yellow")
    app.enter_cloud(start_sandbox=True)
    clients = make_clients(config.provision.region)
    plan = prepare_up(clients, name=config.name, config=config.provision, files=app.files)
    if dry_run:
        app.print(render_plan(plan).rstrip())
        return
    app.say(render_plan(plan).rstrip())
    if plan and config.cloud == "aws" and not app.confirm("Launch these instances?", yes=yes):
        app.say("nothing was done")
        return
    state = up(plan, clients=clients, files=app.files, report=app.report)
    with ready_nodes(app, state, wait_s=BOOT_TIMEOUT_S) as (ready, _):
        changed = bool(plan) or any(node.changed for node in ready)
    app.print(render_nodes(state))
    ready_text = f"cluster {config.name} is ready"
    app.say(ready_text if changed else f"{ready_text}; there was nothing to do", style="green")
