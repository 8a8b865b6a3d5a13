"""Where nodes have their files from: real agents, a package index over HTTP, moto's S3, and this machine."""

import random
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent_steps import LocalNode, Nodes, until
from bootstrap.config import Distribute, Fetch
from bootstrap.distribute import Distribution
from bootstrap.shelf import BundleFile, describe_file
from bootstrap.sources import Sources
from cluster.config import parse_config
from index_server import Index, make_wheel, serve_index
from provision.errors import AwsError, ClusterError, ConfigError, ConnectError, NotFoundError
from provision.progress import Event, silent
from s3_server import REGION, S3Server, serve_s3_alone
from train.s3.store import S3Store, find_etag
from train.s3.transfer import PART_BYTES

SIZE = 9_000_000  # two parts for S3, three ranges for nodes
SLACK = 500_000
SIGNED = "X-Amz-Signature"


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


@pytest.fixture(scope="module")
def running_s3() -> Iterator[S3Server]:
    with serve_s3_alone() as server:
        yield server


@pytest.fixture
def s3(running_s3: S3Server) -> Iterator[S3Server]:
    running_s3.put("wheels", {})
    yield running_s3
    running_s3.reset()


@pytest.fixture
def own(folder: Path) -> BundleFile:
    """A file that lies here, and nowhere else."""
    return describe_file(folder / "own.bin")


@pytest.fixture
def wheel(folder: Path, index: Index, tmp_path: Path) -> BundleFile:
    """A wheel that is in the index, and not here."""
    described = describe_file(folder / "thing-1.0-py3-none-any.whl")
    path = tmp_path / "cache" / described.name
    return replace(described, path=path, urls=(f"{index.url}/files/{described.name}",))


def make_nodes(
    root: Path, count: int, *, distribute: Distribute = "chain", fetch: Fetch = "auto", store: S3Store | None = None
) -> tuple[Nodes, list[Event]]:
    nodes = Nodes(root, count)
    events: list[Event] = []
    sources = Sources(report=events.append, distribute=distribute, fetch=fetch, store=store)
    nodes.distribution = Distribution(report=silent, sources=sources)
    return nodes, events


def asked_bytes(index: Index) -> int:
    """What nodes have asked the index for, but for their probes; what this machine asks for has no range."""
    total = 0
    for wanted in index.asked_for(".whl"):
        first, _, last = wanted.removeprefix("bytes=").partition("-")
        count = int(last) - int(first) + 1 if first else SIZE
        total += count if count > 1 else 0
    return total


def assert_all_have(nodes: list[LocalNode], *files: BundleFile) -> None:
    assert all(node.has(file) for node in nodes for file in files)


@pytest.mark.parametrize("fetch", ["auto", "head"])
def test_the_first_node_takes_wheels_from_the_index(
    tmp_path: Path, index: Index, wheel: BundleFile, own: BundleFile, fetch: Fetch
) -> None:
    nodes, events = make_nodes(tmp_path, 3, fetch=fetch)
    with nodes:
        nodes.start(*nodes.all, files=(wheel, own))
        assert nodes.join() == {}
        assert_all_have(nodes.all, wheel, own)
        assert nodes.uploaded_bytes() < SLACK
    assert asked_bytes(index) == wheel.size_bytes
    assert not wheel.path.exists()
    assert events == []


def test_what_is_here_already_is_uploaded(tmp_path: Path, index: Index, wheel: BundleFile, folder: Path) -> None:
    wheel.path.parent.mkdir()
    wheel.path.write_bytes((folder / wheel.name).read_bytes())
    nodes, _ = make_nodes(tmp_path, 2)
    with nodes:
        nodes.start(*nodes.all, files=(wheel,))
        assert nodes.join() == {}
        assert_all_have(nodes.all, wheel)
        assert SIZE < nodes.uploaded_bytes() < SIZE + SLACK
    assert index.asked == []


