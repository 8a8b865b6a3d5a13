"""Which process of a job runs on which node, as launch.py will have it, and with which GPUs. Pure."""

import difflib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from bootstrap.apply import ReadyNode
from foundation.errors import ConfigError
from train.engines import ENGINES
from train.job.protocol import JobHost, Launcher, Place

SSH_PORT = "22"


@dataclass(frozen=True, kw_only=True, slots=True)
class Placement:
    """A job's processes. nodes: those that it runs on, the cluster's head first, for that is where launch.py runs.

    hostfile: private addresses for launch.py, in its order, with the port where it is not 22. workers, servers: how
    many, by the node's name.
    """

    nodes: tuple[ReadyNode, ...]
    hostfile: tuple[str, ...]
    workers: Mapping[str, int]
    servers: Mapping[str, int]

    @property
    def processes(self) -> Mapping[str, int]:
        """How many processes run on each node, the idle scheduler aside; nodes without any are not there."""
        return {name: count for name, count in (Counter(self.workers) + Counter(self.servers)).items() if count}

    @property
    def of_workers(self) -> tuple[ReadyNode, ...]:
        """The nodes that workers run on."""
        return tuple(node for node in self.nodes if self.workers.get(node.host.name))

    @property
    def most_workers(self) -> int:
        """On one node."""
        return max(self.workers.values(), default=0)


def find_hosts(hosts: Sequence[str], nodes: Sequence[ReadyNode]) -> tuple[ReadyNode, ...]:
    """The nodes that [train] hosts names, in its order; all of them when it names none.

    A host is a node's name or private address, or either with launch.py's ":22"; or a host of the user's own among
    `nodes`, as he named it. Raises ConfigError for others.
    """
    own = [node for node in nodes if not node.host.spec]
    known = {node.host.name: node for node in own} | {node.host.private_ip: node for node in own}
    others = {node.host.spec: node for node in nodes if node.host.spec}
    found: list[ReadyNode] = []
    for host in hosts:
        if host in others:
            found.append(others[host])
            continue
        name, colon, port = host.partition(":")
        if colon and port != SSH_PORT:
            raise ConfigError(f'train.hosts: "{host}": ssh on the nodes is at port {SSH_PORT}')
        node = known.get(name)
        if node is None:
            listed = ", ".join(f"{node.host.name} ({node.host.private_ip})" for node in own)
            nearest = difflib.get_close_matches(name, known, n=1)
            meant = f'; did you mean "{nearest[0]}"?' if nearest else ""
            raise ConfigError(f'train.hosts: "{host}" is no node of this cluster{meant}', hint=f"one of: {listed}")
        found.append(node)
    return tuple(found) or tuple(nodes)


def place(chosen: Sequence[ReadyNode], *, head: ReadyNode, launcher: Launcher, workers: int, servers: int) -> Placement:
    """Spread a job over the nodes as its engine does; without servers there is one worker, on the first of them."""
    engine = ENGINES[launcher]
    if engine.is_on_head:
        chosen = [head]
    elif not servers:
        chosen = chosen[:1]
    names = [node.host.name for node in chosen]
    placed_processes = engine.place(names, head=head.host.name, workers=workers, servers=servers)
    placed = {node.host.name: node for node in (head, *chosen)}
    return Placement(
        nodes=tuple(placed.values()),
        hostfile=tuple(
            node.host.private_ip if str(node.host.port) == SSH_PORT else f"{node.host.private_ip}:{node.host.port}"
            for node in chosen
        ),
        servers={host: count for (role, host), count in placed_processes.items() if role == "server"},
        workers={host: count for (role, host), count in placed_processes.items() if role == "worker"},
    )


def share_gpus(gpus: int, workers: int) -> tuple[tuple[int, ...], ...]:
    """A node's GPUs for each of its workers: equal parts, () where they do not come out even. Pure."""
    if not workers or not gpus or gpus % workers:
        return ()
    size = gpus // workers
    return tuple(tuple(range(index * size, (index + 1) * size)) for index in range(workers))


def describe_hosts(
    placement: Placement, *, words: Callable[[ReadyNode], tuple[str, ...]], target: Callable[[ReadyNode], str | None]
) -> tuple[JobHost, ...]:
    """The hosts of a job, as its order has them; a host that is not the cluster's has its own paths.

    words: the command of the job's processes on a host. target: where the user's files are copied to there.
    """

    def place_of(node: ReadyNode) -> Place:
        return Place(
            user=node.host.user,
            port=node.host.port,
            python=node.python,
            code_dir=node.code_dir,
            cwd=node.project_dir or node.code_dir,
            command=words(node),
            sync_dst_dir=target(node),
        )

    return tuple(
        JobHost(
            name=node.host.name,
            ip=node.host.private_ip,
            instance_id="" if node.host.spec else node.host.instance_id,
            place=place_of(node) if node.host.spec else None,
        )
        for node in placement.nodes
    )


def rebase(path: str, *, head: ReadyNode, node: ReadyNode, project_dir: str | None) -> str:
    """The path on a node of a file in one of the head's trees; others as they are.

    project_dir: where the node has the user's files when the job runs.
    """
    for here, there in ((head.project_dir, project_dir), (head.code_dir, node.code_dir)):
        if here is not None and there is not None and path.startswith(f"{here}/"):
            return there + path.removeprefix(here)
    return path


def other_warnings(
    placement: Placement, library: str, library_of: Callable[[ReadyNode], str], *, staged: bool, of_nodes: bool
) -> Iterator[str]:
    """What the user should know of hosts that are not the cluster's.

    library: the nodes'. of_nodes: the job has the credentials of the nodes' instance profile.
    """
    others = [node for node in placement.nodes if node.host.spec]
    for node in others:
        found = library_of(node)
        if found != library:
            yield (
                f"{node.host.name} gets {found}, and the nodes {library}: they may not understand each other; set "
                "[bootstrap] mxnet to what is for both"
            )
    if others and staged and of_nodes:
        names = ", ".join(node.host.name for node in others)
        yield f"{names}: without the cluster's instance profile, data is fetched for as long as the head's keys last"
