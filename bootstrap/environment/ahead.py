"""Resolves the packages of [bootstrap] before any node is launched: a mistake in them then costs nothing.

What the nodes will be like is not known yet, so this only refuses what no likely node could install. Wheels that are
found are remembered, and nodes that are as expected need no other search.
"""

from collections.abc import Sequence
from pathlib import Path

from bootstrap.config import BootstrapConfig
from bootstrap.environment.bundle import find_wheels
from bootstrap.environment.facts import FoundPython, NodeFacts
from bootstrap.environment.lock import NoSourceError, NoWheelError, lock_source
from bootstrap.environment.requirements import Requirements
from bootstrap.environment.target import WheelTarget, choose_target
from foundation.errors import ClusterError
from foundation.progress import Report
from provision.oracle.tables import Gpu, Version, show

NODE = "the nodes"
LIKELY_PYTHONS: tuple[Version, ...] = ((3, 10), (3, 12), (3, 11))
"""Those of Ubuntu 22.04 and 24.04, and the one that is installed where an image's does not fit."""
LIKELY_GLIBC: Version = (2, 35)


def check_packages(
    config: BootstrapConfig,
    *,
    packages: Requirements,
    machine: str,
    gpu: Gpu | None,
    pythons: Sequence[Version],
    glibc: Version,
    cache: Path,
    report: Report,
) -> None:
    """Raises ClusterError if the packages cannot be installed on nodes with any of these Pythons, the likeliest first.

    machine: the nodes' architecture. gpu: their GPU. Does nothing for an environment that has only what "auto" chooses.
    """
    named = config.torch if config.framework == "pytorch" else config.mxnet
    is_own = bool(packages.lines or packages.locked) or (config.framework != "none" and "==" in named)
    if not is_own or config.python.startswith("/") or config.mxnet == "installed":
        return
    first: ClusterError | None = None
    for version in pythons:
        facts = expect_facts(machine=machine, gpu=gpu, python=version, glibc=glibc)
        target = choose_target(facts, config=config, packages=packages, node=NODE)
        try:
            _resolve(target, cache=cache, report=report)
        except ClusterError as error:
            first = first or error
        else:
            return
    if first is not None:
        raise first


def _resolve(target: WheelTarget, *, cache: Path, report: Report) -> None:
    try:
        find_wheels(target, (), cache=cache, report=report)
    except NoWheelError as error:
        try:
            lock_source(target, error.requirement, cache=cache)  # a node will build it
        except NoSourceError:
            raise error from None


def expect_facts(*, machine: str, gpu: Gpu | None, python: Version, glibc: Version) -> NodeFacts:
    """What counts for the choice of packages, of a node that does not exist yet. Pure."""
    has_cuda = gpu is not None and gpu.capability is not None
    return NodeFacts(
        machine=machine,
        glibc=glibc,
        python="/usr/bin/python3",
        home="/home",
        gpus=((show(gpu.capability), gpu.name),) if gpu is not None and gpu.capability is not None else (),
        pythons=(FoundPython(path="/usr/bin/python3", version=python),),
        displays=("NVIDIA",) if has_cuda else (),
    )
