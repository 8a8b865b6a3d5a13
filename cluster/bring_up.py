"""What `up` and `resize` have in common: show the plan, ask, carry it out, and make the nodes ready."""

from collections.abc import Callable

from bootstrap.shelf import check_cache
from cluster.app import App
from cluster.config import load_config
from cluster.interruption import ask_what_runs, confirm_ending
from cluster.status import render_nodes
from provision.aws import Clients
from provision.describe import describe_nodes
from provision.lifecycle import Wishes, up
from provision.plan import Plan
from provision.progress import Event
from provision.render import render_plan
from provision.steps import LaunchNodes, TerminateInstances
from provision.user_folders import cache_folder
from train.payload import find_shadowed

Prepare = Callable[[frozenset[str]], Plan]


def override_nodes(app: App, nodes: int) -> int:
    """Have the command line say how many nodes the cluster has; how many cluster.toml says. Raises ConfigError.

    min_nodes goes with the file's nodes: of fewer nodes all are needed.
    """
    of_file = load_config(app.config_path).provision
    app.overrides["provision.nodes"] = nodes
    if of_file.min_nodes != "all" and of_file.min_nodes > nodes:
        app.overrides["provision.min_nodes"] = "all"
    return of_file.nodes


def find_wishes(app: App) -> Wishes:
    """What cluster.toml, with this command line, asks for."""
    config = app.config
    return Wishes(
        name=config.name,
        config=config.provision,
        data_url=config.data.url,
        results_url=config.data.results,
    )


def bring_up(
    app: App, clients: Clients, prepare: Prepare, *, dry_run: bool = False, yes: bool = False, keep_failed: bool = False
) -> bool:
    """Carry out what `prepare` plans; whether it was done, and not only shown or declined.

    Prints the nodes to stdout, or with dry_run the plan. Raises ClusterError.
    """
    config = app.config
    plan = prepare(frozenset())
    if any(isinstance(step, LaunchNodes) for step in plan.steps):
        check_cache(cache_folder())  # rather now than when the nodes are paid for
    shadowed = find_shadowed(config.train.script, project_dir=app.project_dir)
    if shadowed is not None:
        app.report(Event(kind="warn", what=shadowed))
    if dry_run:
        app.print(render_plan(plan).rstrip())
        return False
    app.say(render_plan(plan).rstrip())
    question = find_question(plan)
    if question and config.cloud == "aws" and not yes:
        interrupts = any(isinstance(step, TerminateInstances) for step in plan.steps)
        known = app.files.known_instances()
        what_runs = (
            ask_what_runs(app, describe_nodes(clients.ec2, name=config.name, known=known))
            if interrupts
            else lambda: None
        )
        if not confirm_ending(app, question, what_runs):
            app.say("nothing was done")
            return False
    try:
        state = up(plan, clients=clients, files=app.files, report=app.report, replan=prepare, keep_failed=keep_failed)
        changed = bool(plan)
        if state.nodes:
            # Not before there are nodes: what ssh needs takes 20 MB and half a second.
            from cluster.session import BOOT_TIMEOUT_S, ready_nodes  # noqa: PLC0415 - see above

            with ready_nodes(app, state, wait_s=BOOT_TIMEOUT_S) as (ready, _):
                changed = changed or any(node.changed for node in ready)
    except KeyboardInterrupt:
        app.say(
            "nodes that were launched stay, and cost money: cluster up completes them, cluster down ends them",
            style="yellow",
        )
        raise
    app.print(render_nodes(state))
    if state.nodes:
        ready_text = f"cluster {config.name} is ready"
        app.say(ready_text if changed else f"{ready_text}; there was nothing to do", style="green")
    return True


def find_question(plan: Plan) -> str | None:
    """What to ask before a plan is carried out; None when it neither costs nor ends anything. Pure."""
    launching = sum(len(step.indices) for step in plan.steps if isinstance(step, LaunchNodes))
    ending = sum(len(step.nodes) for step in plan.steps if isinstance(step, TerminateInstances))
    if launching and ending:
        return f"Launch {launching} instances, and end {ending} with their disks?"
    if ending:
        return f"End {ending} instances with their disks?"
    return f"Launch {launching} instances?" if launching else None
