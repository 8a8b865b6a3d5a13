"""Plans how the processes of a job run in containers, by node."""

from collections.abc import Sequence

from bootstrap.apply import ReadyNode
from bootstrap.container.config import ContainerConfig, parse_mount, parse_size
from bootstrap.container.prepare import PreparedImage
from node.engines.engine import Framework
from node.protocol import Container

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""The PATH for images that set none."""
PYTHON = "python3"
"""The program that runs scripts in an image with its own framework."""


def plan_containers(
    config: ContainerConfig,
    image: PreparedImage | None,
    nodes: Sequence[ReadyNode],
    framework: Framework,
    *,
    volumes: Sequence[str] = (),
) -> dict[str, Container]:
    """The containers on each node that has the image; {} without one. volumes: where [[volumes]] are mounted. Pure."""
    if image is None:
        return {}
    return {
        node.host.name: Container(
            engine=image.nodes[node.host.name].engine,
            image=image.nodes[node.host.name].image,
            path=image.nodes[node.host.name].path or PATH,
            python_path=image.nodes[node.host.name].python_path,
            shm_size=parse_size(config.shm_size),
            mounts=(*((path, path, False) for path in volumes), *map(parse_mount, config.mounts)),
            gpus=bool(node.facts.gpus),
            has_environment=framework != "none",
        )
        for node in nodes
        if node.host.name in image.nodes
    }
