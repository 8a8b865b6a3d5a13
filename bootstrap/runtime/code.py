"""The code and the packages of the runtime: what our own programs on the nodes consist of.

runtime.py makes the runtime of them.
"""

import hashlib
import json
from functools import cache
from importlib.resources import files
from pathlib import Path

from bootstrap.transfer.tree import Tree, file_of_bytes, make_tree

FOLDER = "runtime"
"""Its folder in ~/.cluster."""
PACKAGES = ("msgspec==0.22.0", "nvidia-ml-py==13.615.71", "obstore==0.11.1", "psutil==7.2.2", "py-spy==0.4.3")
"""obstore 0.11 is the last that has wheels for Python 3.10."""
SCRIPTS_DIR = "train/scripts"
STARTUP_DIR = "node/setup/startup"
MODULES = ("mxnet_cluster/", f"{STARTUP_DIR}/")
"""The code that is also in training environments: what users' programs import, and what their Pythons do at a start."""
CODE = (
    "foundation/__init__.py",
    "foundation/authorities.py",
    "foundation/decode.py",
    "foundation/durations.py",
    "foundation/file_lock.py",
    "foundation/remote_command.py",
    "foundation/setting_types.py",
    "foundation/thread_pool.py",
    "mxnet_cluster",
    "node",
    "node/causes/mistakes.ini",
    "node/notebook/jupyter_server_config.json",
    "node/notebook/kernels/python3/kernel.json",
    SCRIPTS_DIR,
)
"""The parts of this project that the nodes get: files, and all Python files in folders."""


@cache
def read_code() -> Tree:
    """The code of our programs on the nodes, and the training scripts that ship with this project."""
    content = {}
    for name in CODE:
        part = find_part(name)
        for path in [part] if part.is_file() else sorted(part.rglob("*.py")):
            content[f"{name}/{path.relative_to(part).as_posix()}".removesuffix("/.")] = path.read_bytes()
    return make_tree(file_of_bytes(path, data) for path, data in content.items())


def find_part(name: str) -> Path:
    """A file or folder of this project."""
    package, _, rest = name.partition("/")
    return Path(str(files(package).joinpath(rest)))


@cache
def runtime_digest() -> str:
    """The name of this version's runtime: the SHA-256 of its code and of the names of its packages."""
    return hashlib.sha256(json.dumps([read_code().digest, PACKAGES]).encode()).hexdigest()


@cache
def modules_digest() -> str:
    """The SHA-256 of our code in training environments."""
    return make_tree(file for file in read_code().files if file.path.startswith(MODULES)).digest


def runtime_path(home: str) -> str:
    """The runtime's folder on a node. home: of the node's user. Pure, except that it reads the code."""
    return f"{home}/.cluster/{FOLDER}/{runtime_digest()}"
