"""`cluster up` with wheels from each source, on real hosts that reach only a package index."""

import json
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from index_server import Index, link_cached_wheels, pip_environment, serve_index
from project import Project

pytestmark = pytest.mark.sandbox

MXNET = "mxnet-1.7.0.post2-py2.py3-none-manylinux2014_x86_64.whl"


@pytest.fixture
def wheels(two_nodes: Project, tmp_path: Path) -> Path:
    """The wheels of the user's usual cache, to which `two_nodes` has fetched all that it needs."""
    return link_cached_wheels(tmp_path / "wheels")


def find_gateway(project: Project) -> str:
    """The address at which the hosts reach this machine."""
    endpoint = json.loads(project.run("sandbox", "status", "--json").stdout)["endpoint_url"]
    return str(urlsplit(endpoint).hostname)


def read_environments(project: Project) -> list[str]:
    return sorted(project.run("exec", "--", "sh", "-c", "ls ~/.cluster/env").stdout.splitlines())


@pytest.mark.slow
@pytest.mark.parametrize("has_index", [True, False], ids=["index", "no-index"])
def test_the_environment_does_not_depend_on_the_source_of_wheels(
    two_nodes: Project, wheels: Path, tmp_path: Path, *, has_index: bool
) -> None:
    nodes = two_nodes
    before = read_environments(nodes)
    nodes.run("exec", "--", "sh", "-c", "rm -rf ~/.cluster/env ~/.cluster/files")
    with serve_index(wheels, address=find_gateway(nodes) if has_index else "127.0.0.1") as index:
        nodes.env = pip_environment(index, tmp_path / "cache")
        try:
            said = nodes.run("up").stderr
            assert "there was nothing to do" in nodes.run("up").stderr
            after = read_environments(nodes)
            assert len(after) == 2
            assert set(after) <= set(before)  # earlier tests may have added to `before`
            here = [path.name for path in (tmp_path / "cache" / "cluster" / "wheels").rglob("*.whl")]
            assert (MXNET in here) is not has_index
            assert ("this machine sends the wheels" in said) is not has_index
            assert asked_bytes(index, MXNET) == ((wheels / MXNET).stat().st_size if has_index else 0)
        finally:
            nodes.env = {}


def asked_bytes(index: Index, name: str) -> int:
    """The number of bytes that nodes have requested of a file, without their probes.

    Requests of this machine do not count: they have no first byte.
    """
    total = 0
    for wanted in index.asked_for(name):
        first, _, last = wanted.removeprefix("bytes=").partition("-")
        count = int(last) - int(first) + 1 if first else 0
        total += count if count > 1 else 0
    return total
