"""`cluster start`."""

import click

from cluster.app import App, pass_app
from cluster.session import BOOT_TIMEOUT_S, ready_nodes
from cluster.status import render_nodes
from provision.aws import make_clients
from provision.lifecycle import up
from provision.pausing import prepare_start
from provision.render import render_plan
from provision.steps import StartInstances
from train.payload import find_script


@click.command("start")
@click.option("-y", "--yes", is_flag=True, help="Do not ask before nodes are started that cost money.")
@pass_app
def command(app: App, *, yes: bool) -> None:
    """Start stopped nodes, and make them ready to train again.

    They have their disks and private addresses as before, and other public ones. ssh is allowed from this machine's
    present address.
    """
    config = app.config
    find_script(config.train.script, project_dir=app.project_dir)  # rather now than when the nodes cost money again
    app.enter_cloud()
    clients = make_clients(config.provision.region)
    plan = prepare_start(clients, name=config.name, config=config.provision, files=app.files)
    app.say(render_plan(plan).rstrip())
    starting = sum(len(step.nodes) for step in plan.steps if isinstance(step, StartInstances))
    question = f"Start {starting} instances?"
    if starting and config.cloud == "aws" and not app.confirm(question, yes=yes):
        app.say("nothing was done")
        return
    try:
        state = up(plan, clients=clients, files=app.files, report=app.report)
        with ready_nodes(app, state, wait_s=BOOT_TIMEOUT_S) as (ready, _):
            changed = bool(plan) or any(node.changed for node in ready)
    except KeyboardInterrupt:
        app.say(
            "interrupted: what was started runs and costs money; cluster start goes on, cluster stop --nodes stops it",
            style="yellow",
        )
        raise
    app.print(render_nodes(state))
    ready_text = f"cluster {config.name} is ready"
    app.say(ready_text if changed else f"{ready_text}; there was nothing to do", style="green")
