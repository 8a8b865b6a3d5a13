"""Chooses the Python and the packages of a node's environment. Pure. provision.oracle has the frameworks' wheels."""

from msgspec import Struct

from bootstrap.environment.facts import FoundFramework, NodeFacts, find_gpus
from bootstrap.environment.framework import LABELS, FrameworkChoice, check_known, is_of_framework
from bootstrap.environment.requirements import MXNET, Requirements, find_locked, find_name
from foundation.errors import ClusterError, ConfigError
from node.engines.engine import Framework
from provision.oracle.decide import check_gpus, no_auto_wheel, no_wheel_hint, pick_wheel
from provision.oracle.tables import CPU_WHEEL, Version, find_wheel, show
from provision.oracle.torch import choose_numpy

MANAGED_PYTHON = (3, 11)
"""The Python for a node that has none that fits: the newest that all frameworks support unchanged."""
MXNET_CHOICE = FrameworkChoice()
NO_REQUIREMENTS = Requirements()
NEWER_PYTHONS = ((3, 12), (3, 13), (3, 14), (3, 10), (3, 9))
"""The Pythons to install if MANAGED_PYTHON does not fit, in order of preference."""


class ChosenPython(Struct, frozen=True, kw_only=True):
    """The Python of an environment. `path` is absolute on the node; None for a packed Python that this machine sends.

    named: whether the user configured this path.
    """

    version: Version
    path: str | None
    named: bool = False


def choose_python(
    facts: NodeFacts,
    *,
    setting: str,
    node: str,
    choice: FrameworkChoice = MXNET_CHOICE,
    packages: Requirements = NO_REQUIREMENTS,
) -> ChosenPython:
    """Chooses the Python for one node; `setting` is [bootstrap] python: "auto", a path or a version. Pure.

    Raises ClusterError if the configured Python does not work, or if the framework or the project does not work with
    the Python.
    """
    if setting.startswith("/"):
        return _named(facts, setting, choice=choice, packages=packages, node=node)
    if choice.base is not None:
        return ChosenPython(version=choice.base.python.version, path=choice.base.python.path)
    if setting == "auto":
        fitting = (python for python in facts.pythons if is_fit(python.version, choice, packages))
        found = next(fitting, None)
        version = found.version if found is not None else MANAGED_PYTHON
        if found is None and not is_fit(version, choice, packages):
            version = next((one for one in NEWER_PYTHONS if is_fit(one, choice, packages)), version)
    else:
        major, _, minor = setting.partition(".")
        version = (int(major), int(minor))
        found = next((python for python in facts.pythons if python.version == version), None)
    if not is_fit(version, choice, packages):
        raise ClusterError(
            f"{node}: Python {show(version)} does not fit: {_show_fit(choice, packages)}",
            hint="set [bootstrap] python to a version that fits, or to the path of such a Python on the nodes",
        )
    if found is not None:
        return ChosenPython(version=found.version, path=found.path)
    return ChosenPython(version=version, path=None)


def is_fit(version: Version, choice: FrameworkChoice = MXNET_CHOICE, packages: Requirements = NO_REQUIREMENTS) -> bool:
    """Whether both the framework and the user's project work with a version of Python. Pure."""
    return choice.pythons[0] <= version <= choice.pythons[1] and packages.allows(version)


def _show_fit(choice: FrameworkChoice, packages: Requirements) -> str:
    name = choice.wheel or LABELS[choice.framework]
    verb = "work" if choice.framework == "none" else "works"
    locked = f", and [bootstrap] project is locked for {packages.python}" if packages.python else ""
    return f"{name} {verb} with {show(choice.pythons[0])} to {show(choice.pythons[1])}{locked}"


def _named(facts: NodeFacts, path: str, *, choice: FrameworkChoice, packages: Requirements, node: str) -> ChosenPython:
    found = facts.configured
    if found is None:
        raise ClusterError(
            f'{node}: [bootstrap] python = "{path}": no working Python there',
            hint='set python = "auto", or a version such as "3.11", which is installed if the image lacks it',
        )
    if not is_fit(found.version, choice, packages):
        raise ClusterError(
            f'{node}: [bootstrap] python = "{path}" is Python {show(found.version)}; {_show_fit(choice, packages)}',
            hint='set python = "auto", or the path of another Python',
        )
    return ChosenPython(version=found.version, path=found.path, named=True)


class WheelTarget(Struct, frozen=True, kw_only=True):
    """The kind of node for which wheels are fetched.

    requirements: lines of a requirements file, the framework's first. managed_python: a packed Python is fetched as
    well. python_path: the configured path, or empty. limits: requirements that only limit versions. base: the framework
    of a Python of the node that the environment uses instead of a wheel. without_gpus: the node has no GPU from NVIDIA,
    so a CPU build is enough.
    """

    python_version: tuple[int, int]
    machine: str
    glibc: tuple[int, int]
    requirements: tuple[str, ...]
    managed_python: bool = False
    python_path: str = ""
    limits: tuple[str, ...] = ()
    framework: Framework = "mxnet"
    base: FoundFramework | None = None
    without_gpus: bool = False

    @property
    def mxnet(self) -> str | None:
        """The requirement of MXNet, or the name of its file; None if MXNet does not come as a wheel."""
        return self.requirements[0] if self.framework == "mxnet" and self.base is None else None


