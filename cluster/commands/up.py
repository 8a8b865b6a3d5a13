"""`cluster up`."""

import click

from cluster.app import App, pass_app
from cluster.bring_up import bring_up, find_wishes, override_nodes
from provision.aws import make_clients
from provision.config import all_types
from provision.lifecycle import prepare_up
from provision.oracle.judge import check_mxnet
from train.payload import find_script


@click.command("up")
@click.option("--nodes", type=int, metavar="N", help="How many nodes, instead of [provision] nodes.")
@click.option(
    "--dry-run",
    is_flag=True,
    help="Print what was found out and what would be done, and launch nothing (a sandbox is started if none runs).",
)
@click.option("--keep-failed", is_flag=True, help="Leave what was launched as it is when the launch fails.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask before instances are launched that cost money.")
@pass_app
def command(app: App, *, nodes: int | None, dry_run: bool, keep_failed: bool, yes: bool) -> None:
    """Launch the cluster's nodes and make them ready to train.

    What is there already is left as it is: a second `up` has nothing to do, and one after an `up` that was interrupted
    completes it.
    """
    if nodes is not None:
        override_nodes(app, nodes)
    config = app.config
    find_script(config.train.script, project_dir=app.project_dir)  # rather now than when the nodes are paid for
    for instance_type in all_types(config.provision):
        for warning in check_mxnet(
            instance_type=instance_type,
            mxnet=config.bootstrap.mxnet,
            ami=config.provision.ami,
            is_other=instance_type != config.provision.instance_type,
        ):
            app.say(f"warning: {warning}", style="yellow")
    app.enter_cloud(start_sandbox=True)
    clients = make_clients(config.provision.region)
    wishes = find_wishes(app)
    bring_up(
        app,
        clients,
        lambda avoid: prepare_up(clients, wishes=wishes, files=app.files, avoid=avoid),
        dry_run=dry_run,
        yes=yes,
        keep_failed=keep_failed,
    )
