"""[bootstrap] framework on real hosts: PyTorch from a wheel and from the image, an installed MXNet, and none."""

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from project import Project, shipped

pytestmark = pytest.mark.sandbox

TORCH = "torch==2.13.0"
DIST_PACKAGES = "/usr/lib/python3/dist-packages/torch"


def verified(project: Project) -> dict[str, list[tuple[str, str, str]]]:
    """The checks of `cluster verify`, by their kind: (node, status, message)."""
    checks: list[dict[str, Any]] = json.loads(project.run("verify", "--json").stdout)
    kinds: dict[str, list[tuple[str, str, str]]] = {}
    for check in checks:
        kinds.setdefault(check["check"], []).append((check["node"], check["status"], check["result"]))
    return kinds


def ask(project: Project, code: str) -> set[str]:
    """Runs a Python program in the environment on all nodes; returns the set of lines that it prints."""
    done = project.run("exec", "--", "python", "-c", code)
    return {line.partition("] ")[2] for line in done.stdout.splitlines()}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    """Two nodes, for all tests of this file in order."""
    made = Project(tmp_path_factory.mktemp("frameworks"))
    try:
        yield made
    finally:
        made.run("sandbox", "stop", "--yes")


@pytest.fixture(scope="module")
def cpu_wheel() -> None:
    """Skips the test if pip would fetch the build for GPUs, 3 GB with its libraries."""
    words = ("install", "--dry-run", "--ignore-installed", "--no-deps", "--quiet", "--report", "-", TORCH)
    done = subprocess.run((sys.executable, "-m", "pip", *words), capture_output=True, text=True, check=False)
    if done.returncode != 0 or "+cpu" not in json.loads(done.stdout)["install"][0]["metadata"]["version"]:
        pytest.skip(f"no package index of pip on this machine has a CPU build of {TORCH}")


@pytest.mark.slow
def test_auto_uses_the_pytorch_of_the_image(cluster: Project) -> None:
    """The image has a package that looks like PyTorch."""
    made = f"sudo mkdir -p {DIST_PACKAGES} && cd {DIST_PACKAGES}"
    made += " && echo '__version__ = \"2.1.7\"' | sudo tee version.py"
    made += " && echo 'from .version import __version__' | sudo tee __init__.py"
    cluster.write(shipped(framework="pytorch", bootstrap__setup=[made]))
    cluster.run("up")
    assert ask(cluster, "import torch; print(torch.__version__, torch.__file__)") == {
        f"2.1.7 {DIST_PACKAGES}/__init__.py"
    }
    assert "nothing to do" in cluster.run("up").stderr
    cluster.run("exec", "--", "sudo", "rm", "-r", DIST_PACKAGES)


@pytest.mark.slow
@pytest.mark.usefixtures("cpu_wheel")
@pytest.mark.timeout(900)
def test_a_wheel_of_pytorch_computes_on_all_nodes_together(cluster: Project) -> None:
    cluster.write(shipped(framework="pytorch", torch=TORCH))
    cluster.run("up", "--yes", timeout_s=600)
    assert "nothing to do" in cluster.run("up").stderr
    kinds = verified(cluster)
    computed = "PyTorch 2.13.0+cpu: ones((2,3))*2+1 == 3"
    assert kinds["compute"] == [("node-0", "ok", computed), ("node-1", "ok", computed)]
    together = "all_reduce with 1 other node"
    assert kinds["all_reduce"] == [("node-0", "ok", together), ("node-1", "ok", together)]
    deep: list[dict[str, Any]] = json.loads(cluster.run("verify", "--deep", "--json").stdout)
    rates = {check["subject"]: check["value"] for check in deep if check["unit"] == "GB/s"}
    assert list(rates) == ["all_reduce 1 MiB", "all_reduce 16 MiB", "all_reduce 128 MiB"]
    assert min(rates.values()) > 0
