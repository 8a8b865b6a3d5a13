"""Plans how the processes of a job, and the commands of a user, run in containers, by node."""

import secrets
from collections.abc import Sequence
from typing import Literal

from bootstrap.apply import ReadyNode
from bootstrap.container.config import ContainerConfig, parse_mount, parse_size
from bootstrap.container.prepare import PreparedImage
from node.engines.engine import Framework
from node.protocol import Container
from node.setup.containers import engine

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""The PATH for images that set none."""
PYTHON = "python3"
"""The program that runs scripts in an image with its own framework."""
SHELL_JOB = "shell"
"""Takes the place of a job's id for the containers of `cluster ssh --container`."""
LOGIN_SHELL = ("sh", "-c", "command -v bash >/dev/null && exec bash -l || exec sh -l")


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


def shell_words(
    config: ContainerConfig,
    image: PreparedImage,
    node: ReadyNode,
    command: Sequence[str],
    *,
    framework: Framework,
    volumes: Sequence[str] = (),
    stdin: Literal["pipe", "terminal"] | None = None,
) -> tuple[str, ...]:
    """The command line on a node that runs a command, () for a shell, in a new container with a job's mounts.

    volumes: as for plan_containers. stdin: what the command reads; None for no input.
    """
    here = plan_containers(config, image, [node], framework, volumes=volumes)[node.host.name]
    home = node.facts.home
    env = {"HOME": home, "USER": node.host.user, "LOGNAME": node.host.user}
    mounts: list[tuple[str, str, bool]] = [(f"{home}/{engine.HOME_FOLDER}", home, False)]
    mounts.append((node.code_dir, node.code_dir, True))
    if here.has_environment:
        folder = node.python.removesuffix("/bin/python")
        mounts += [(path, path, True) for path in (folder, f"{home}/{engine.PYTHONS_FOLDER}")]
        env["PATH"] = f"{folder}/bin:{here.path}"
    if node.project_dir is not None:
        mounts.append((node.project_dir, node.project_dir, False))
    mounts += [(_expand(source, home), _expand(target, home), read_only) for source, target, read_only in here.mounts]
    order = {
        "name": f"cluster-{SHELL_JOB}-{secrets.token_hex(6)}",
        "job": SHELL_JOB,
        "image": here.image,
        "shm_size": here.shm_size,
        "gpus": here.gpus,
        "mounts": mounts,
        "cwd": node.project_dir or node.code_dir,
        "command": [*(command or LOGIN_SHELL)],
        "input": stdin,
    }
    uid, gid = image.nodes[node.host.name].ids
    words, _ = engine.run_words(here.engine, order, env, uid, gid)
    return tuple(words)


def _expand(path: str, home: str) -> str:
    return f"{home}/{path[2:]}" if path.startswith("~/") else path
