"""Replaces the nodes that a job has lost, and gives the new ones to the job.

The job waits on its head. A command launches the missing nodes in the places that `up` would try, sets them up, sends
them the job's own files, and notifies the head. The other nodes are not touched. The command runs on the user's machine
or on the head itself (on_head.py). Each step can be interrupted: the next command finds what exists and continues.
"""

from collections.abc import Sequence
from contextlib import closing

from msgspec.structs import replace

from bootstrap.apply import ReadyNode
from bootstrap.ssh.connections import Connections, raise_failures, try_on_all
from bootstrap.ssh.host import Host
from bootstrap.ssh.node_program import runtime_command
from cluster.app import App, if_interrupted
from cluster.containers import find_login, prepare_image
from cluster.costs import find_node_prices, noting_costs
from cluster.jobs import head_of
from cluster.nodes.ec2 import nodes_of
from cluster.nodes.health_check import find_hardware
from cluster.nodes.source import Nodes
from cluster.recovery.consent import check_consent
from cluster.session import BOOT_TIMEOUT_S, find_request, ready_nodes, source_of
from cluster.views.status import HeadJob
from foundation.errors import ClusterError, ConnectError
from foundation.progress import Event
from foundation.remote_command import Quoted, RemoteCommand
from node.protocol import Record
from provision.apply import apply
from provision.model import ClusterState, Node
from provision.plan import Plan
from provision.render import render_plan
from provision.resources.instances import TerminateInstances
from provision.up import prepare_replacement
from provision.up import up as carry_out
from train.follow.run import replace_nodes
from train.job.lost_nodes import check_setup, find_lost, find_paths, plan_hosts

SEND_TIMEOUT_S = 900.0


def replace_unhealthy(app: App, state: ClusterState, job: HeadJob | None, *, yes: bool) -> None:
    """Replaces, after asking, the nodes that were unhealthy when a job or `cluster verify` last checked them.

    The head is not replaced, because its records would be lost. No node is replaced while a job runs, or with [train]
    on_node_loss = "fail". `up` sets the new nodes up afterwards. job: the head's answer. Raises ClusterError or a
    subclass.
    """
    if job is None or job.record is not None or app.config.train.on_node_loss != "requeue":
        return
    others = {node.name: node for node in state.nodes if node.role != "head"}
    unhealthy = job.find_unhealthy({name: node.instance_id for name, node in others.items()})
    if not unhealthy:
        return
    for name, reasons in unhealthy.items():
        app.message(f"{name} is unhealthy: {'; '.join(reasons)}")
    names = ", ".join(unhealthy)
    if not app.confirm(f"Terminate {names} and launch replacements?", yes=yes):
        app.message(f"did not replace {names}: jobs run on the other nodes")
        return
    with if_interrupted("cluster up continues; until then, nodes that it has launched cost money"):
        launch(app, {others[name].index: others[name].instance_id for name in unhealthy})


def replace_lost(app: App, job: Record) -> None:
    """Replaces the nodes that a job waits for, and gives it the new ones. The job then continues.

    Call enter_cloud first. Raises ClusterError or a subclass; the job then still waits. One reason is that its head
    replaces them.
    """
    check_consent(app, job)
    names, them = list(job.waiting_for), "it" if len(job.waiting_for) == 1 else "them"
    waits = f"job {job.id} ({job.name}) waits for {', '.join(names)}"
    if job.nodes[0].name in names:  # nobody ends it while the job's record is copied to S3
        raise ClusterError(f"{waits}, its head, to end: then cluster up continues it", hint=f"cluster stop {job.id}")
    if job.head_replaces and app.on_head is None:
        raise ClusterError(f"{waits}, and the head is replacing {them} itself", hint=f"cluster logs -f {job.id}")
    app.message(f"{waits}: replacing {them}")
    with if_interrupted("the job waits; cluster up continues"):
        state = launch_for(app, job, find_lost(job, names))
        nodes = nodes_of(app, state)
        hardware = find_hardware(app, lambda: nodes)
        used = {host.name: host.instance_id for host in job.nodes if host.instance_id}

        def choose(_nodes: Nodes, found: Sequence[Host], _connections: Connections) -> Sequence[Host]:
            return [host for host in found if host.is_head or host.name in used]

        with ready_nodes(app, nodes, wait_s=BOOT_TIMEOUT_S, choose=choose) as (set_up, _):
            ready = tuple(replace(node, hardware=hardware.get(node.host.name)) for node in set_up)
            now = {node.host.name: node.host.instance_id for node in ready}
            # Other nodes may have been replaced, too, and a new node may have the address of an old one.
            names = [name for name in used if name in names or now.get(name) != used[name]]
            hosts = plan_hosts(job, ready, names, find_node_prices(app, nodes))
            prepare_for(app, job, ready, [node for node in ready if node.host.name in names])
            with closing(head_of(app, ready)) as head:
                left = replace_nodes(head, job.id, hosts)
    if left:
        raise ClusterError(f"job {job.id} still waits for {', '.join(left)}", hint="cluster up")
    app.message(f"job {job.id} continues: cluster logs -f {job.id} follows it", style="green")


