"""How the processes of a job run in containers, by node. Pure."""

from collections.abc import Sequence

from bootstrap.apply import ReadyNode
from bootstrap.container.config import ContainerConfig, parse_size
from bootstrap.container.prepare import PreparedImage, read_mounts
from train.engines.engine import Framework
from train.job.protocol import Container

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""Of images that have none."""
PYTHON = "python3"
"""The program that runs scripts in an image with its own framework."""


def plan_containers(
    config: ContainerConfig, image: PreparedImage | None, nodes: Sequence[ReadyNode], framework: Framework
) -> dict[str, Container]:
    """The containers on each node that has the image; {} without one."""
    if image is None:
        return {}
    return {
        node.host.name: Container(
            engine=image.nodes[node.host.name].engine,
            image=image.nodes[node.host.name].image,
            path=image.nodes[node.host.name].path or PATH,
            shm_size=parse_size(config.shm_size),
            mounts=read_mounts(config),
            gpus=bool(node.facts.gpus),
            has_environment=framework != "none",
        )
        for node in nodes
        if node.host.name in image.nodes
    }
