"""This project's own command on the head, which replaces lost nodes with it: its packages, beside the code.

They are an environment of their own. Its Python is one of the image's if that is new enough, or else one that this
machine sends.
"""

from importlib.metadata import version

from bootstrap.environment.facts import NodeFacts
from bootstrap.environment.target import MANAGED_PYTHONS, WheelTarget

OLDEST_PYTHON = (3, 11)
PACKAGES = ("boto3", "click", "cryptography", "fabric", "msgspec", "obstore", "packaging", "pathspec", "rich")
"""The packages that the command imports to launch a node and set it up, not those of other verbs and the sandbox."""


def choose_client(facts: NodeFacts) -> WheelTarget:
    """The wheels, in this machine's versions, and the Python: one of the image's, or a packed one. Pure."""
    known = (*facts.pythons, *(framework.python for framework in facts.frameworks))
    found = next((python for python in known if python.version >= OLDEST_PYTHON), None)
    return WheelTarget(
        python_version=found.version if found is not None else MANAGED_PYTHONS[0],
        python_path=found.path if found is not None else None,
        machine=facts.machine,
        glibc=facts.glibc,
        requirements=tuple(f"{name}=={version(name)}" for name in PACKAGES),
        framework="none",
    )