def is_wheel_file(mxnet: str) -> bool:
    """Whether [bootstrap] mxnet, or the label of an MXNet, names a file instead of a wheel of the index. Pure."""
    return mxnet.endswith(".whl")


def choose_wheels(
    facts: NodeFacts,
    *,
    python: ChosenPython,
    mxnet: str,
    node: str,
    choice: FrameworkChoice = MXNET_CHOICE,
    packages: Requirements = NO_REQUIREMENTS,
) -> WheelTarget:
    """Chooses the wheels for one node; `mxnet` is [bootstrap]'s. Pure.

    Raises ClusterError if no wheel can run on the node.
    """
    own, found = _choose_own(facts, python=python, mxnet=mxnet, node=node, choice=choice, packages=packages)
    others = [line for line in packages.lines if not is_of_framework(line, choice.framework)]
    locked = {find_name(line) for line in packages.locked}
    limits = [line for line in found if find_name(line) not in locked]
    limits += [line for line in packages.limits if not is_of_framework(line, choice.framework)]
    return WheelTarget(
        python_version=python.version,
        machine=facts.machine,
        glibc=facts.glibc,
        requirements=(*own, *packages.locked, *others),
        managed_python=python.path is None,
        python_path=python.path if python.named and python.path else "",
        limits=tuple(limits),
        framework=choice.framework,
        base=choice.base,
        without_gpus=not facts.gpus and "NVIDIA" not in facts.displays,
    )


def _choose_own(
    facts: NodeFacts, *, python: ChosenPython, mxnet: str, node: str, choice: FrameworkChoice, packages: Requirements
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The requirements of the framework, and the limits that the image's framework sets."""
    if choice.base is not None:
        # Another NumPy would hide the one that the framework of the image was built with.
        limits = (f"numpy=={choice.base.numpy}",) if choice.base.numpy else ()
        return (), limits
    if choice.framework == "none":
        return (), ()
    if choice.wheel is not None:
        return (choice.wheel, choose_numpy(choice.wheel)), ()
    return _choose_mxnet(facts, python=python, mxnet=mxnet, node=node, packages=packages), ()


def _choose_mxnet(
    facts: NodeFacts, *, python: ChosenPython, mxnet: str, node: str, packages: Requirements
) -> tuple[str, ...]:
    if facts.machine != "x86_64":
        raise ClusterError(
            f"{node}: its CPU is {facts.machine}; MXNet's wheels are for x86_64 only",
            hint="set [provision] instance_type to a type with Intel or AMD processors",
        )
    locked = find_locked(packages.locked, MXNET, python_version=python.version, machine=facts.machine)
    if locked is not None and mxnet not in ("auto", locked):
        raise ConfigError(
            f'{node}: [bootstrap] mxnet = "{mxnet}" contradicts [bootstrap] project, which locks {locked}',
            hint=f"remove mxnet, or in the project's folder: uv add '{mxnet}'",
        )
    if mxnet == "auto":
        mxnet = locked or choose_mxnet(facts, node=node)
    wheel = find_wheel(mxnet)
    known = [gpu for gpu in find_gpus(facts) if gpu.capability is not None]
    unfit = check_gpus(wheel, known) if wheel is not None else None
    if unfit is not None:
        raise ConfigError(f'{node}: [bootstrap] mxnet = "{mxnet}": {unfit}', hint='set mxnet = "auto"')
    libraries = wheel.packages if wheel is not None else ()
    # MXNet imports distutils, which Python 3.12 dropped and setuptools has.
    numpy = ("numpy<1.24",) if python.version < (3, 12) else ("numpy<2", "setuptools<81")
    return (mxnet, *numpy, *libraries)


def choose_mxnet(facts: NodeFacts, *, node: str) -> str:
    """The MXNet wheel with code for a node's GPUs, or the CPU wheel for a node without GPUs. Pure.

    Raises ClusterError if no wheel has code for them.
    """
    chosen, gpus = CPU_WHEEL, find_gpus(facts)
    check_known(gpus, node=node, hint="set [bootstrap] mxnet to a wheel; cluster oracle lists them")
    for gpu in gpus:
        wheel = pick_wheel(gpu)
        if wheel is None:
            raise ClusterError(f"{node}: {no_auto_wheel(gpu)}", hint=no_wheel_hint(gpu))
        chosen = wheel
    return chosen.requirement


def platform_tags(target: WheelTarget) -> list[str]:
    """The platform tags of wheels that run on the target, newest first (PEP 600 and the older names). Pure.

    The last tag is that of wheels that were built on such a machine.
    """
    major, minor = target.glibc
    tags = [f"manylinux_{major}_{n}_{target.machine}" for n in range(minor, 4, -1)]
    older = {(2, 17): "manylinux2014", (2, 12): "manylinux2010", (2, 5): "manylinux1"}
    return (
        tags
        + [f"{name}_{target.machine}" for glibc, name in older.items() if target.glibc >= glibc]
        + [f"linux_{target.machine}"]
    )
