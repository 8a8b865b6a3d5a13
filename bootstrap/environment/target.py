"""Chooses the Python and the packages of a node's environment. Pure; provision.oracle.decide knows MXNet's wheels."""

from collections.abc import Sequence
from dataclasses import dataclass

from bootstrap.environment.facts import FoundPython, NodeFacts
from bootstrap.environment.requirements import Wanted, canonical_name, choose_requirement, is_mxnet
from foundation.errors import ClusterError, ConfigError
from provision.oracle.decide import check_gpus, no_auto_wheel, no_wheel_hint, pick_wheel
from provision.oracle.tables import CPU_WHEEL, Gpu, Version, find_wheel, show

# MXNet's wheels are pure ctypes; obstore, which the nodes' programs use, needs Python 3.9. NumPy 1.26, the last version
# that can work with MXNet (_cluster_compat.py restores np.bool and others), has wheels up to Python 3.12; with NumPy 2
# `import mxnet` fails, since np.PZERO was removed.
OLDEST_PYTHON = (3, 9)
NEWEST_PYTHON = (3, 12)
# The newest for which NumPy has wheels that MXNet supports unchanged.
MANAGED_PYTHON = (3, 11)
MANAGED_GLIBC = (2, 17)
"""The oldest that uv's Pythons for Linux run on: https://gregoryszorc.com/docs/python-build-standalone/main/running.html"""
SOURCE_PREFIX = "source@"
"""The prefix of [bootstrap] mxnet for a ref that is built from source."""
NODE_PROGRAMS = ("obstore>=0.8", "msgspec>=0.18")
"""The imports of our programs on the nodes: S3 and typed messages. obstore 0.8 is the last for Python 3.9."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ChosenPython:
    """`path` is absolute on the node; None for a packed Python that this machine sends.

    named: the user configured this path.
    """

    version: Version
    path: str | None
    named: bool = False


def choose_python(facts: NodeFacts, *, setting: str, node: str) -> ChosenPython:
    """Choose for one node; `setting` is [bootstrap] python: "auto", a path or a version. Pure.

    Raises ClusterError if the configured Python does not work, or MXNet does not work with it.
    """
    if setting.startswith("/"):
        return _named(facts, setting, node=node)
    if setting == "auto":
        found = next((python for python in facts.pythons if is_fit(python)), None)
        version = MANAGED_PYTHON
    else:
        major, _, minor = setting.partition(".")
        version = (int(major), int(minor))
        found = next((python for python in facts.pythons if python.version == version), None)
    if found is not None:
        return ChosenPython(version=found.version, path=found.path)
    if facts.glibc < MANAGED_GLIBC:
        wanted = "3.9 to 3.12" if setting == "auto" else setting
        raise ClusterError(
            f"{node}: it has no Python {wanted}, and the one that cluster installs needs "
            f"glibc {show(MANAGED_GLIBC)}; the node has {show(facts.glibc)}",
            hint="use an image that has one ([provision] ami)",
        )
    return ChosenPython(version=version, path=None)


def is_fit(python: FoundPython) -> bool:
    """Whether MXNet can be set up on a Python. Pure."""
    return OLDEST_PYTHON <= python.version <= NEWEST_PYTHON


def _named(facts: NodeFacts, path: str, *, node: str) -> ChosenPython:
    found = facts.configured
    if found is None:
        raise ClusterError(
            f'{node}: [bootstrap] python = "{path}": no working Python there',
            hint='set python = "auto", or a version such as "3.11", which is installed if the image lacks it',
        )
    if not is_fit(found):
        raise ClusterError(
            f'{node}: [bootstrap] python = "{path}" is Python {show(found.version)}; MXNet works with 3.9 to 3.12',
            hint='set python = "auto", or the path of another Python',
        )
    return ChosenPython(version=found.version, path=found.path, named=True)


@dataclass(frozen=True, kw_only=True, slots=True)
class WheelTarget:
    """The kind of node for which wheels are fetched. `requirements` are PEP 508 strings, MXNet's first.

    managed_python: a packed Python is fetched as well. python_path: the configured path, or empty. limits: requirements
    that only limit versions. hashes: by normalized name, the SHA-256 that a package's file may have.
    """

    python_version: tuple[int, int]
    machine: str
    glibc: tuple[int, int]
    requirements: tuple[str, ...]
    managed_python: bool = False
    python_path: str = ""
    limits: tuple[str, ...] = ()
    hashes: tuple[tuple[str, tuple[str, ...]], ...] = ()


def choose_wheels(
    facts: NodeFacts, *, python: ChosenPython, mxnet: str, packages: Sequence[Wanted], node: str
) -> WheelTarget:
    """Choose for one node; `mxnet` and `packages` are [bootstrap]'s. Pure.

    Raises ClusterError if no wheel can run there.
    """
    if facts.machine != "x86_64":
        raise ClusterError(
            f"{node}: its CPU is {facts.machine}; MXNet's wheels are for x86_64 only",
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
    # MXNet imports distutils, which Python 3.12 dropped and setuptools has.
    numpy = ("numpy<1.24",) if python.version < (3, 12) else ("numpy<2", "setuptools<81")
    asked, limits, hashes = _choose_packages(packages, python.version, facts.machine)
    return WheelTarget(
        python_version=python.version,
        machine=facts.machine,
        glibc=facts.glibc,
        requirements=(mxnet, *numpy, *NODE_PROGRAMS, *libraries, *asked),
        managed_python=python.path is None,
        python_path=python.path if python.named and python.path else "",
        limits=limits,
        hashes=tuple(sorted(hashes.items())),
    )


def _choose_packages(
    packages: Sequence[Wanted], version: Version, machine: str
) -> tuple[tuple[str, ...], tuple[str, ...], dict[str, tuple[str, ...]]]:
    """The requirements, the limits, and the hashes by name, of the packages whose conditions hold on such a node."""
    asked: list[str] = []
    limits: list[str] = []
    hashes: dict[str, tuple[str, ...]] = {}
    for wanted in packages:
        requirement = choose_requirement(wanted.requirement, python_version=version, machine=machine)
        if requirement is None or is_mxnet(requirement):
            continue
        (limits if wanted.only_limits else asked).append(requirement)
        if wanted.hashes:
            name = canonical_name(requirement)
            found = (one.removeprefix("sha256:") for one in wanted.hashes)
            hashes[name] = (*hashes.get(name, ()), *found)
    return tuple(asked), tuple(limits), hashes


def choose_mxnet(facts: NodeFacts, *, node: str) -> str:
    """The MXNet wheel that has code for a node's GPUs, or the CPU wheel. Pure. Raises ClusterError if none has."""
    chosen = CPU_WHEEL
    for gpu in _gpus(facts):
        if gpu.capability is None:
            raise ClusterError(
                f"{node}: its driver does not report the compute capability of the {gpu.name}, which is unknown here",
                hint="set [bootstrap] mxnet to a wheel; cluster oracle lists them",
            )
        wheel = pick_wheel(gpu)
        if wheel is None:
            raise ClusterError(f"{node}: {no_auto_wheel(gpu)}", hint=no_wheel_hint(gpu))
        chosen = wheel
    return chosen.requirement


def _gpus(facts: NodeFacts) -> list[Gpu]:
    """A node's NVIDIA GPUs, as its driver lists them."""
    found = []
    for capability, name in facts.gpus:
        major, _, minor = capability.partition(".")
        found.append(Gpu(name=name, capability=(int(major), int(minor)) if minor else None))
    return found


def platform_tags(target: WheelTarget) -> list[str]:
    """The platform tags, newest first, of wheels that run on the target (PEP 600 and the older names). Pure.

    The last is the tag of wheels that were built on such a machine.
    """
    major, minor = target.glibc
    tags = [f"manylinux_{major}_{n}_{target.machine}" for n in range(minor, 4, -1)]
    older = {(2, 17): "manylinux2014", (2, 12): "manylinux2010", (2, 5): "manylinux1"}
    return (
        tags
        + [f"{name}_{target.machine}" for glibc, name in older.items() if target.glibc >= glibc]
        + [f"linux_{target.machine}"]
    )
