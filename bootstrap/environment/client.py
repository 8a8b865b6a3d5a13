"""The environment of this project's own command on the head, which uses it to replace lost nodes. Pure.

It is separate from the jobs' environment, because it needs other packages and a newer Python.
"""

from importlib.metadata import version

from bootstrap.environment.facts import NodeFacts
from bootstrap.environment.target import MANAGED_GLIBC, MANAGED_PYTHON, ChosenPython, WheelTarget
from foundation.errors import ClusterError
from provision.oracle.tables import show

FOLDER = "client"
"""Its folder in ~/.cluster."""
OLDEST_PYTHON = (3, 11)
PACKAGES = ("boto3", "click", "cryptography", "fabric", "msgspec", "obstore", "packaging", "pathspec", "rich")
"""The packages that the command imports to launch a node and set it up, not those of other verbs and the sandbox."""


def choose_client(facts: NodeFacts, *, node: str) -> tuple[WheelTarget, ChosenPython]:
    """The wheels, in this machine's versions, and the Python: one of the image's, or a packed one.

    Raises ClusterError if neither runs on the node.
    """
    known = (*facts.pythons, *(framework.python for framework in facts.frameworks))
    found = next((python for python in known if python.version >= OLDEST_PYTHON), None)
    if found is None and facts.glibc < MANAGED_GLIBC:
        raise ClusterError(f"{node} has no Python {show(OLDEST_PYTHON)} or later")
    chosen = ChosenPython(version=MANAGED_PYTHON, path=None)
    if found is not None:
        chosen = ChosenPython(version=found.version, path=found.path)
    target = WheelTarget(
        python_version=chosen.version,
        machine=facts.machine,
        glibc=facts.glibc,
        requirements=tuple(f"{name}=={version(name)}" for name in PACKAGES),
        managed_python=found is None,
        framework="none",
    )
    return target, chosen
