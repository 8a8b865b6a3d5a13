"""`cluster allow`."""

from collections.abc import Collection

import click

from cluster.app import App, pass_app
from provision.apply import apply
from provision.aws import make_clients
from provision.pausing import prepare_allow


@click.command("allow")
@pass_app
def command(app: App) -> None:
    """Let this machine's present address in by ssh, instead of the one before.

    For when it has changed and connections time out; with [provision] ssh_from that network instead. Rules that were
    made by hand stay.
    """
    app.enter_cloud()
    clients = make_clients(app.config.provision.region)
    plan, group, ssh_from = prepare_allow(clients, name=app.config.name, config=app.config.provision, files=app.files)
    apply(plan, clients=clients, files=app.files, report=app.report)
    app.print(render_allowed(group.ssh_from, group.ssh_open_to, ssh_from=ssh_from))


def render_allowed(before: Collection[str], open_to: Collection[str], *, ssh_from: str) -> str:
    """What was allowed and what is now. before: this program's rules; open_to: those made by hand as well. Pure."""
    by_hand = sorted(set(open_to) - set(before) - {ssh_from})
    others = f"; also from {', '.join(by_hand)}, by rules that were made by hand" if by_hand else ""
    if ssh_from in open_to and not set(before) - {ssh_from}:
        return f"ssh is allowed from {ssh_from}, as it was{others}"
    was = ", ".join(sorted(before)) or "nowhere"
    return f"ssh is allowed from {ssh_from}; it was from {was}{others}"
