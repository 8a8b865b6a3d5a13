"""Chooses the source of a node's framework: a wheel, the image, or a Python of the user's own. Pure."""

import re
from collections.abc import Sequence

from msgspec import Struct

from bootstrap.config import BootstrapConfig
from bootstrap.environment.facts import FoundFramework, NodeFacts, find_gpus
from bootstrap.environment.requirements import (
    Requirements,
    find_exact,
    find_locked,
    find_name,
    is_mxnet,
)
from foundation.errors import ClusterError, ConfigError
from node.engines.engine import Framework
from provision.oracle.tables import CPU_WHEEL, Gpu, Version
from provision.oracle.torch import OLDEST_PYTHON, explain_driver, explain_unfit, find_pythons, pick_torch, suggest_torch

MXNET_PYTHONS = ((3, 9), (3, 12))
"""MXNet's wheels are pure ctypes. NumPy 1.26, the last version that can work with MXNet (_cluster_compat.py restores
np.bool and others), has wheels up to Python 3.12; with NumPy 2 `import mxnet` fails, since np.PZERO was removed."""
ANY_PYTHONS = (OLDEST_PYTHON, (3, 14))
TORCH = re.compile("torch")
LABELS: dict[Framework, str] = {"mxnet": "MXNet", "pytorch": "PyTorch", "none": "the node's programs"}


class Torch(Struct, frozen=True, kw_only=True):
    """The PyTorch of a node's environment. version: for instance 2.13.0+cpu; has_cuda: whether it is built for GPUs."""

    version: str
    has_cuda: bool


class FrameworkChoice(Struct, frozen=True, kw_only=True):
    """The source of a node's framework.

    base: the framework of a Python of the node, if the environment uses that; else None. wheel: the requirement of a
    wheel; None with a base, without a framework, and for MXNet, whose wheel target.py chooses. pythons: the oldest and
    the newest Python that the framework works with.
    """

    framework: Framework = "mxnet"
    base: FoundFramework | None = None
    wheel: str | None = None
    pythons: tuple[Version, Version] = MXNET_PYTHONS


def choose_framework(
    facts: NodeFacts, *, config: BootstrapConfig, packages: Requirements, node: str
) -> FrameworkChoice:
    """Chooses the framework's source for one node. Pure. Raises ClusterError if the node does not meet [bootstrap]."""
    if config.framework == "none":
        return FrameworkChoice(framework="none", pythons=ANY_PYTHONS)
    if config.framework == "pytorch":
        return _choose_torch(facts, config=config, packages=packages, node=node)
    if config.mxnet == "installed":
        return FrameworkChoice(base=_find_installed(facts, path=config.python, packages=packages, node=node))
    return FrameworkChoice()


def _find_installed(facts: NodeFacts, *, path: str, packages: Requirements, node: str) -> FoundFramework | None:
    if any(map(is_mxnet, packages.locked)):
        raise ConfigError(
            '[bootstrap] mxnet = "installed" contradicts [bootstrap] project, which locks MXNet',
            hint='set mxnet = "auto", which installs the locked one; or in the project\'s folder: uv remove mxnet',
        )
    if facts.configured is None:
        return None  # choose_python reports that no Python works at that path
    found = next((one for one in facts.frameworks if one.name == "mxnet" and one.python.path == path), None)
    if found is None:
        raise ClusterError(
            f'{node}: [bootstrap] mxnet = "installed": {path} finds no MXNet',
            hint=f"cluster exec --node {node} -- {path} -m pip install {CPU_WHEEL.requirement}; or set python to the "
            'path of a Python that has MXNet, or mxnet = "auto"',
        )
    return found


def _choose_torch(facts: NodeFacts, *, config: BootstrapConfig, packages: Requirements, node: str) -> FrameworkChoice:
    gpus = find_gpus(facts)
    wheel = _find_locked_torch(packages.locked, facts, config=config, node=node)
    if wheel is None and config.torch != "auto":
        wheel = config.torch
    if wheel is None:
        base = next((one for one in facts.frameworks if is_fit(one, facts, config=config, packages=packages)), None)
        if base is not None:
            return FrameworkChoice(framework="pytorch", base=base, pythons=ANY_PYTHONS)
        wheel = _pick_wheel(facts, gpus, node=node)
    check_torch_wheel(wheel, gpus, node=node, machine=facts.machine)
    return FrameworkChoice(framework="pytorch", wheel=wheel, pythons=find_pythons(wheel))


