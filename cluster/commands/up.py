"""`cluster up`, `resize` and `start`."""

import os

import click

from bootstrap.ssh.host_list import read_host_list
from cluster import existing_hosts
from cluster.app import App, if_interrupted, pass_app
from cluster.bring_up import bring_up, check_inputs, up_in_a_region
from cluster.config import load_config
from cluster.costs import find_spending, note_costs
from cluster.session import find_request
from foundation.errors import UsageError
from provision.model import MAX_NODES
from provision.power import prepare_start
from provision.up import prepare_resize, refuse_no_nodes


@click.command("up")
@click.option("--nodes", type=int, metavar="N", help="Number of nodes; overrides [provision] nodes.")
@click.option(
    "-H",
    "--hostfile",
    type=click.Path(),  # see commands/job/train.py
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
    refuse_no_nodes(app.config.provision)  # before a sandbox is started
    check_inputs(app)
    with if_interrupted("run cluster up again; no node was launched"):
        app.enter_cloud(start_sandbox=True)
        up_in_a_region(app, dry_run=dry_run, yes=yes, keep_failed=keep_failed)


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


@click.command("resize")
@click.argument("nodes", type=click.IntRange(0, MAX_NODES), metavar="N")
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
    wanted = override_nodes(app, nodes)
    app.enter_cloud()
    request = find_request(app)
    done = bring_up(
        app,
        lambda avoid: prepare_resize(app.clients, request=request, files=app.files, avoid=avoid, report=app.report),
        dry_run=dry_run,
        yes=yes,
        keep_failed=keep_failed,
    )
    if done and nodes != wanted:
        app.message(
            f"cluster.toml has nodes = {wanted}, which the next `cluster up` restores: to keep {nodes}, change it there"
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
    check_inputs(app)
    app.enter_cloud()
    config = app.config
    if config.lease.budget is not None:
        note_costs(app)
    spending = find_spending(app)
    bring_up(
        app,
        lambda _avoid: prepare_start(
            app.clients,
            name=config.name,
            config=config.provision,
            files=app.files,
            lease=config.lease,
            spending=spending,
        ),
        yes=yes,
        interrupted="cluster start completes it, cluster stop --nodes stops the nodes; until then they cost money",
    )


def override_nodes(app: App, nodes: int) -> int:
    """Overrides the number of nodes, and returns the number in cluster.toml. Raises ConfigError.

    If it is less than min_nodes in cluster.toml, min_nodes becomes "all".
    """
    of_file = load_config(app.config_path).provision
    app.override("provision.nodes", nodes)
    if of_file.min_nodes != "all" and of_file.min_nodes > nodes:
        app.override("provision.min_nodes", "all")
    return of_file.nodes
