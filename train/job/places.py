"""Where a job's files and programs are on hosts that are not the cluster's; nodes have them at the same paths. Pure."""

from collections.abc import Callable, Iterator, Sequence

from bootstrap.apply import ReadyNode
from train.job.placement import Placement
from train.job.protocol import JobHost, Place


def describe_hosts(
    placement: Placement, *, words: Callable[[ReadyNode], Sequence[str]], target: Callable[[ReadyNode], str | None]
) -> tuple[JobHost, ...]:
    """The hosts of a job, as its order has them.

    words: the command of the job's processes on a host. target: where the user's files are copied to there.
    """
    return tuple(
        JobHost(
            name=node.host.name,
            ip=node.host.private_ip,
            instance_id="" if node.host.spec else node.host.instance_id,
            place=_describe_place(node, words(node), target(node)) if node.host.spec else None,
        )
        for node in placement.nodes
    )


def _describe_place(node: ReadyNode, words: Sequence[str], target: str | None) -> Place:
    return Place(
        user=node.host.user,
        port=node.host.port,
        python=node.python,
        code_dir=node.code_dir,
        cwd=node.project_dir or node.code_dir,
        command=tuple(words),
        sync_dst_dir=target,
    )


def rebase(path: str, *, head: ReadyNode, node: ReadyNode) -> str:
    """The path on a node of a file that the head has in one of the trees that all have; others as they are."""
    for here, there in ((head.project_dir, node.project_dir), (head.code_dir, node.code_dir)):
        if here is not None and there is not None and path.startswith(f"{here}/"):
            return there + path.removeprefix(here)
    return path


def other_warnings(
    placement: Placement, *, library: str, find_library: Callable[[ReadyNode], str], staged: bool, of_nodes: bool
) -> Iterator[str]:
    """What the user should know of hosts of his own. of_nodes: the job has the credentials of the nodes' profile."""
    others = [node for node in placement.nodes if node.host.spec]
    for node in others:
        found = find_library(node)
        if found != library:
            yield (
                f"{node.host.name} gets {found}, and the nodes {library}: they may not understand each other; set "
                "[bootstrap] mxnet to what is for both"
            )
    if others and staged and of_nodes:
        names = ", ".join(node.host.name for node in others)
        yield f"{names}: without the cluster's instance profile, data is fetched for as long as the head's keys last"