def _find_locked_torch(locked: Sequence[str], facts: NodeFacts, *, config: BootstrapConfig, node: str) -> str | None:
    """The PyTorch that a project locks for such a node; None if it locks none. Pure.

    Raises ConfigError if [bootstrap] torch contradicts it.
    """
    version = next((python.version for python in facts.pythons if python.version >= OLDEST_PYTHON), (3, 11))
    found = find_locked(locked, TORCH, python_version=version, machine=facts.machine)
    if found is not None and config.torch not in ("auto", found):
        raise ConfigError(
            f'{node}: [bootstrap] torch = "{config.torch}" contradicts [bootstrap] project, which locks {found}',
            hint=f"remove torch, or in the project's folder: uv add '{config.torch}'",
        )
    return found


def is_fit(found: FoundFramework, facts: NodeFacts, *, config: BootstrapConfig, packages: Requirements) -> bool:
    """Whether `torch = "auto"` uses this PyTorch of the image: its Python fits, and it has code for the GPUs. Pure."""
    if found.name != "torch" or not is_wanted(found, config.python):
        return False
    if not ANY_PYTHONS[0] <= found.python.version <= ANY_PYTHONS[1] or not packages.allows(found.python.version):
        return False
    gpus = find_gpus(facts)
    if not gpus:
        return "NVIDIA" not in facts.displays or found.cuda is not None
    if found.cuda is None or explain_driver(found.cuda, facts.driver) is not None:
        return False
    label = f"cu{found.cuda[0]}{found.cuda[1]}"
    return explain_unfit(f"torch=={found.version.partition('+')[0]}+{label}", gpus) is None


def is_wanted(found: FoundFramework, python: str) -> bool:
    """Whether [bootstrap] python allows the Python that has this framework. Pure."""
    if python.startswith("/"):
        return found.python.path == python
    return python in ("auto", f"{found.python.version[0]}.{found.python.version[1]}")


def _pick_wheel(facts: NodeFacts, gpus: Sequence[Gpu], *, node: str) -> str:
    check_known(gpus, node=node, hint="set [bootstrap] torch to a wheel; cluster oracle --framework pytorch lists them")
    wheel = pick_torch(gpus[0] if gpus and facts.machine == "x86_64" else None, facts.driver)
    if wheel is None:
        raise ClusterError(
            f'{node}: torch = "auto" has no wheel with code for {gpus[0].label}, and its image no PyTorch that fits',
            hint="use an image with PyTorch for that GPU ([provision] ami), or another instance type",
        )
    return wheel


def check_known(gpus: Sequence[Gpu], *, node: str, hint: str) -> None:
    """Raises ClusterError for a GPU of unknown capability, for which no wheel can be chosen. Pure."""
    for gpu in gpus:
        if gpu.capability is None:
            message = f"its driver does not report the compute capability of the {gpu.name}, which is unknown here"
            raise ClusterError(f"{node}: {message}", hint=hint)


def check_torch_wheel(wheel: str, gpus: Sequence[Gpu], *, node: str, machine: str) -> None:
    """Raises ConfigError if a wheel has no code for a node's actual GPUs. Pure."""
    why = explain_unfit(wheel, gpus) if machine == "x86_64" else None
    if why is not None:
        raise ConfigError(f"{node}: {wheel} {why}", hint=suggest_torch(gpus[0]))


def is_torch(requirement: str) -> bool:
    """Whether a requirement is for PyTorch, which [bootstrap] torch chooses. Pure."""
    return find_name(requirement) == "torch"


def is_of_framework(requirement: str, framework: Framework) -> bool:
    """Whether a requirement is for the framework, which [bootstrap] chooses; in `packages`, it is ignored. Pure."""
    if framework == "none":
        return False
    return is_mxnet(requirement) if framework == "mxnet" else is_torch(requirement)


def explain_ignored(line: str, config: BootstrapConfig) -> str | None:
    """The message for a requirement for the framework, whose version [bootstrap] chooses instead. Pure.

    None for other packages, if any version fits, and if both name the same version.
    """
    if not is_of_framework(line, config.framework) or line.strip() == find_name(line):
        return None
    if config.packages == "here":
        line = line.partition("+")[0]  # "+cpu": this machine has no GPU
    key, chosen = ("mxnet", config.mxnet) if config.framework == "mxnet" else ("torch", config.torch)
    installed = chosen
    if chosen == "auto":
        installed = CPU_WHEEL.requirement if key == "mxnet" else pick_torch(None) or ""
    exact = find_exact(line)
    if exact is not None and exact == installed.partition("+")[0]:
        return None
    remedy = f'; to install it: {key} = "{exact}"' if exact is not None else ""
    return f'[bootstrap] packages: {line} is ignored: [bootstrap] {key} = "{chosen}" chooses the version{remedy}'