def test_nodes_without_a_way_out_get_wheels_through_this_machine(
    tmp_path: Path, index: Index, wheel: BundleFile, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the nodes the index is silent: it takes longer than they wait, and this machine waits for it."""
    monkeypatch.setattr("bootstrap.sources.PROBE_S", 0.2)
    index.delay_s = 0.6
    other = describe_file(make_wheel(folder, "other-1.0-py3-none-any.whl", {"x": b"x"}))
    other = replace(other, path=tmp_path / "cache2" / other.name, urls=(f"{index.url}/files/{other.name}",))
    nodes, events = make_nodes(tmp_path, 3)
    with nodes:
        nodes.start(*nodes.all, files=(wheel, other))
        assert nodes.join() == {}
        assert_all_have(nodes.all, wheel, other)
        assert SIZE < nodes.uploaded_bytes() < SIZE + SLACK
    assert [event.kind for event in events] == ["info", "start", "done", "start", "done"]
    assert "no answer in 0.2 s" in events[0].what or "timed out" in events[0].what
    assert len(index.asked_for("other-1.0-py3-none-any.whl")) == 1  # it is not tried again in vain


def test_what_the_index_gives_a_node_is_damaged(
    tmp_path: Path, index: Index, wheel: BundleFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node says so; what this machine is given is damaged as well."""
    monkeypatch.setattr("bootstrap.index.FIRST_PAUSE_S", 0.01)
    index.flip = True
    nodes, events = make_nodes(tmp_path, 1)
    with nodes:
        nodes.start(*nodes.all, files=(wheel,))
        (error,) = nodes.join().values()
    assert isinstance(error, ClusterError)
    assert "could not be fetched" in error.message
    assert "its SHA-256 is not" in events[0].what
    assert not wheel.path.exists()


def test_a_first_node_that_dies_on_the_way_is_taken_over_from(
    tmp_path: Path, index: Index, wheel: BundleFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The index answers nobody before it is dead."""
    is_dead, find_file = threading.Event(), index.find_file

    def wait_and_find(path: str) -> bytes | None:
        is_dead.wait()
        return find_file(path)

    monkeypatch.setattr(index, "find_file", wait_and_find)
    nodes, _ = make_nodes(tmp_path, 3, fetch="head")
    with nodes:
        nodes.start(*nodes.all, files=(wheel,))
        until(lambda: index.asked_for(".whl"), "nobody asks for it")
        nodes.all[0].agent.process.kill()
        nodes.all[0].agent.process.wait()
        is_dead.set()
        errors = nodes.join()
        assert list(errors) == ["node-0"]
        assert isinstance(errors["node-0"], ConnectError)
        assert_all_have(nodes.all[1:], wheel)
        assert nodes.uploaded_bytes() < SLACK


def test_each_node_takes_wheels_from_the_index(
    tmp_path: Path, index: Index, wheel: BundleFile, own: BundleFile
) -> None:
    nodes, _ = make_nodes(tmp_path, 3, distribute="pypi")
    with nodes:
        nodes.start(*nodes.all, files=(own, wheel))
        assert nodes.join() == {}
        assert_all_have(nodes.all, wheel, own)
        assert nodes.uploaded_bytes() < SLACK
    assert asked_bytes(index) == 3 * wheel.size_bytes


@pytest.mark.parametrize(
    ("options", "key"),
    [({"distribute": "pypi"}, 'distribute = "pypi"'), ({"fetch": "head"}, 'fetch = "head"')],
)
def test_an_index_that_nodes_cannot_use(
    tmp_path: Path, index: Index, wheel: BundleFile, options: dict[str, Any], key: str
) -> None:
    index.refusal = (403, b"")
    nodes, _ = make_nodes(tmp_path, 1, **options)
    with nodes:
        nodes.start(*nodes.all, files=(wheel,))
        (error,) = nodes.join().values()
    assert isinstance(error, ClusterError)
    assert error.message.startswith(f"node-0: [bootstrap] {key}, and {wheel.name} could not be taken from there: ")
    assert "HTTP 403" in error.message
    assert error.hint is not None
    assert error.hint.startswith("set [bootstrap] ")


def make_store(url: str = "s3://wheels/some/folder") -> S3Store:
    return S3Store(url, region=REGION, report=silent)


def test_wheels_are_put_into_s3_once_and_each_node_takes_them_from_there(
    tmp_path: Path, index: Index, wheel: BundleFile, own: BundleFile, s3: S3Server
) -> None:
    modified = set()
    for run in range(2):
        nodes, _ = make_nodes(tmp_path / str(run), 2, distribute="s3", store=make_store())
        with nodes:
            nodes.start(*nodes.all, files=(wheel, own))
            assert nodes.join() == {}
            assert_all_have(nodes.all, wheel, own)
            assert nodes.uploaded_bytes() < SLACK
        assert len(index.asked) == 1  # by this machine
        (item,) = s3.client.list_objects_v2(Bucket="wheels")["Contents"]
        assert item["Key"] == f"some/folder/{wheel.sha256}/{wheel.name}"
        assert item["ETag"] == f'"{find_etag(wheel.path)}"'
        modified.add(item["LastModified"])
        time.sleep(1)  # S3 tells whole seconds
    assert len(modified) == 1
    assert s3.unfinished("wheels") == []


def test_what_is_there_needs_not_be_here(tmp_path: Path, wheel: BundleFile, s3: S3Server, folder: Path) -> None:
    key = f"{wheel.sha256}/{wheel.name}"
    s3.client.upload_file(str(folder / wheel.name), "wheels", key)

    def find_path(_file: BundleFile) -> Path:
        raise AssertionError

    shared = make_store("s3://wheels").share([wheel], find_path)
    assert SIGNED in shared[wheel.sha256]


@pytest.mark.parametrize("damage", ["cut", "changed"])
def test_what_is_damaged_there_is_put_again(wheel: BundleFile, s3: S3Server, folder: Path, damage: str) -> None:
    here = replace(wheel, path=folder / wheel.name)
    data = here.path.read_bytes()
    damaged = data[:-1] if damage == "cut" else data[:-1] + b"?"
    key = f"some/folder/{wheel.sha256}/{wheel.name}"
    s3.client.put_object(Bucket="wheels", Key=key, Body=damaged)
    make_store().share([here], lambda file: file.path)
    assert s3.read("wheels") == {key: data}


def test_what_is_damaged_there_and_not_here_is_told(tmp_path: Path, wheel: BundleFile, s3: S3Server) -> None:
    key = f"some/folder/{wheel.sha256}/{wheel.name}"
    s3.client.put_object(Bucket="wheels", Key=key, Body=b"?" * wheel.size_bytes)
    nodes, _ = make_nodes(tmp_path, 1, distribute="s3", store=make_store())
    with nodes:
        nodes.start(*nodes.all, files=(wheel,))
        (error,) = nodes.join().values()
    assert isinstance(error, ClusterError)
    assert f"could not be taken from s3://wheels/{key}" in error.message
    assert "its SHA-256 is not" in error.message
    assert SIGNED not in error.message
    assert error.hint is not None
    assert f"cluster data rm s3://wheels/{key}" in error.hint


def test_a_bucket_that_is_not_there(wheel: BundleFile, s3: S3Server) -> None:
    with pytest.raises(NotFoundError, match="bucket nowhere does not exist"):
        make_store("s3://nowhere/x/").share([wheel], lambda file: file.path)


def test_a_caller_who_may_not(wheel: BundleFile, s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    with s3.caller_who_may("s3:ListAllMyBuckets") as (key_id, secret):
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", key_id)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret)
        with pytest.raises(AwsError, match="s3:ListBucket is needed"):
            make_store().share([wheel], lambda file: file.path)


@pytest.mark.parametrize("size", [0, 1, PART_BYTES, PART_BYTES + 1, 2 * PART_BYTES])
def test_find_etag(tmp_path: Path, s3: S3Server, size: int) -> None:
    path = tmp_path / "some.whl"
    path.write_bytes(random.Random(size).randbytes(size))
    file = BundleFile(path=path, sha256="0" * 64, size_bytes=size)
    make_store().share([file], lambda file: file.path)
    (item,) = s3.client.list_objects_v2(Bucket="wheels")["Contents"]
    assert item["ETag"] == f'"{find_etag(path)}"'


def test_the_certificates_of_a_private_authority_go_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_CA_BUNDLE", raising=False)
    assert make_store().authorities is None
    (tmp_path / "ca.pem").write_text("PEM")
    monkeypatch.setenv("AWS_CA_BUNDLE", str(tmp_path / "ca.pem"))
    assert make_store().authorities == "PEM"
    monkeypatch.setenv("AWS_CA_BUNDLE", str(tmp_path / "none.pem"))
    with pytest.raises(ClusterError, match=r"none.pem.*cannot be read"):
        assert make_store().authorities


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"distribute": "s3"}, '[bootstrap] distribute = "s3" needs store = "s3://BUCKET/FOLDER/"'),
        ({"distribute": "ftp"}, 'bootstrap.distribute = "ftp": '),
        ({"fetch": "there"}, 'bootstrap.fetch = "there": '),
        (
            {"store": "https://bucket/x/"},
            'bootstrap.store = "https://bucket/x/": not allowed; allowed: the folder in S3',
        ),
        ({"store": "s3://bucket//x"}, 'bootstrap.store = "s3://bucket//x": a part of it is empty'),
        ({"store": "s3://bucket/../x"}, 'bootstrap.store = "s3://bucket/../x": a part of it is empty, "." or ".."'),
    ],
)
def test_what_cluster_toml_may_not_say(keys: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse_config({"name": "demo", "bootstrap": keys}, source="cluster.toml")
    assert raised.value.message.startswith(f"cluster.toml: {said}")
