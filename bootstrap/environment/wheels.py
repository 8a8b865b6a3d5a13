"""Chooses the packages of a node's environment. Pure; provision.oracle.decide knows which wheel runs where."""

from collections.abc import Sequence
from dataclasses import dataclass

from bootstrap.environment.facts import NodeFacts
from bootstrap.environment.pythons import ChosenPython
from foundation.errors import ClusterError, ConfigError
from provision.oracle.decide import check_gpus, no_auto_wheel, no_wheel_hint, pick_wheel
from provision.oracle.gpus import Gpu
from provision.oracle.mxnet_wheels import CPU_WHEEL, find_wheel

SOURCE_PREFIX = "source@"
"""Of [bootstrap] mxnet: what follows it is built from source."""
NODE_PROGRAMS = ("obstore>=0.8", "msgspec>=0.18")
"""What the nodes' own programs import: S3 and typed messages. obstore 0.8 is the last for Python 3.9."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WheelTarget:
    """The kind of node for which wheels are fetched. `requirements` are PEP 508 strings, MXNet's first.

    managed_python: a packed Python is fetched as well. python_path: the Python that the user named, or empty.
    """

    python_version: tuple[int, int]
    machine: str
    glibc: tuple[int, int]
    requirements: tuple[str, ...]
    managed_python: bool = False
    python_path: str = ""


def choose_wheels(
    facts: NodeFacts, *, python: ChosenPython, mxnet: str, packages: Sequence[str], node: str
) -> WheelTarget:
    """Choose for one node; `mxnet` and `packages` are [bootstrap]'s. Pure.

    Raises ClusterError when no wheel can run there, saying why.
    """
    if facts.machine != "x86_64":
        raise ClusterError(
            f"{node}: its processor is {facts.machine}; MXNet's wheels are made for x86_64 alone",
            hint="set [provision] instance_type to a type with Intel or AMD processors",
        )
    if mxnet == "auto":
        mxnet = choose_mxnet(facts, node=node)
    wheel = find_wheel(mxnet)
    known = [gpu for gpu in _gpus(facts) if gpu.capability is not None]
    unfit = check_gpus(wheel, known) if wheel is not None else None
    if unfit is not None:
        raise ConfigError(f'{node}: [bootstrap] mxnet = "{mxnet}": {unfit}', hint='set mxnet = "auto"')
    libraries = wheel.packages if wheel is not None else ()
    # setuptools has the distutils that Python 3.12 dropped and MXNet imports.
    numpy = ("numpy<1.24",) if python.version < (3, 12) else ("numpy<2", "setuptools<81")
    return WheelTarget(
        python_version=python.version,
        machine=facts.machine,
        glibc=facts.glibc,
        requirements=(mxnet, *numpy, *NODE_PROGRAMS, *libraries, *packages),
        managed_python=python.path is None,
        python_path=python.path if python.named and python.path else "",
    )


def choose_mxnet(facts: NodeFacts, *, node: str) -> str:
    """The MXNet wheel that has code for a node's GPUs, or the CPU wheel. Pure. Raises ClusterError if none has."""
    chosen = CPU_WHEEL
    for gpu in _gpus(facts):
        if gpu.capability is None:
            raise ClusterError(
                f"{node}: its driver does not tell the compute capability of the {gpu.name}, and we do not know it",
                hint="name the wheel yourself: [bootstrap] mxnet; cluster oracle lists them",
            )
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
        found.append(Gpu(name=name, capability=(int(major), int(minor)) if minor else None))
    return found


def platform_tags(target: WheelTarget) -> list[str]:
    """The platform tags, newest first, of wheels that run on the target (PEP 600 and the older names). Pure."""
    major, minor = target.glibc
    tags = [f"manylinux_{major}_{n}_{target.machine}" for n in range(minor, 4, -1)]
    older = {(2, 17): "manylinux2014", (2, 12): "manylinux2010", (2, 5): "manylinux1"}
    return tags + [f"{name}_{target.machine}" for glibc, name in older.items() if target.glibc >= glibc]
