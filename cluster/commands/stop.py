"""`cluster stop`."""

import click

from cluster.app import App, pass_app
from cluster.status import render_usd
from provision.apply import apply
from provision.aws import make_clients
from provision.errors import UsageError
from provision.pausing import describe_disks_gib, prepare_stop
from provision.preflight.prices import find_volume_price
from provision.render import render_plan


@click.command("stop")
@click.option("--nodes", is_flag=True, help="Stop the nodes themselves.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask before nodes are stopped on AWS.")
@pass_app
def command(app: App, *, nodes: bool, yes: bool) -> None:
    """Stop the nodes; they keep their disks, and cost only these, until `cluster start`.

    What runs on them is interrupted. Ends with what the stopped cluster still costs. Spot instances cannot be
    stopped: `cluster resize 0` releases them.
    """
    if not nodes:
        raise UsageError("cluster stop: say what is to be stopped", hint="cluster stop --nodes")
    app.enter_cloud()
    name = app.config.name
    clients = make_clients(app.config.provision.region)
    plan = prepare_stop(clients, name=name, files=app.files, report=app.report)
    app.say(render_plan(plan).rstrip())
    question = "Stop these nodes? A job that runs on them is interrupted."
    if plan and app.config.cloud == "aws" and not app.confirm(question, yes=yes):
        app.say("nothing was done")
        return
    apply(plan, clients=clients, files=app.files, report=app.report)
    disks_gib = describe_disks_gib(clients.ec2, name=name)
    app.print(render_stopped(name, disks_gib=disks_gib, usd_per_gib_month=find_volume_price(clients)))


def render_stopped(name: str, *, disks_gib: int, usd_per_gib_month: float | None) -> str:
    """What a stopped cluster costs, until when. Pure."""
    cost = None if usd_per_gib_month is None else disks_gib * usd_per_gib_month
    return (
        f"cluster {name} is stopped; its disks, {disks_gib} GiB, still cost money: {render_usd(cost)} a month, "
        "until `cluster start` or `cluster down`"
    )
