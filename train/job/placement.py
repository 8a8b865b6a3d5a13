"""Places a job's processes on nodes as its engine does, and divides the GPUs among them. Pure."""

import difflib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct, structs

from bootstrap.apply import ReadyNode
from bootstrap.ssh.host import Host
from foundation.errors import ConfigError
from node.engines import ENGINES
from node.protocol import HostSettings, JobHost, Machine

SSH_PORT = "22"


class Placement(Struct, frozen=True, kw_only=True):
    """Where a job's processes run. nodes: the used ones, the cluster's head first, because the launcher runs there.

    lines: the names of those in the launcher's hostfile, perhaps repeated. workers, servers: their number by the node's
    name.
    """

    nodes: tuple[ReadyNode, ...]
    lines: tuple[str, ...]
    workers: Mapping[str, int]
    servers: Mapping[str, int]

    @property
    def processes(self) -> Mapping[str, int]:
        """The number of processes by node, without the idle scheduler; only for nodes that have processes."""
        return {name: count for name, count in (Counter(self.workers) + Counter(self.servers)).items() if count}

    @property
    def of_workers(self) -> tuple[ReadyNode, ...]:
        """The nodes with workers."""
        return tuple(node for node in self.nodes if self.workers.get(node.host.name))

    @property
    def most_workers(self) -> int:
        """The largest number of workers on a node."""
        return max(self.workers.values(), default=0)


def find_hosts(hosts: Sequence[str], nodes: Sequence[ReadyNode]) -> tuple[ReadyNode, ...]:
    """The nodes that [train] hosts names, in its order; all nodes if it is empty. Raises as choose_hosts."""
    by_id = {node.host.instance_id: node for node in nodes}
    return tuple(by_id[host.instance_id] for host in choose_hosts(hosts, [node.host for node in nodes]))


def choose_hosts(lines: Sequence[str], nodes: Sequence[Host]) -> tuple[Host, ...]:
    """The nodes that the lines of [train] hosts name, in their order; all nodes without lines. Pure.

    A line is a node's name or private address, either also with ":22"; or that of an existing host in [hosts] names.
    Raises ConfigError for any other line.
    """
    known = {name: node for node in nodes for name in (node.private_ip, node.name)}
    known |= {node.spec: node for node in nodes if node.spec}
    found: list[Host] = []
    for line in lines:
        name, colon, port = line.partition(":")
        if line not in known and colon and port != SSH_PORT and name in known:
            raise ConfigError(f'train.hosts: "{line}": the nodes use port {SSH_PORT} for ssh')
        node = known.get(line) or known.get(name)
        if node is None:
            listed = ", ".join(f"{node.name} ({node.private_ip})" for node in nodes)
            nearest = difflib.get_close_matches(name, known, n=1)
            meant = f'; did you mean "{nearest[0]}"?' if nearest else ""
            raise ConfigError(f'train.hosts: "{line}" is not a node of this cluster{meant}', hint=f"one of: {listed}")
        found.append(node)
    return tuple(found) or tuple(nodes)


def place(chosen: Sequence[ReadyNode], *, head: ReadyNode, launcher: str, workers: int, servers: int) -> Placement:
    """Places a job's processes as its engine does; a node is used if a process runs there."""
    engine = ENGINES[launcher]
    if engine.is_on_head:
        chosen = [head]
    names = [node.host.name for node in chosen]
    placed_processes = engine.place(names, head=head.host.name, workers=workers, servers=servers)
    used = {host for (_, host), count in placed_processes.items() if count}
    chosen = [node for node in chosen if node.host.name in used]
    placed = {node.host.name: node for node in (head, *chosen)}
    return Placement(
        nodes=tuple(placed.values()),
        lines=tuple(node.host.name for node in chosen),
        servers={host: count for (role, host), count in placed_processes.items() if role == "server"},
        workers={host: count for (role, host), count in placed_processes.items() if role == "worker"},
    )


def find_slots(chosen: Sequence[ReadyNode], processes: Mapping[str, int]) -> tuple[ReadyNode, ...]:
    """The nodes, each repeated once per process. Pure.

    processes: by the node's name. If the hosts name a node repeatedly, the repetitions count instead.
    """
    names = [node.host.name for node in chosen]
    if len(set(names)) < len(names):
        return tuple(chosen)
    return tuple(node for node in chosen for _ in range(processes[node.host.name]))


def share_gpus(gpus: int, workers: int) -> tuple[tuple[int, ...], ...]:
    """The GPUs of each of a node's workers, in equal parts; () if they cannot be divided equally. Pure."""
    if not workers or not gpus or gpus % workers:
        return ()
    size = gpus // workers
    return tuple(tuple(range(index * size, (index + 1) * size)) for index in range(workers))


def describe_hosts(
    placement: Placement,
    *,
    words: Callable[[ReadyNode], tuple[str, ...]],
    folder: Callable[[ReadyNode], str],
    prices: Mapping[str, float],
) -> tuple[JobHost, ...]:
    """The hosts of a job's order; a host that is not a node of the cluster has its own paths.

    words: the command of the job's processes on a host. folder: where they run. prices: see JobInputs.
    """

    def settings_of(node: ReadyNode) -> HostSettings:
        return HostSettings(
            user=node.host.user,
            port=node.host.port,
            python=node.python,
            code_dir=node.code_dir,
            cwd=folder(node),
            command=words(node),
            tree=node.project_dir,
        )

    return tuple(
        structs.replace(
            describe_host(node, prices),
            workers=placement.workers.get(node.host.name, 0),
            servers=placement.servers.get(node.host.name, 0),
            own_host=settings_of(node) if node.host.spec else None,
        )
        for node in placement.nodes
    )


def describe_host(node: ReadyNode, prices: Mapping[str, float]) -> JobHost:
    """A host without processes. prices: US dollars per hour by instance id, as far as they are known."""
    host, hardware, facts = node.host, node.hardware, node.facts
    return JobHost(
        name=host.name,
        ip=host.private_ip,
        instance_id="" if host.spec else host.instance_id,
        usd_per_hour=None if host.spec else prices.get(host.instance_id),
        gpus=hardware.gpus if hardware is not None else None,
        memory_mib=hardware.memory_mib if hardware is not None else None,
        machine=structs.replace(
            hardware.machine if hardware is not None else Machine(),
            system=facts.system,
            kernel=facts.kernel,
            driver=facts.driver or "",
            gpus=tuple(name for _, name in facts.gpus),
        ),
    )


def rebase(path: str, *, head: ReadyNode, node: ReadyNode, project_dir: str | None) -> str:
    """The path on a node of a file in one of the head's trees; other paths unchanged.

    project_dir: the folder of the user's files on the node while the job runs.
    """
    for here, there in ((head.project_dir, project_dir), (head.code_dir, node.code_dir)):
        if here is not None and there is not None and path.startswith(f"{here}/"):
            return there + path.removeprefix(here)
    return path
