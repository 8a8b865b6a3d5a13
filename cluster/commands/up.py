"""`cluster up`, `resize` and `start`: show the plan, ask the user, carry it out, and set the nodes up."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import click

from bootstrap.environment.file_cache import check_cache
from bootstrap.environment.project import check_against_lock, read_project
from bootstrap.environment.requirements import read_packages
from bootstrap.ssh.host_list import read_host_list
from bootstrap.transfer.sync import find_files
from cluster import existing_hosts
from cluster.app import App, if_interrupted, pass_app
from cluster.config import ClusterConfig, load_config
from cluster.costs import noting_costs
from cluster.jobs import ask_for_job, ask_head, confirm_ending, end_job, open_head
from cluster.lease import tell_ready_nodes
from cluster.nodes.ec2 import Ec2Nodes, describe_state
from cluster.recovery.lost_head import continue_jobs, look_for_lost_head
from cluster.recovery.replacement import continue_waiting, replace_unhealthy
from cluster.session import BOOT_TIMEOUT_S, check_ahead, describe, find_wishes, ready_nodes
from cluster.views.status import render_nodes, render_volume
from foundation.errors import ClusterError, UsageError
from foundation.progress import Event
from foundation.user_folders import cache_folder
from provision.aws.clients import Clients, make_clients
from provision.config import all_regions, all_types
from provision.model import MAX_NODES, Node
from provision.oracle.decide import check_mxnet
from provision.oracle.torch import check_torch
from provision.pause import StartInstances, prepare_start
from provision.plan import Plan
from provision.preflight.prices import find_volume_price
from provision.regions import leave_region, try_regions
from provision.render import render_plan
from provision.resources.instances import TerminateInstances
from provision.resources.launch import LaunchNodes
from provision.resources.shared_volume import find_shared_volumes
from provision.up import prepare_resize, prepare_up, refuse_no_nodes
from provision.up import up as carry_out
from provision.volumes.config import find_head_volume
from train.job.payload import find_script, find_shadowed

LEFT_BY_UP = "cluster up continues with the launched nodes, cluster down terminates them; until then they cost money"


@click.command("up")
@click.option("--nodes", type=int, metavar="N", help="Number of nodes; overrides [provision] nodes.")
@click.option(
    "-H",
    "--hostfile",
    type=click.Path(),  # see commands/train.py
    metavar="FILE",
    help='For cloud = "hosts": the nodes, one per line; pbs, slurm or sge: those of the allocation.',
)
@click.option(
    "--dry-run",
    is_flag=True,
    help="Print findings and plan; launch nothing (but start the sandbox if it is not running).",
)
@click.option("--keep-failed", is_flag=True, help="Keep launched instances if the launch fails.")
@click.option("-y", "--yes", is_flag=True, help="Launch instances that cost money without asking.")
@pass_app
def up(app: App, *, nodes: int | None, hostfile: str | None, dry_run: bool, keep_failed: bool, yes: bool) -> None:
    """Launch the cluster's nodes and prepare them for training.

    Running it again is safe: it creates only what is missing, and completes an interrupted `up`. With cloud = "hosts"
    it launches nothing, and prepares the existing hosts.
    """
    if not app.has_instances:
        up_hosts(app, nodes=nodes, hostfile=hostfile, dry_run=dry_run)
        return
    if hostfile is not None:
        raise UsageError(
            'cluster up -H is for cloud = "hosts"; with instances, [provision] nodes is their number',
            hint="cluster train -H FILE runs a job on some of the nodes",
        )
    if nodes is not None:
        override_nodes(app, nodes)
    config = app.config
    refuse_no_nodes(config.provision)  # before a sandbox is started
    packages = read_packages(config.bootstrap.packages, folder=app.project_dir)
    check_against_lock(packages, read_project(config.bootstrap.project, folder=app.project_dir).packages)
    if config.bootstrap.sync != "auto":
        find_files(app.project_dir, sync=config.bootstrap.sync, exclude=config.bootstrap.exclude)
    find_script(config.train.script, project_dir=app.project_dir)  # before anything costs money
    for warning in check_types(config):
        app.say(f"warning: {warning}", style="yellow")
    with if_interrupted("run cluster up again; no node was launched"):
        app.enter_cloud(start_sandbox=True)
        up_in_a_region(app, dry_run=dry_run, yes=yes, keep_failed=keep_failed)


def up_in_a_region(app: App, *, dry_run: bool, yes: bool, keep_failed: bool) -> None:
    """Brings the cluster up in the region that has it, or else in the first region that has capacity for its nodes.

    Deletes everything created in one region before it tries the next. Raises ClusterError.
    """
    agreed, regions = yes, all_regions(app.config.provision)

    def attempt(region: str) -> None:
        nonlocal agreed
        app.use_region(region)
        clients = make_clients(region)
        if not dry_run and app.files.addresses():  # this machine has set up nodes
            described = Ec2Nodes(describe_state(app, clients), app.config.provision)
            lost = look_for_lost_head(app, described.state)
            continues = continue_jobs(app, lost, described.state, is_asked=True)
            job = None if continues else ask_for_job(app, described)()
            if not continue_waiting(app, job.record if job is not None else None, waits=True):
                replace_unhealthy(app, described, job, yes=yes)
        wishes = find_wishes(app)

        def prepare(avoid: frozenset[str]) -> Plan:
            return prepare_up(clients, wishes=wishes, files=app.files, avoid=avoid)

        plan = prepare(frozenset())
        elsewhere = regions[regions.index(region) + 1 :]
        if elsewhere and any(isinstance(step, LaunchNodes) for step in plan.steps):
            app.say(f"if {region} cannot give the nodes, then: {', '.join(elsewhere)}")
        has_agreed, agreed = agreed, True  # another region is tried only after the user has agreed
        bring_up(app, clients, prepare, plan=plan, dry_run=dry_run, yes=has_agreed, keep_failed=keep_failed)

    def leave(region: str) -> str | None:
        return leave_region(make_clients(region), name=app.config.name, files=app.files_in(region), report=app.report)

    try_regions(regions, attempt=attempt, leave=leave, report=app.report)


def up_hosts(app: App, *, nodes: int | None, hostfile: str | None, dry_run: bool) -> None:
    """Runs `cluster up` for existing hosts.

    Raises UsageError for options that do not apply, ClusterError or a subclass.
    """
    if nodes is not None:
        raise UsageError(
            'cluster up --nodes is for instances; with cloud = "hosts", [hosts] names or -H lists the nodes',
            hint="edit [hosts] names in cluster.toml, then run cluster up",
        )
    if hostfile is not None:
        if app.config.hosts.names:
            raise UsageError(
                "[hosts] names in cluster.toml lists the nodes already, and -H would list others",
                hint="remove [hosts] names; or cluster train -H FILE, for the hosts of one job",
            )
        app.override("train.hosts", read_host_list(hostfile, os.environ))
    existing_hosts.up(app, dry_run=dry_run)


def check_types(config: ClusterConfig) -> Iterator[str]:
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


class NodeCount(click.ParamType[int]):
    """The requested number of nodes of a cluster."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Returns the number. Raises BadParameter."""
        text = str(value)
        if not text.isdecimal() or int(text) > MAX_NODES:
            self.fail(f"{text!r} is not a number of nodes, 0 to {MAX_NODES}", param, ctx)
        return int(text)


