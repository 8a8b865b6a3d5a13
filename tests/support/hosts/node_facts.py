"""A node as facts describe it, an environment's files and a tree: what tests of decisions begin with."""

import hashlib
import subprocess
from pathlib import Path

from bootstrap.environment.bundle import COMPAT_FILE, Bundle
from bootstrap.environment.facts import FoundPython, NodeFacts
from bootstrap.environment.file_cache import BundleFile
from bootstrap.environment.target import ChosenPython, WheelTarget
from bootstrap.transfer.tree import file_of_bytes, make_tree
from provision.oracle.tables import CPU_WHEEL

NODE_PROGRAMS = Path(__file__).parents[3] / "bootstrap" / "node"
SYSTEM_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
FACTS = NodeFacts(
    machine="x86_64",
    system="Debian GNU/Linux 12 (bookworm)",
    glibc=(2, 36),
    cores=2,
    python="/usr/bin/python3",
    python_version=(3, 11),
    disk_free_kib=50_000_000,
    home="/home/ubuntu",
    missing_libraries=(),
    gpus=(),
    files=frozenset(),
    envs=frozenset(),
    trees=frozenset(),
    cluster_key=None,
    known_hosts_sha256=None,
    authorized=(),
    pythons=(FoundPython(path="/usr/bin/python3", version=(3, 11)),),
)
PYTHON = ChosenPython(version=(3, 11), path="/usr/bin/python3")
TARGET = WheelTarget(python_version=(3, 11), machine="x86_64", glibc=(2, 36), requirements=(CPU_WHEEL.requirement,))
BUNDLE = Bundle(
    target=TARGET,
    files=tuple(
        BundleFile(path=Path(name), sha256=hashlib.sha256(name.encode()).hexdigest(), size_bytes=1000)
        for name in ("mxnet-1.7.0.post2-py2.py3-none-manylinux2014_x86_64.whl", "uv-1-none.whl", COMPAT_FILE)
    ),
)
TREE = make_tree([file_of_bytes("node/role.py", b"print()\n")])


def run_shell(text: str, home: Path, *, path: str = SYSTEM_PATH) -> subprocess.CompletedProcess[str]:
    """Run a script as a node does, with `home` for the home folder."""
    env = {"HOME": str(home), "PATH": path}
    return subprocess.run(["/bin/sh", "-c", text], env=env, capture_output=True, text=True, check=False)


def make_programs(folder: Path, **bodies: str) -> Path:
    """Shell programs in a folder for PATH; `_` in a name stands for `-`."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, body in bodies.items():
        path = folder / name.replace("_", "-")
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)
    return folder
