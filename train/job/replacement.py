"""Which nodes a job has lost, and what it needs on the nodes that replace them. Pure."""

import re
from collections.abc import Sequence

from bootstrap.apply import ReadyNode
from foundation.errors import ClusterError
from train.job.protocol import JobHost, Record

_NODE = re.compile(r"node-([0-9]{1,4})")
_ENVIRONMENT = re.compile(r"/\.cluster/(env/[0-9a-f]{64})/bin/python")


def find_lost(record: Record, names: Sequence[str]) -> dict[int, str]:
    """Index -> id of the instance, of the hosts with these names of a job. Raises ClusterError for other hosts."""
    hosts = {host.name: host for host in record.nodes}
    lost = {}
    for name in names:
        host, found = hosts.get(name), _NODE.fullmatch(name)
        if host is None or found is None or not host.instance_id:
            raise ClusterError(
                f"job {record.id} waits for {name}, which is not an instance of this cluster",
                hint=f"make it reachable again, or: cluster stop {record.id}",
            )
        lost[int(found[1])] = host.instance_id
    return lost


def plan_hosts(record: Record, nodes: Sequence[ReadyNode], names: Sequence[str]) -> tuple[JobHost, ...]:
    """The hosts with these names as they are now, for the job. Raises ClusterError if one has not been replaced."""
    found = {node.host.name: node.host for node in nodes}
    before = {host.name: host.instance_id for host in record.nodes}
    missing = [name for name in names if name not in found or found[name].instance_id == before.get(name)]
    if missing:
        raise ClusterError(
            f"job {record.id} still waits for {', '.join(missing)}: there was no capacity for a new node",
            hint="the next command tries again: cluster status",
        )
    return tuple(JobHost(name=name, ip=found[name].private_ip, instance_id=found[name].instance_id) for name in names)


def find_paths(record: Record) -> tuple[str, ...]:
    """The folders below ~/.cluster that the job's processes use: its environment, and the trees of its files."""
    environment = _ENVIRONMENT.search(record.python)
    trees = [f"tree/{digest}" for digest in (record.code, record.project) if digest]
    return (*([environment[1]] if environment else []), *trees)


def check_setup(record: Record, node: ReadyNode) -> None:
    """Raises ClusterError if other set-up commands have run on the new node than on the job's others."""
    if node.setup != record.setup:
        raise ClusterError(
            f"[bootstrap] setup has changed since job {record.id} was started, so {node.host.name} differs from the "
            "nodes that the job knows",
            hint=f"restore [bootstrap] setup in cluster.toml and run the command again, or: cluster stop {record.id}",
        )
