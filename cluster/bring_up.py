"""Brings a cluster's nodes up: shows the plan, asks the user, carries it out, and sets the nodes up."""

import time
from collections.abc import Callable, Iterator
from contextlib import suppress

from bootstrap.environment.file_cache import check_cache
from bootstrap.transfer.sync import find_files
from cluster.app import App, if_interrupted
from cluster.config import ClusterConfig
from cluster.costs import noting_costs
from cluster.jobs import ask_for_job, end_jobs, require_ending
from cluster.lease import count_budget, send_lease
from cluster.nodes.ec2 import describe_state, nodes_of
from cluster.recovery.lost_head import continue_jobs, try_find_lost_head
from cluster.recovery.replacement import replace_lost, replace_unhealthy
from cluster.session import BOOT_TIMEOUT_S, check_ahead, describe, find_request, read_packages, ready_nodes
from cluster.views.status import render_nodes
from foundation.errors import ClusterError
from foundation.user_folders import cache_folder
from provision.aws.clients import make_clients
from provision.config import all_regions, all_types
from provision.model import ClusterState, count
from provision.oracle.decide import check_mxnet
from provision.oracle.torch import check_torch
from provision.plan import Plan
from provision.power import StartInstances
from provision.regions import leave_region, try_regions
from provision.render import render_plan
from provision.resources.instances import TerminateInstances
from provision.resources.launch import LaunchNodes
from provision.up import prepare_up
from provision.up import up as carry_out
from train.job.payload import find_script

LEFT_BY_UP = "cluster up continues with the launched nodes, cluster down terminates them; until then they cost money"


def check_inputs(app: App) -> None:
    """Checks what cluster.toml names on this machine, before anything costs money or is changed. Raises ClusterError.

    Warns of instance types that do not fit the framework.
    """
    config = app.config
    read_packages(app)
    if config.bootstrap.sync != "auto":
        find_files(app.project_dir, sync=config.bootstrap.sync, exclude=config.bootstrap.exclude)
    find_script(config.train.script, project_dir=app.project_dir)
    for warning in _check_types(config) if app.has_instances else ():
        app.message(f"warning: {warning}", style="yellow")


def _check_types(config: ClusterConfig) -> Iterator[str]:
    """Yields warnings about the instance types with the framework. Raises ConfigError if they cannot work together."""
    for instance_type in all_types(config.provision):
        is_other = instance_type != config.provision.instance_type
        if config.bootstrap.framework == "mxnet" and config.bootstrap.mxnet != "installed":
            yield from check_mxnet(
                instance_type=instance_type,
                mxnet=config.bootstrap.mxnet,
                ami=config.provision.ami,
                is_other=is_other,
            )
        elif config.bootstrap.framework == "pytorch":
            yield from check_torch(instance_type=instance_type, torch=config.bootstrap.torch, is_other=is_other)


Agree = Callable[[Plan], bool]
"""Asks the user about a plan, which may be empty, in place of find_question. Returns whether settings have changed."""


def up_in_a_region(app: App, *, dry_run: bool, yes: bool, keep_failed: bool, agree: Agree | None = None) -> None:
    """Brings the cluster up in the region that has it, or else in the first region that has capacity for its nodes.

    Deletes everything created in one region before it tries the next. agree: see bring_up. Raises ClusterError.
    """
    agreed, regions = yes, all_regions(app.config.provision)

    def attempt(region: str) -> None:
        nonlocal agreed, agree
        app.use_region(region)
        if not dry_run and app.files.addresses():  # this machine has set up nodes
            state = describe_state(app)
            continues = continue_jobs(app, try_find_lost_head(app, state), state)
            job = None if continues else ask_for_job(app, nodes_of(app, state))()
            if job is not None and job.record is not None and job.record.state == "waiting":
                replace_lost(app, job.record)
            else:
                replace_unhealthy(app, state, job, yes=yes)

        def prepare(avoid: frozenset[str]) -> Plan:
            return prepare_up(app.clients, request=find_request(app), files=app.files, avoid=avoid)

        plan = prepare(frozenset())
        elsewhere = regions[regions.index(region) + 1 :]
        if elsewhere and any(isinstance(step, LaunchNodes) for step in plan.steps):
            app.message(f"if {region} cannot give the nodes, then: {', '.join(elsewhere)}")
        has_agreed, asks = agreed, agree
        agreed, agree = True, None  # for the next region: the user has agreed, or there was no plan for this one
        bring_up(app, prepare, plan=plan, dry_run=dry_run, yes=has_agreed, keep_failed=keep_failed, agree=asks)

    def leave(region: str) -> str | None:
        files = app.files_in(region)
        return leave_region(
            make_clients(region), request=find_request(app), files=files, report=app.report, is_dry=dry_run
        )

    try_regions(regions, attempt=attempt, leave=leave, report=app.report)


