"""This project's own command on the head, which replaces lost nodes with it: its code and its packages in one tree.

It runs with the runtime's Python if that is new enough, or else with one that this machine sends.
"""

import hashlib
import json
from collections.abc import Sequence
from importlib.metadata import version

from bootstrap.environment.facts import NodeFacts
from bootstrap.environment.file_cache import BundleFile
from bootstrap.environment.target import MANAGED_PYTHON, ChosenPython, WheelTarget
from bootstrap.transfer.tree import Tree, files_of_wheel, make_tree

OLDEST_PYTHON = (3, 11)
PACKAGES = ("boto3", "click", "cryptography", "fabric", "msgspec", "obstore", "packaging", "pathspec", "rich")
"""The packages that the command imports to launch a node and set it up, not those of other verbs and the sandbox."""


SERVICES = ("ec2", "ecr", "efs", "fsx", "iam", "pricing", "s3", "service-quotas", "ssm", "sts")
"""The services of AWS that the command calls: botocore's descriptions of all are three quarters of the packages."""


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


def name_client(code: Tree, wheels: Sequence[BundleFile]) -> str:
    """The digest of the tree with the code and the wheels. Pure."""
    content = [code.digest, [(wheel.name, wheel.sha256) for wheel in wheels]]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def make_client(code: Tree, wheels: Sequence[BundleFile]) -> Tree:
    """The tree, a folder that Python can run. Reads the wheels."""
    packages = [file for wheel in wheels for file in files_of_wheel(wheel.path, "") if _is_needed(file.path)]
    ours = {file.path for file in code.files}
    tree = make_tree((*code.files, *(file for file in packages if file.path not in ours)))
    return Tree(files=tree.files, folders=(), digest=name_client(code, wheels))


def _is_needed(path: str) -> bool:
    """Whether the command needs a file of its packages. Pure."""
    top, *rest = path.split("/")
    if top == "botocore" and rest[0] == "data" and len(rest) > 2:
        return rest[1] in SERVICES
    return top != "bin"