def launch_for(app: App, job: Record, lost: dict[int, str]) -> ClusterState:
    """Launches nodes in place of a job's lost ones, and waits until all of its nodes answer. Returns the cluster.

    lost: see prepare_replacement. Raises ClusterError if nodes do not answer within BOOT_TIMEOUT_S. They are then
    terminated, so that the next command launches others, except the head that has the job.
    """
    state = launch(app, lost, job)
    silent = find_silent(app, job, state)
    failed = [node for node in state.nodes if node.name in silent]
    if not failed:
        return state
    error = silent[failed[0].name]
    if failed[0].instance_id == job.nodes[0].instance_id:
        raise error
    end_nodes(app, failed)
    names = ", ".join(node.name for node in failed)
    raise ClusterError(
        f"job {job.id} waits for {names}, which did not answer and {'is' if len(failed) == 1 else 'are'} terminated: "
        f"{error.message}",
        hint=f"cluster up tries again; cluster stop {job.id} ends the job",
    )


def find_silent(app: App, job: Record, state: ClusterState) -> dict[str, ConnectError]:
    """Returns the nodes of a job that cannot be reached within BOOT_TIMEOUT_S, and why. Raises ClusterError."""
    nodes = nodes_of(app, state)
    hosts = [nodes.find_host(host.name) for host in job.nodes if host.name in nodes.names]
    with source_of(app).open_connections(wait_s=BOOT_TIMEOUT_S) as connections:
        reached = try_on_all(hosts, connections.get)
    raise_failures([one for one in reached if not isinstance(one, ConnectError)])
    return {host.name: one for host, one in zip(hosts, reached, strict=True) if isinstance(one, ConnectError)}


def end_nodes(app: App, nodes: Sequence[Node]) -> None:
    """Terminates nodes. Raises ClusterError or a subclass."""
    plan = Plan(cluster=app.config.name, steps=(TerminateInstances(nodes=tuple(nodes)),))
    with noting_costs(app):
        apply(plan, clients=app.clients, files=app.files, report=app.report)


def launch(app: App, lost: dict[int, str], job: Record | None = None) -> ClusterState:
    """Launches nodes in place of lost ones. lost: see prepare_replacement. job: the one that needs its nodes.

    Raises ClusterError or a subclass.
    """
    request = find_request(app)
    needed = find_lost(job, [host.name for host in job.nodes if host.instance_id]) if job is not None else {}

    def prepare(avoid: frozenset[str]) -> Plan:
        return prepare_replacement(app.clients, request=request, files=app.files, lost=lost, needed=needed, avoid=avoid)

    plan = prepare(frozenset())
    if plan and app.on_head is None:  # on the head, the job's log shows the steps as they are completed
        app.message(render_plan(plan, price_note=app.price_note).rstrip())
    with noting_costs(app):
        return carry_out(plan, clients=app.clients, files=app.files, report=app.report, replan=prepare)


def prepare_for(app: App, job: Record, nodes: Sequence[ReadyNode], new: Sequence[ReadyNode]) -> None:
    """Sends new nodes the files and the environment that a job needs, and pulls its image.

    cluster.toml may no longer name these. nodes: all nodes, the head first, which has everything that the job needs.
    Raises ClusterError or a subclass, also if [bootstrap] setup or the image has changed since the job started.
    """
    head = nodes[0]
    paths = find_paths(job)
    for node in new:
        check_setup(job, node)
        missing = [path for path in paths if path in find_missing(node, paths)]
        if missing:
            command = runtime_command("send_files", node.host.private_ip, *missing)
            head.connection.run(command, timeout_s=SEND_TIMEOUT_S, what="send_files")
            app.report(Event(kind="done", what="the job's own files are there", where=node.host.name))
    if job.spec.image is not None:
        image = prepare_image(app, [head, *new], find_login(app))
        if image is None or image.reference != job.spec.image:
            raise ClusterError(
                f"job {job.id} runs in {job.spec.image}, and [container] image is another one now",
                hint=f"restore [container] image in cluster.toml and run the command again, or: cluster stop {job.id}",
            )


def find_missing(node: ReadyNode, paths: Sequence[str]) -> frozenset[str]:
    """Returns those of the paths below ~/.cluster that a node lacks. Raises NodeCommandError, ConnectError."""
    test = '; do [ -e "$path/.complete" ] || echo "$path"; done'
    script = RemoteCommand('cd "$HOME/.cluster" && for path in ', Quoted(*paths), test)
    return frozenset(node.connection.run(script, timeout_s=60, what="the search for files").stdout.split())
