"""Set-up commands, Pythons and CUDA libraries, on real hosts with the real commands."""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from foundation.user_folders import cache_folder
from project import REPOSITORY, Project
from project import configure as configure_keys

pytestmark = pytest.mark.sandbox


def configure(project: Project, *, nodes: int = 1, instance_type: str = "c5.xlarge", **bootstrap: object) -> None:
    """Writes the shipped cluster.toml with other nodes, and with these keys of [bootstrap]."""
    text = (REPOSITORY / "cluster.toml").read_text()
    text = text.replace("nodes = 2", f"nodes = {nodes}").replace('"c5.xlarge"', f'"{instance_type}"')
    keys = "".join(f"{key} = {json.dumps(value)}\n" for key, value in bootstrap.items())
    project.write(text.replace("[bootstrap]\n", f"[bootstrap]\n{keys}"))


def ask(project: Project, command: str) -> str:
    """The output of a shell command on the head."""
    return project.run("exec", "--node", "node-0", "--", "sh", "-c", command).stdout.removeprefix("[node-0] ")


@pytest.fixture
def nodes(two_nodes: Project) -> Iterator[Project]:
    """The shared cluster, without the test's settings afterwards."""
    before = (two_nodes.directory / "cluster.toml").read_text()
    try:
        yield two_nodes
    finally:
        two_nodes.write(before)


def set_keys(project: Project, **bootstrap: Any) -> None:
    """Writes the shared cluster's cluster.toml with these keys of [bootstrap]."""
    configure(project, nodes=2, **bootstrap)
    project.write(configure_keys((project.directory / "cluster.toml").read_text(), idle="1d"))


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    project = Project(tmp_path_factory.mktemp("environment"))
    try:
        yield project
    finally:
        project.run("sandbox", "reset", "--yes")


def test_set_up_commands_run_once_and_again_when_they_change(nodes: Project) -> None:
    count = "echo run >>$HOME/'it''s $(odd)'"
    set_keys(nodes, setup=[count, "sudo touch /opt/by-sudo"])
    nodes.run("up")
    assert "nothing to do" in nodes.run("up").stderr
    assert ask(nodes, "cat ~/it*odd*; ls /opt/by-sudo").split() == ["run", "[node-0]", "/opt/by-sudo"]
    set_keys(nodes, setup=[count])
    nodes.run("up")
    assert ask(nodes, "cat ~/it*odd* | wc -l").strip() == "2"


def test_a_failing_set_up_command_is_reported_and_repaired(nodes: Project) -> None:
    set_keys(nodes, setup=["echo the first", "echo what it said; sh -c 'exit 7'", "touch ~/never"])
    said = nodes.run("up", code=1).stderr
    assert re.search(r"node-0: exit code 7 from: ", said)
    assert "  | what it said" in said
    assert "setup command 2 of 3 ended with exit code 7: echo what it said; sh -c 'exit 7'" in said
    set_keys(nodes, setup=["test ! -e ~/never"])
    nodes.run("up")


@pytest.mark.slow
def test_mxnet_can_be_imported_by_hand(node: Project) -> None:
    configure(node)
    node.run("up", "--yes")
    code = "import mxnet as mx; print((mx.nd.ones((2, 3)) * 2 + 1).sum().asscalar())"
    assert ask(node, f".cluster/env/*/bin/python -c '{code}'").strip() == "18.0"
    assert ask(node, "cat .cluster/env/*/.unresolved").startswith("checked ")


@pytest.mark.slow
def test_a_wheel_damaged_on_this_machine_is_fetched_again(node: Project, tmp_path: Path) -> None:
    """Size and time are unchanged, so only the node notices the damage."""
    configure(node)
    node.run("up", "--yes")
    damaged = copy_cache(tmp_path / "cluster", damage="graphviz-")
    ask(node, "rm -rf ~/.cluster/env ~/.cluster/files")
    node.env = {"XDG_CACHE_HOME": str(tmp_path)}
    try:
        said = node.run("up", code=1).stderr
        assert any(f"{path} was damaged and has been removed" in said for path in damaged), said
        node.run("up")
    finally:
        node.env = {}


def copy_cache(copy: Path, *, damage: str) -> list[Path]:
    """Links to the usual cache; replaces files whose name begins with `damage` by damaged copies, and returns these."""
    damaged = []
    for path in [path for folder in ("bundles", "resolved", "wheels") for path in (cache_folder() / folder).rglob("*")]:
        place = copy / path.relative_to(cache_folder())
        place.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            place.mkdir(exist_ok=True)
        elif path.name.startswith(damage):
            data = bytearray(path.read_bytes())
            data[len(data) // 2] ^= 1
            place.write_bytes(data)
            shutil.copystat(path, place)
            damaged.append(place)
        else:
            place.symlink_to(path)
    assert damaged
    return damaged


def test_a_missing_python_is_refused(nodes: Project) -> None:
    set_keys(nodes, framework="none", python="/opt/no/python")
    said = nodes.run("up", code=1).stderr
    assert 'node-0: [bootstrap] python = "/opt/no/python": no working Python there' in said
    assert '"3.11"' in said


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_cuda_11_2_comes_from_pypi_without_the_driver(project: Project) -> None:
    """The real wheel and its nvidia-* wheels, 2.4 GB in all."""
    configure(project, instance_type="g5.xlarge", mxnet="mxnet-cu112==1.9.1")
    project.run("up", "--yes", timeout_s=1200)
    checked, *missing = ask(project, "cat .cluster/env/*/.unresolved").splitlines()
    assert checked.startswith("checked ")
    assert missing == ["[node-0] libcuda.so.1"]
    said = ask(project, ".cluster/env/*/bin/python -c 'import mxnet' 2>&1 | tail -n 1")
    assert "libcuda.so.1: cannot open shared object file" in said
