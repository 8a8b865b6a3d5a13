"""Which Python a node's environment is made with: pure decisions."""

from dataclasses import dataclass

from bootstrap.facts import FoundPython, NodeFacts
from provision.errors import ClusterError
from provision.oracle.gpus import Version, show

# MXNet's wheels are pure ctypes; uv, which makes the environment, begins at Python 3.8. NumPy 1.26, the last that MXNet
# can be made to work with (_cluster_compat.py puts np.bool and its kin back), has wheels up to 3.12; with NumPy 2
# `import mxnet` fails: np.PZERO is gone.
OLDEST_PYTHON = (3, 8)
NEWEST_PYTHON = (3, 12)
# The newest for which NumPy has wheels that MXNet takes as they are.
MANAGED_PYTHON = (3, 11)
MANAGED_GLIBC = (2, 17)
"""The oldest that uv's Pythons for Linux run on: https://gregoryszorc.com/docs/python-build-standalone/main/running.html"""


@dataclass(frozen=True, kw_only=True, slots=True)
class ChosenPython:
    """`path` is absolute on the node; None for a Python that we bring along (managed_python.py).

    named: the user named that very path.
    """

    version: Version
    path: str | None
    named: bool = False


def choose_python(facts: NodeFacts, *, setting: str, node: str) -> ChosenPython:
    """Decide for one node; `setting` is [bootstrap] python: "auto", a path or a version. Pure.

    Raises ClusterError when the Python that the user named does not work, or MXNet does not work with it.
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
        raise ClusterError(
            f"{node}: it has no Python {_wanted(setting)}, and the one that would be brought along needs "
            f"glibc {show(MANAGED_GLIBC)}; there it is {show(facts.glibc)}",
            hint="take an image that has one ([provision] ami)",
        )
    return ChosenPython(version=version, path=None)


def is_fit(python: FoundPython) -> bool:
    """Whether MXNet can be set up on a Python. Pure."""
    return OLDEST_PYTHON <= python.version <= NEWEST_PYTHON


def _named(facts: NodeFacts, path: str, *, node: str) -> ChosenPython:
    found = facts.configured
    if found is None:
        raise ClusterError(
            f'{node}: [bootstrap] python = "{path}": no Python works there',
            hint='set python = "auto", or a version such as "3.11", which is brought along where the image has none',
        )
    if not is_fit(found):
        raise ClusterError(
            f'{node}: [bootstrap] python = "{path}" is Python {show(found.version)}; MXNet works with 3.8 to 3.12',
            hint='set python = "auto", or another Python of the nodes',
        )
    return ChosenPython(version=found.version, path=found.path, named=True)


def _wanted(setting: str) -> str:
    return "3.8 to 3.12" if setting == "auto" else setting
