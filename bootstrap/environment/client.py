"""This project's own command on the head, which replaces lost nodes with it: its packages, beside the code.

They are an environment of their own. Its Python is one of the image's if that is new enough, or else one that this
machine sends.
"""

from importlib.metadata import version

from bootstrap.environment.facts import NodeFacts
from bootstrap.environment.target import MANAGED_PYTHON, ChosenPython, WheelTarget

OLDEST_PYTHON = (3, 11)
PACKAGES = ("boto3", "click", "cryptography", "fabric", "msgspec", "obstore", "packaging", "pathspec", "rich")
"""The packages that the command imports to launch a node and set it up, not those of other verbs and the sandbox."""


def choose_client(facts: NodeFacts) -> tuple[WheelTarget, ChosenPython]:
    """The wheels, in this machine's versions, and the Python: one of the image's, or a packed one. Pure."""
    known = (*facts.pythons, *(framework.python for framework in facts.frameworks))
    found = next((python for python in known if python.version >= OLDEST_PYTHON), None)
    if found is None:
        chosen = ChosenPython(version=MANAGED_PYTHON, path=None)
    else:
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
