"""`cluster resize`."""

import click

from cluster.app import App, pass_app
from cluster.bring_up import bring_up, find_wishes, override_nodes
from provision.aws import make_clients
from provision.choices import MAX_NODES
from provision.lifecycle import prepare_resize


@click.command("resize")
@click.argument("nodes", type=click.IntRange(0, MAX_NODES), metavar="N")
@click.option("--dry-run", is_flag=True, help="Print what was found out and what would be done, and do nothing.")
@click.option("--keep-failed", is_flag=True, help="Leave what was launched as it is when the launch fails.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask before instances are launched or ended.")
@pass_app
def command(app: App, *, nodes: int, dry_run: bool, keep_failed: bool, yes: bool) -> None:
    """Make the cluster one of N nodes.

    More are launched beside those that are there, in the same subnet and of the same type. Fewer: those with the
    highest numbers end, with their disks. 0 ends all, and keeps what costs nothing, so that `cluster up` or
    `cluster resize N` goes on with it.
    """
    asked = override_nodes(app, nodes)
    app.enter_cloud()
    clients = make_clients(app.config.provision.region)
    wishes = find_wishes(app)
    done = bring_up(
        app,
        clients,
        lambda avoid: prepare_resize(clients, wishes=wishes, files=app.files, avoid=avoid, report=app.report),
        dry_run=dry_run,
        yes=yes,
        keep_failed=keep_failed,
    )
    if done and nodes != asked:
        app.say(f"cluster.toml says nodes = {asked}, and `cluster up` goes by that: write {nodes} there to keep it so")
