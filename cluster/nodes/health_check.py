"""Checks the nodes' health before a job, and leaves out the unhealthy ones."""

from collections.abc import Callable, Mapping, Sequence

from msgspec.structs import replace

from bootstrap.apply import ReadyNode
from bootstrap.ssh.connections import Connections
from bootstrap.ssh.host import Host
from bootstrap.verify.node_health import Unhealthy, advise, check_before_set_up, find_unhealthy, keep_on_head
from cluster.app import App
from cluster.nodes.source import Nodes
from foundation.errors import ClusterError
from foundation.user_folders import cache_folder
from node.protocol import Machine
from provision.config import all_types
from provision.preflight.machines import Hardware, describe_hardware


def find_hardware(app: App, find_nodes: Callable[[], Nodes]) -> Mapping[str, Hardware]:
    """Returns the hardware of each node, by its name; {} for existing hosts. Raises AwsError.

    find_nodes: may wait for them; meanwhile, EC2 describes the types in cluster.toml, which most nodes have.
    """
    found = dict(describe_hardware(app.clients.ec2, all_types(app.config.provision))) if app.has_instances else {}
    state = find_nodes().state
    instances = state.nodes if state is not None else ()
    if others := {one.instance_type for one in instances} - found.keys():
        found |= describe_hardware(app.clients.ec2, others)
    return {
        one.name: replace(
            found[one.instance_type], machine=Machine(type=one.instance_type, zone=one.zone, image=one.image_id)
        )
        for one in instances
        if one.instance_type in found
    }


def ids_of(nodes: Sequence[ReadyNode]) -> dict[str, str]:
    """Returns the nodes' instance ids, by name."""
    return {node.host.name: node.host.instance_id for node in nodes}


def leave_out_unhealthy(
    app: App,
    nodes: Nodes,
    hosts: Sequence[Host],
    connections: Connections,
    *,
    hardware: Mapping[str, Hardware],
    is_scheduled: bool,
) -> tuple[Host, ...]:
    """Checks the nodes before a job, and returns the healthy ones. Warns of the others, and excludes them from `nodes`.

    hardware: see find_hardware. is_scheduled: a batch scheduler chooses the nodes, so none is left out.
    Raises ClusterError for an unhealthy head, for an unhealthy node that [train] hosts names, and for nodes that cannot
    be checked.
    """
    findings = check_before_set_up(
        hosts, connections, python=app.config.bootstrap.python, cache=cache_folder(), report=app.report
    )
    unhealthy = find_unhealthy(findings, hardware)
    head = hosts[0]
    ids = {host.name: host.instance_id for host in hosts}
    keep_on_head(connections.get(head), findings, unhealthy, ids=ids, report=app.report)
    if not unhealthy:
        return tuple(hosts)
    refuse_unhealthy(unhealthy, hosts, named=app.config.train.hosts)
    status = "unhealthy" if is_scheduled else "unhealthy and left out"
    for name, reasons in unhealthy.items():
        app.warn(f"{status}: {'; '.join(reasons)} ({advise([name])})", where=name)
    if is_scheduled:
        return tuple(hosts)
    nodes.excluded |= unhealthy.keys()
    return tuple(host for host in hosts if host.name not in unhealthy)


def refuse_unhealthy(unhealthy: Unhealthy, hosts: Sequence[Host], *, named: Sequence[str]) -> None:
    """Raises ClusterError for an unhealthy head, which every job needs, and for unhealthy nodes that the user names.

    hosts: all hosts, the head first. named: [train] hosts. Pure.
    """
    words = {word.partition(":")[0] for word in named}
    for host in hosts:
        reasons = unhealthy.get(host.name)
        is_named = bool({host.name, host.private_ip} & words) or host.spec in named
        if reasons is None or not (host is hosts[0] or is_named):
            continue
        what = "the head" if host is hosts[0] else "which [train] hosts names"
        raise ClusterError(f"{host.name}, {what}, is unhealthy: {'; '.join(reasons)}", hint=advise([host.name]))
