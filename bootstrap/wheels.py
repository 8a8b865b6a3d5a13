"""Which packages a node's environment is made of: pure decisions; provision.oracle knows which wheel runs where."""

from collections.abc import Sequence
from dataclasses import dataclass

from bootstrap.facts import NodeFacts
from provision.errors import ClusterError, ConfigError
from provision.gpus import Gpu
from provision.mxnet_wheels import CPU_WHEEL, find_wheel
from provision.oracle import check_gpus, no_auto_wheel, no_wheel_hint, pick_wheel

# MXNet's wheels are pure ctypes; uv, which makes the environment, begins at Python 3.8. NumPy 1.26, the last that MXNet
# can be made to work with (_cluster_compat.py puts np.bool and its kin back), has wheels up to 3.12; with NumPy 2
# `import mxnet` fails: np.PZERO is gone.
OLDEST_PYTHON = (3, 8)
NEWEST_PYTHON = (3, 12)


@dataclass(frozen=True, kw_only=True, slots=True)
class WheelTarget:
    """What wheels are fetched for; nodes that are alike share one. `requirements` are PEP 508 strings."""

    python_version: tuple[int, int]
    machine: str
    glibc: tuple[int, int]
    requirements: tuple[str, ...]


def choose_wheels(facts: NodeFacts, *, mxnet: str, packages: Sequence[str], node: str) -> WheelTarget:
    """Decide for one node; `mxnet` and `packages` are [bootstrap]'s. Pure.

    Raises ClusterError when no wheel can run there, saying why.
    """
    if not OLDEST_PYTHON <= facts.python_version <= NEWEST_PYTHON:
        version = ".".join(map(str, facts.python_version))
        raise ClusterError(
            f"{node}: {facts.python} is Python {version}; MXNet can be set up on 3.8 to 3.12",
            hint="set [bootstrap] python to another Python of the nodes, or take another image",
        )
    if facts.machine != "x86_64":
        raise ClusterError(
            f"{node}: its processor is {facts.machine}; MXNet's wheels are made for x86_64 alone",
            hint="set [provision] instance_type to a type with Intel or AMD processors",
        )
    if mxnet == "auto":
        mxnet = choose_mxnet(facts, node=node)
    wheel = find_wheel(mxnet)
    unfit = check_gpus(wheel, _gpus(facts)) if wheel is not None else None
    if unfit is not None:
        raise ConfigError(f'{node}: [bootstrap] mxnet = "{mxnet}": {unfit}', hint='set mxnet = "auto"')
    libraries = wheel.packages if wheel is not None else ()
    # setuptools has the distutils that Python 3.12 dropped and MXNet imports.
    numpy = ("numpy<1.24",) if facts.python_version < (3, 12) else ("numpy<2", "setuptools<81")
    return WheelTarget(
        python_version=facts.python_version,
        machine=facts.machine,
        glibc=facts.glibc,
        requirements=(mxnet, *numpy, *libraries, *packages),
    )


def choose_mxnet(facts: NodeFacts, *, node: str) -> str:
    """The MXNet wheel that has code for a node's GPUs, or the CPU wheel. Pure. Raises ClusterError if none has."""
    chosen = CPU_WHEEL
    for gpu in _gpus(facts):
        wheel = pick_wheel(gpu)
        if wheel is None:
            raise ClusterError(f"{node}: {no_auto_wheel(gpu)}", hint=no_wheel_hint(gpu))
        chosen = wheel
    return chosen.requirement


def _gpus(facts: NodeFacts) -> list[Gpu]:
    """A node's GPUs as its driver lists them: NVIDIA's alone."""
    found = []
    for capability, name in facts.gpus:
        major, _, minor = capability.partition(".")
        found.append(Gpu(name=name, capability=(int(major), int(minor))))
    return found


def platform_tags(target: WheelTarget) -> list[str]:
    """The platform tags, newest first, of wheels that run on the target (PEP 600 and the older names). Pure."""
    major, minor = target.glibc
    tags = [f"manylinux_{major}_{n}_{target.machine}" for n in range(minor, 4, -1)]
    older = {(2, 17): "manylinux2014", (2, 12): "manylinux2010", (2, 5): "manylinux1"}
    return tags + [f"{name}_{target.machine}" for glibc, name in older.items() if target.glibc >= glibc]
