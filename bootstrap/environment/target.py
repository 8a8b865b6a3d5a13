"""Chooses the Python and the packages of a node's environment. Pure. provision.oracle has the frameworks' wheels."""

from msgspec import Struct

from bootstrap.config import BootstrapConfig
from bootstrap.environment.facts import FoundFramework, NodeFacts, find_gpus
from bootstrap.environment.framework import LABELS, FrameworkChoice, check_known, choose_framework, is_of_framework
from bootstrap.environment.requirements import MXNET, Requirements, find_locked, find_name
from foundation.errors import ClusterError, ConfigError
from node.engines.engine import Framework
from provision.oracle.decide import check_gpus, no_auto_wheel, no_wheel_hint, pick_wheel
from provision.oracle.tables import CPU_WHEEL, Version, find_wheel, show
from provision.oracle.torch import choose_numpy

MANAGED_PYTHONS = ((3, 11), (3, 12), (3, 13), (3, 14), (3, 10), (3, 9))
"""The Pythons for a node that has none that fits: first the newest that all frameworks support unchanged."""


class WheelTarget(Struct, frozen=True, kw_only=True):
    """The kind of node for which wheels are fetched.

    python_path: of its Python, absolute; None for a packed Python, which this machine sends. requirements: lines of a
    requirements file, the framework's first. limits: requirements that only limit versions. base: the framework
    of a Python of the node that the environment uses instead of a wheel. without_gpus: the node has no GPU from NVIDIA,
    so a CPU build is enough.
    """

    python_version: Version
    python_path: str | None
    machine: str
    glibc: tuple[int, int]
    requirements: tuple[str, ...]
    limits: tuple[str, ...] = ()
    framework: Framework = "mxnet"
    base: FoundFramework | None = None
    without_gpus: bool = False

    @property
    def mxnet(self) -> str | None:
        """The requirement of MXNet, or the name of its file; None if MXNet does not come as a wheel."""
        return self.requirements[0] if self.framework == "mxnet" and self.base is None else None


def choose_target(facts: NodeFacts, *, config: BootstrapConfig, packages: Requirements, node: str) -> WheelTarget:
    """Chooses framework, Python and packages for one node. Pure. Raises ClusterError if none can run on it."""
    choice = choose_framework(facts, config=config, packages=packages, node=node)
    version, path = _choose_python(facts, config.python, choice=choice, packages=packages, node=node)
    mxnet = config.mxnet.rpartition("/")[2]  # of a wheel of the user's own, the name
    own, found = _choose_own(facts, version, mxnet=mxnet, choice=choice, packages=packages, node=node)
    others = [line for line in packages.lines if not is_of_framework(line, choice.framework)]
    locked = {find_name(line) for line in packages.locked}
    limits = [line for line in found if find_name(line) not in locked]
    limits += [line for line in packages.limits if not is_of_framework(line, choice.framework)]
    return WheelTarget(
        python_version=version,
        python_path=path,
        machine=facts.machine,
        glibc=facts.glibc,
        requirements=(*own, *packages.locked, *others),
        limits=tuple(limits),
        framework=choice.framework,
        base=choice.base,
        without_gpus=not facts.gpus and "NVIDIA" not in facts.displays,
    )


def _choose_python(
    facts: NodeFacts, setting: str, *, choice: FrameworkChoice, packages: Requirements, node: str
) -> tuple[Version, str | None]:
    """The version and path of a Python; setting: [bootstrap] python. Pure. Raises ClusterError if it does not fit."""

    def is_fit(version: Version) -> bool:
        return choice.pythons[0] <= version <= choice.pythons[1] and packages.allows(version)

    if setting.startswith("/"):
        found = facts.configured
        if found is None:
            raise ClusterError(
                f'{node}: [bootstrap] python = "{setting}": no working Python there',
                hint='set python = "auto", or a version such as "3.11", which is installed if the image lacks it',
            )
        if not is_fit(found.version):
            raise ClusterError(
                f'{node}: [bootstrap] python = "{setting}" is Python {show(found.version)}; '
                f"{_show_fit(choice, packages)}",
                hint='set python = "auto", or the path of another Python',
            )
        return found.version, found.path
    if choice.base is not None:
        return choice.base.python.version, choice.base.python.path
    major, _, minor = setting.partition(".")
    of_node = [python.version for python in facts.pythons]
    wanted = [*of_node, *MANAGED_PYTHONS] if setting == "auto" else [(int(major), int(minor))]
    version = next(filter(is_fit, wanted), None)
    if version is None:
        named = show(MANAGED_PYTHONS[0]) if setting == "auto" else setting
        raise ClusterError(
            f"{node}: Python {named} does not fit: {_show_fit(choice, packages)}",
            hint="set [bootstrap] python to a version that fits, or to the path of such a Python on the nodes",
        )
    return version, next((python.path for python in facts.pythons if python.version == version), None)


def _show_fit(choice: FrameworkChoice, packages: Requirements) -> str:
    name = choice.wheel or LABELS[choice.framework]
    verb = "work" if choice.framework == "none" else "works"
    locked = f", and [bootstrap] project is locked for {packages.python}" if packages.python else ""
    return f"{name} {verb} with {show(choice.pythons[0])} to {show(choice.pythons[1])}{locked}"


def is_wheel_file(mxnet: str) -> bool:
    """Whether [bootstrap] mxnet, or the label of an MXNet, names a file instead of a wheel of the index. Pure."""
    return mxnet.endswith(".whl")


def _choose_own(
    facts: NodeFacts, python: Version, *, mxnet: str, choice: FrameworkChoice, packages: Requirements, node: str
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
    return _choose_mxnet(facts, python, mxnet=mxnet, packages=packages, node=node), ()


def _choose_mxnet(
    facts: NodeFacts, python: Version, *, mxnet: str, packages: Requirements, node: str
) -> tuple[str, ...]:
    if facts.machine != "x86_64":
        raise ClusterError(
            f"{node}: its CPU is {facts.machine}; MXNet's wheels are for x86_64 only",
            hint="set [provision] instance_type to a type with Intel or AMD processors",
        )
    locked = find_locked(packages.locked, MXNET, python_version=python, machine=facts.machine)
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
    numpy = ("numpy<1.24",) if python < (3, 12) else ("numpy<2", "setuptools<81")
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
