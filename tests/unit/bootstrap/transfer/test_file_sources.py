"""The sources of nodes' files: real agents, a package index over HTTP, and this machine."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from agent_steps import LocalNode, Nodes
from bootstrap.environment.file_cache import BundleFile, describe_file
from bootstrap.transfer.distribute import Distribution, Peer
from bootstrap.transfer.sources import Sources
from foundation.progress import Event, silent
from index_server import Index, make_wheel, serve_index

SIZE = 9_000_000  # three ranges
SLACK = 500_000


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheels")
    make_wheel(folder, "thing-1.0-py3-none-any.whl", {"data": random.Random(8).randbytes(SIZE)})
    (folder / "own.bin").write_bytes(random.Random(9).randbytes(1000))
    return folder


@pytest.fixture
def index(folder: Path) -> Iterator[Index]:
    with serve_index(folder) as served:
        yield served


@pytest.fixture
def own(folder: Path) -> BundleFile:
    """A file that only this machine has."""
    return describe_file(folder / "own.bin")


@pytest.fixture
def wheel(folder: Path, index: Index, tmp_path: Path) -> BundleFile:
    """A wheel that only the index has."""
    described = describe_file(folder / "thing-1.0-py3-none-any.whl")
    path = tmp_path / "cache" / described.name
    return replace(described, path=path, urls=(f"{index.url}/files/{described.name}",))


def make_nodes(root: Path, count: int) -> tuple[Nodes, list[Event]]:
    nodes = Nodes(root, count)
    events: list[Event] = []
    nodes.distribution = Distribution(report=silent)
    nodes.distribution.sources = Sources(report=events.append)
    return nodes, events


def asked_bytes(index: Index) -> int:
    """The number of bytes requested, Requests of this machine have no range."""
    total = 0
    for wanted in index.asked_for(".whl"):
        first, _, last = wanted.removeprefix("bytes=").partition("-")
        count = int(last) - int(first) + 1 if first else SIZE
        total += count if count > 1 else 0
    return total


def assert_all_have(nodes: list[LocalNode], *files: BundleFile) -> None:
    assert all(node.has(file) for node in nodes for file in files)


def test_the_first_node_takes_wheels_from_the_index(
    tmp_path: Path, index: Index, wheel: BundleFile, own: BundleFile
) -> None:
    nodes, events = make_nodes(tmp_path, 3)
    with nodes:
        nodes.start(*nodes.all, files=(wheel, own))
        assert nodes.join() == {}
        assert_all_have(nodes.all, wheel, own)
        assert nodes.uploaded_bytes() < SLACK
    assert asked_bytes(index) == wheel.size_bytes
    assert not wheel.path.exists()
    assert events == []


def test_nodes_without_internet_get_wheels_from_this_machine(
    tmp_path: Path, index: Index, wheel: BundleFile, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The index answers too late for the nodes, but this machine waits longer."""
    monkeypatch.setattr("bootstrap.transfer.sources.FIRST_S", 0.2)
    index.delay_s = 0.6
    other = describe_file(make_wheel(folder, "other-1.0-py3-none-any.whl", {"x": b"x"}))
    other = replace(other, path=tmp_path / "cache2" / other.name, urls=(f"{index.url}/files/{other.name}",))
    nodes, events = make_nodes(tmp_path, 3)
    with nodes:
        nodes.start(*nodes.all, files=(wheel, other))
        assert nodes.join() == {}
        assert_all_have(nodes.all, wheel, other)
        assert SIZE < nodes.uploaded_bytes() < SIZE + SLACK
    assert [event.kind for event in events] == ["info", "start", "done"]  # one step for all
    assert "timed out" in events[0].what
    assert len(index.asked_for("other-1.0-py3-none-any.whl")) == 1  # there was no useless second attempt


def test_nodes_form_a_chain() -> None:
    """Each asks the node that came before it, then earlier ones: this machine's uplink carries a file once."""
    one, two, three = (Peer(address=f"10.0.0.{number}", port=1, files=frozenset("a")) for number in range(3))
    distribution = Distribution(report=silent)
    assert distribution.join(one, "a") == ()
    assert distribution.join(two, "a") == (one,)
    assert distribution.join(three, "ab") == (two, one)
    distribution.lose(two)
    assert distribution.join(replace(three, address="10.0.0.9"), "a") == (three, one)