@click.command("resize")
@click.argument("nodes", type=NodeCount(), metavar="N")
@click.option("--dry-run", is_flag=True, help="Print findings and plan; change nothing.")
@click.option("--keep-failed", is_flag=True, help="Keep launched instances if the launch fails.")
@click.option("-y", "--yes", is_flag=True, help="Launch and terminate instances without asking.")
@pass_app
def resize(app: App, *, nodes: int, dry_run: bool, keep_failed: bool, yes: bool) -> None:
    """Change the number of nodes.

    To grow, it launches nodes in the same subnet and of the same type. To shrink, it stops the jobs that use the nodes
    with the highest numbers, terminates these nodes and deletes their disks. 0 terminates all nodes. It keeps the
    resources that cost nothing, and the volume of [[volumes]] source = "head", for the next `cluster up` or `cluster
    resize`.
    """
    app.check_has_instances("resize", instead="edit [hosts] names in cluster.toml, then run cluster up")
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
    if done and nodes == 0:
        for line in describe_left_volumes(app, clients):
            app.say(line)
    if done and nodes != asked:
        app.say(
            f"cluster.toml has nodes = {asked}, which the next `cluster up` restores: to keep {nodes}, change it there"
        )


@click.command("start")
@click.option("-y", "--yes", is_flag=True, help="Start nodes that cost money without asking.")
@pass_app
def start(app: App, *, yes: bool) -> None:
    """Start stopped nodes and prepare them for training.

    They keep their disks and private addresses, but get new public addresses. ssh is allowed from this machine's
    current address.
    """
    app.check_has_instances("start", instead="cluster up, which sets up the hosts")
    find_script(app.config.train.script, project_dir=app.project_dir)  # before anything costs money
    app.enter_cloud()
    config = app.config
    clients = make_clients(config.provision.region)
    bring_up(
        app,
        clients,
        lambda _avoid: prepare_start(
            clients,
            name=config.name,
            config=config.provision,
            files=app.files,
            has_volume=find_head_volume(config.volumes) is not None,
            lease=config.lease,
        ),
        yes=yes,
        replan=False,
        interrupted="cluster start completes it, cluster stop --nodes stops the nodes; until then they cost money",
    )


