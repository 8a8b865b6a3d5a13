"""A check of `cluster verify`: whether each node's engine runs [container] image with its GPUs visible inside."""

from collections.abc import Sequence
from contextlib import closing
from functools import partial

from bootstrap.apply import ReadyNode
from bootstrap.container.config import ContainerConfig
from bootstrap.container.prepare import ContainerNode, FindLogin, prepare
from bootstrap.ssh.connections import on_all
from bootstrap.verify.checks import EVERYWHERE, Check
from foundation.errors import ClusterError
from foundation.progress import Report
from node.protocol import Container
from provision.model import count

COUNT_GPUS = 'n=$(ls -d /dev/nvidia[0-9]* 2>/dev/null | wc -l); [ "$n" -eq "$1" ] || { echo "$n of $1 GPUs"; exit 1; }'
_Check = partial(Check, check="container", subject="image")


def check_containers(
    nodes: Sequence[ReadyNode],
    config: ContainerConfig,
    *,
    find_login: FindLogin,
    report: Report,
) -> tuple[Check, ...]:
    """A check for each node, or a single one if the nodes cannot be prepared for jobs in the image."""
    try:
        image = prepare(nodes, config, find_login=find_login, report=report)
    except ClusterError as error:
        message, *more = error.message.splitlines()
        cause = " ".join(" ".join(more).split()) or None
        return (_Check(node=EVERYWHERE, status="failed", result=message, cause=cause, hint=error.hint),)

    def check(node: ReadyNode) -> Check:
        try:
            return _try(node, image.nodes[node.host.name])
        except ClusterError as error:
            result = "its engine was not asked"
            return _Check(node=node.host.name, status="failed", result=result, cause=error.message, hint=error.hint)

    return tuple(on_all(nodes, check))


def _try(node: ReadyNode, here: Container) -> Check:
    name, gpus = node.host.name, len(node.facts.gpus)
    with closing(ContainerNode(node)) as session:
        output = session.run(here, ["sh", "-c", COUNT_GPUS, "sh", str(gpus)])
    if output is None:
        runs = f"{here.engine[-1]} runs it" + (f", with {count(gpus, 'GPU')}" if gpus else "")
        return _Check(node=name, status="ok", result=runs)
    cause, hint = None, f"cluster exec --node {name} -- {' '.join(here.engine)} info"
    if gpus:
        cause = "the NVIDIA Container Toolkit is not set up for this engine"
        hint = "nvidia-ctk runtime configure (Docker) or nvidia-ctk cdi generate (Podman) on the node"
    return _Check(node=name, status="failed", result=output.splitlines()[-1], cause=cause, hint=hint)