def bring_up(
    app: App,
    prepare: Callable[[frozenset[str]], Plan],
    *,
    plan: Plan | None = None,
    dry_run: bool = False,
    yes: bool = False,
    keep_failed: bool = False,
    interrupted: str = LEFT_BY_UP,
    agree: Agree | None = None,
) -> bool:
    """Carries out the plan of `prepare`, and sets the nodes up. Returns False if it was only shown.

    Prints the nodes to stdout, or the plan if dry_run. plan: the plan, if `prepare` was called already. interrupted:
    the hint after Ctrl-C. agree: asks the user; nodes that are there are then not set up. Raises ClusterError.
    """
    plan = plan if plan is not None else prepare(frozenset())
    if any(isinstance(step, LaunchNodes) for step in plan.steps):
        check_cache(cache_folder())  # before anything costs money
        check_ahead(app)
    show = app.print if dry_run else app.message
    show(render_plan(plan, price_note=app.price_note).rstrip())
    if agree is not None:
        plan = prepare(frozenset()) if agree(plan) else plan
    elif not (yes or dry_run):
        _ask(app, plan)
    if dry_run or (agree is not None and not plan):
        return False
    with if_interrupted(interrupted):
        leaving = {node.name for step in plan.steps if isinstance(step, TerminateInstances) for node in step.nodes}
        if leaving:  # a job there would wait for them, and have them launched again
            end_jobs(app, describe(app), lambda record: [host.name for host in record.nodes if host.name in leaving])
        if plan.world and app.on_head is None:
            app.files.note_launch(app.project_dir, account=plan.world.caller.account_id)
        try:
            with noting_costs(app):
                state = carry_out(
                    plan,
                    clients=app.clients,
                    files=app.files,
                    report=app.report,
                    replan=prepare,
                    keep_failed=keep_failed,
                )
        except ClusterError:
            with suppress(ClusterError):  # the budget of the nodes that are left
                count_budget(app, describe_state(app), now=time.time())
            raise
        changed = bool(plan)
        if state.nodes:
            with ready_nodes(app, nodes_of(app, state), wait_s=BOOT_TIMEOUT_S) as (ready, _):
                changed = changed or any(node.changed for node in ready)
                send_lease(app, state, ready, now=time.time())
    if not state.nodes:
        app.files.keep_addresses({})  # later commands do not look for these nodes as lost
    _show_end(app, state, changed=changed)
    return True


def _show_end(app: App, state: ClusterState, *, changed: bool) -> None:
    if not app.is_temporary:
        app.print(render_nodes(state, columns=app.find_columns()))
    if state.nodes and not app.is_temporary:
        ready_text = f"cluster {app.config.name} is ready"
        app.message(ready_text if changed else f"{ready_text}; there was nothing to do", style="green")
        app.message("next: cluster train; cluster down terminates the nodes")


def _ask(app: App, plan: Plan) -> None:
    """Asks before a plan that costs or ends something is carried out. Raises ClusterError."""
    question = find_question(plan)
    if question is not None:
        interrupts = any(isinstance(step, TerminateInstances) for step in plan.steps)
        require_ending(app, question, ask_for_job(app, describe(app))() if interrupts else None)


def find_question(plan: Plan) -> str | None:
    """Returns the question to ask before a plan is carried out; None if it neither costs nor ends anything. Pure."""
    launching = sum(len(step.indices) for step in plan.steps if isinstance(step, LaunchNodes))
    ending = sum(len(step.nodes) for step in plan.steps if isinstance(step, TerminateInstances))
    if launching and ending:
        return f"Launch {count(launching, 'instance')}, and end {ending} with their disks?"
    if ending:
        return f"End {count(ending, 'instance')} with {'its disk' if ending == 1 else 'their disks'}?"
    if launching:
        return f"Launch {count(launching, 'instance')}?"
    starting = sum(len(step.nodes) for step in plan.steps if isinstance(step, StartInstances))
    return f"Start {count(starting, 'instance')}?" if starting else None