def describe_left_volumes(app: App, clients: Clients) -> Iterator[str]:
    """Yields a line for each volume of a cluster without nodes, with its cost. Raises AwsError."""
    found = find_shared_volumes(clients.ec2, name=app.config.name)
    price = find_volume_price(clients) if found else None
    yield from (render_volume(volume, usd_per_gib_month=price, price_note=app.price_note) for volume in found)


def override_nodes(app: App, nodes: int) -> int:
    """Overrides the number of nodes, and returns the number in cluster.toml. Raises ConfigError.

    If it is less than min_nodes in cluster.toml, min_nodes becomes "all".
    """
    of_file = load_config(app.config_path).provision
    app.override("provision.nodes", nodes)
    if of_file.min_nodes != "all" and of_file.min_nodes > nodes:
        app.override("provision.min_nodes", "all")
    return of_file.nodes


def bring_up(
    app: App,
    clients: Clients,
    prepare: Callable[[frozenset[str]], Plan],
    *,
    plan: Plan | None = None,
    dry_run: bool = False,
    yes: bool = False,
    keep_failed: bool = False,
    replan: bool = True,
    interrupted: str = LEFT_BY_UP,
) -> bool:
    """Carries out the plan of `prepare`, and sets the nodes up. Returns False if it was only shown, or declined.

    Prints the nodes to stdout, or the plan if dry_run. plan: the plan, if `prepare` was called already. interrupted:
    the hint after Ctrl-C. Raises ClusterError.
    """
    config = app.config
    plan = plan if plan is not None else prepare(frozenset())
    if any(isinstance(step, LaunchNodes) for step in plan.steps):
        check_cache(cache_folder())  # before anything costs money
        check_ahead(app)
    shadowed = find_shadowed(config.train.script, project_dir=app.project_dir)
    if shadowed is not None:
        app.report(Event(kind="warn", what=shadowed))
    if dry_run:
        app.print(render_plan(plan, price_note=app.price_note).rstrip())
        return False
    app.say(render_plan(plan, price_note=app.price_note).rstrip())
    question = find_question(plan)
    if question and not yes:
        interrupts = any(isinstance(step, TerminateInstances) for step in plan.steps)
        find_job = ask_for_job(app, describe(app, clients)) if interrupts else lambda: None
        if not confirm_ending(app, question, find_job):
            app.say("cancelled: nothing was changed")
            return False
    with if_interrupted(interrupted):
        end_jobs_on(
            app, clients, [node for step in plan.steps if isinstance(step, TerminateInstances) for node in step.nodes]
        )
        if any(isinstance(step, LaunchNodes) for step in plan.steps) and app.on_head is None:
            app.files.note_folder(app.project_dir)
        with noting_costs(app, clients):
            state = carry_out(
                plan,
                clients=clients,
                files=app.files,
                report=app.report,
                replan=prepare if replan else None,
                keep_failed=keep_failed,
            )
        changed = bool(plan)
        if state.nodes:
            with ready_nodes(app, Ec2Nodes(state, config.provision), wait_s=BOOT_TIMEOUT_S) as (ready, _):
                changed = changed or any(node.changed for node in ready)
                tell_ready_nodes(app, clients, state, ready, now=time.time())
    app.print(render_nodes(state, columns=app.find_columns()))
    if not state.nodes:
        app.files.keep_addresses({})  # later commands do not look for these nodes as lost
    if state.nodes:
        ready_text = f"cluster {config.name} is ready"
        app.say(ready_text if changed else f"{ready_text}; there was nothing to do", style="green")
        app.say("next: cluster train; cluster down terminates the nodes")
    return True


def end_jobs_on(app: App, clients: Clients, leaving: Sequence[Node]) -> None:
    """Stops the jobs that use nodes which are about to end: they would wait for them, and have them launched again.

    An error is only a warning: the nodes of a head that does not answer can end, too.
    """
    if not leaving:
        return
    names = {node.name for node in leaving}
    try:
        with open_head(app, describe(app, clients)) as head:
            for record in ask_head(app, head):  # the newest first: queued jobs must not start
                if used := [host.name for host in record.nodes if host.name in names and not record.has_ended]:
                    app.say(f"stopping job {record.id} ({record.name}), which uses {', '.join(used)}")
                    end_job(app, head, record.id)
    except ClusterError as error:
        app.warn_of(error)


def find_question(plan: Plan) -> str | None:
    """Returns the question to ask before a plan is carried out; None if it neither costs nor ends anything. Pure."""
    launching = sum(len(step.indices) for step in plan.steps if isinstance(step, LaunchNodes))
    ending = sum(len(step.nodes) for step in plan.steps if isinstance(step, TerminateInstances))
    if launching and ending:
        return f"Launch {launching} instances, and end {ending} with their disks?"
    if ending:
        return f"End {ending} instances with their disks?"
    if launching:
        return f"Launch {launching} instances?"
    starting = sum(len(step.nodes) for step in plan.steps if isinstance(step, StartInstances))
    return f"Start {starting} instances?" if starting else None
