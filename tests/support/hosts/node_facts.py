"""A node's facts, an environment's files and a tree, for tests of plans."""

import hashlib
import subprocess
from pathlib import Path

from bootstrap.environment.bundle import Bundle
from bootstrap.environment.facts import FoundPython, NodeFacts
from bootstrap.environment.file_cache import BundleFile
from bootstrap.environment.target import WheelTarget
from bootstrap.ssh.host import Host
from bootstrap.transfer.tree import file_of_bytes, make_tree
from provision.oracle.tables import CPU_WHEEL

NODE_PROGRAMS = Path(__file__).parents[3] / "node" / "setup"
SYSTEM_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
FACTS = NodeFacts(
    machine="x86_64",
    glibc=(2, 36),
    cores=2,
    python="/usr/bin/python3",
    home="/home/ubuntu",
    pythons=(FoundPython(path="/usr/bin/python3", version=(3, 11)),),
)
HOST = Host(name="node-1", instance_id="i-1", address="198.18.0.2", private_ip="10.0.0.5", user="ubuntu", is_head=False)
LAB = Host(
    name="lab",
    instance_id="lab",
    address="lab.example.org",
    private_ip="10.9.0.1",
    user="alice",
    is_head=False,
    port=2222,
    spec="lab",
)
"""One of the user's own hosts."""
TARGET = WheelTarget(
    python_version=(3, 11),
    python_path="/usr/bin/python3",
    machine="x86_64",
    glibc=(2, 36),
    requirements=(CPU_WHEEL.requirement,),
)
BUNDLE = Bundle(
    target=TARGET,
    files=tuple(
        BundleFile(path=Path(name), sha256=hashlib.sha256(name.encode()).hexdigest(), size_bytes=1000)
        for name in ("mxnet-1.7.0.post2-py2.py3-none-manylinux2014_x86_64.whl", "uv-1-none.whl")
    ),
)
TREE = make_tree([file_of_bytes("node/agent.py", b"print()\n")])


def run_shell(text: str, home: Path, *, path: str = SYSTEM_PATH) -> subprocess.CompletedProcess[str]:
    """Runs a script as a node does, with this home folder."""
    env = {"HOME": str(home), "PATH": path}
    return subprocess.run(["/bin/sh", "-c", text], env=env, capture_output=True, text=True, check=False)


def make_programs(folder: Path, **bodies: str) -> Path:
    """Writes shell programs to a folder for PATH; returns the folder. `_` in a name stands for `-`."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, body in bodies.items():
        path = folder / name.replace("_", "-")
        path.write_text(f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)
    return folder
