"""Trees, and what travels of them."""

import os
import random
import tarfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from bootstrap.pack import Pack, plan_pack, write_pack
from bootstrap.tree import Base, Tree, TreeFile, make_tree
from bootstrap.tree_packs import TreePacks
from node_dir import NodeDir, start_placer, tree_of
from provision.errors import ClusterError


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeDir]:
    with start_placer() as placer:
        yield NodeDir(home=tmp_path / "home", cache=tmp_path / "cache", placer=placer)


def test_a_digest_names_content_paths_and_modes_and_nothing_else() -> None:
    tree = tree_of({"a": b"1", "b/c": b"2"}, "d")
    assert tree.digest == tree_of({"b/c": b"2", "a": b"1"}, "d").digest
    others = [
        tree_of({"a": b"1", "b/c": b"3"}, "d"),
        tree_of({"a": b"1", "b/d": b"2"}, "d"),
        tree_of({"a": b"1", "b/c": b"2"}, "e"),
        tree_of({"a": b"1", "b/c": b"2"}),
        tree_of({"a": b"1", "b/c": b"2"}, "d", executable=("a",)),
    ]
    assert len({tree.digest, *(other.digest for other in others)}) == 6


def sized(**sizes: int) -> Tree:
    """A tree whose files' names are their contents' names as well."""
    return make_tree(
        TreeFile(path=name, sha256=name, size_bytes=size, mode=0o644, source=b"") for name, size in sizes.items()
    )


@pytest.mark.parametrize(
    ("bases", "chosen", "sent"),
    [
        ({}, None, ["a", "b", "c"]),
        ({"1": "xyz"}, None, ["a", "b", "c"]),
        ({"1": "a", "2": "bc"}, "2", ["a"]),
        ({"1": "abc", "2": "bc"}, "1", []),
        ({"1": "a", "2": "b", "3": "c"}, "3", ["a", "b"]),
        ({"2": "ab", "1": "ab"}, "1", ["c"]),
        ({"1": "e"}, None, ["a", "b", "c"]),
    ],
)
def test_the_base_that_leaves_the_least_to_send(bases: dict[str, str], chosen: str | None, sent: list[str]) -> None:
    known = [Base(digest=digest, entries={}, paths={n: f"p/{n}" for n in names}) for digest, names in bases.items()]
    pack = plan_pack(sized(a=10, b=20, c=40), known)
    assert (pack.base, [file.sha256 for file in pack.contents]) == (chosen, sent)
    assert pack.size_bytes == sum({"a": 10, "b": 20, "c": 40}[name] for name in sent)


def test_only_what_is_new_travels(node: NodeDir) -> None:
    big = random.Random(1).randbytes(1 << 20)
    node.send(tree_of({"a": big, "b": b"1"}))
    pack = node.plan(tree_of({"renamed/a": big, "copy": big, "b": b"2"}))
    assert [file.path for file in pack.contents] == ["b"]
    assert node.accept(pack).size_bytes < 1000


def test_the_same_pack_is_the_same_bytes_and_compressed_where_it_pays(tmp_path: Path) -> None:
    text, noise = tree_of({"a": b"all work and no play\n" * 5000}), tree_of({"a": random.Random(1).randbytes(100_000)})
    packed = [write_pack(plan_pack(tree, ()), tmp_path) for tree in (text, noise)]
    again = [write_pack(plan_pack(tree, ()), tmp_path / "again") for tree in (text, noise)]
    assert [file.sha256 for file in packed] == [file.sha256 for file in again]
    assert [file.name.endswith(".gz") for file in packed] == [True, False]
    assert packed[0].size_bytes < 20_000


def pack_of(path: Path, *, size: int | None = None) -> Pack:
    """A pack of one file, of which `path` had b"abc" when it was looked at."""
    file = tree_of({"x.rec": b"abc"}).files[0]
    file = TreeFile(path=file.path, sha256=file.sha256, size_bytes=size or 3, mode=0o644, source=path)
    return plan_pack(make_tree([file]), ())


@pytest.mark.parametrize(
    ("now", "said"),
    [(b"abd", "its content is another now"), (b"ab", "it is shorter now"), (None, "No such file or directory")],
)
def test_a_file_that_changed_meanwhile_is_not_sent(tmp_path: Path, now: bytes | None, said: str) -> None:
    if now is not None:
        (tmp_path / "x").write_bytes(now)
    with pytest.raises(ClusterError, match=rf"'x\.rec' has changed.*{said}") as caught:
        write_pack(pack_of(tmp_path / "x"), tmp_path / "packs")
    assert caught.value.hint is not None
    assert caught.value.hint.startswith("run the command again")
    assert list(tmp_path.glob("packs/*")) == []


def test_what_is_appended_to_a_file_meanwhile_is_not_sent(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"abcdef")
    with tarfile.open(write_pack(pack_of(tmp_path / "x"), tmp_path / "packs").path) as archive:
        stream = archive.extractfile(pack_of(tmp_path / "x").contents[0].sha256)
        assert stream is not None
        assert stream.read() == b"abc"


def test_a_folder_that_takes_no_packs_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ClusterError, match="could not be packed there: Not a directory"):
        write_pack(plan_pack(tree_of({"a": b"1"}), ()), tmp_path / "file" / "packs")


def test_nodes_that_have_the_same_share_a_pack(node: NodeDir) -> None:
    tree, other = tree_of({"a": b"1" * 1000, "b": b"2"}), tree_of({"c": b"3"})
    old = tree_of({"a": b"1" * 1000})
    with TreePacks([old], cache=node.cache):
        assert not (node.cache / "packs").exists()
    with TreePacks([tree, other], cache=node.cache) as packs:
        with ThreadPoolExecutor(8) as pool:
            asked = list(pool.map(lambda there: packs.pack(tree, there), [(), {old.digest}, {"0" * 64}, ()] * 4))
        assert len({file.path for file, _ in asked}) == len({file.sha256 for file, _ in asked}) == 2
        assert all(task["keep"] == sorted([tree.digest, other.digest]) for _, task in asked)
        assert {file.name.split("-")[2] for file, _ in asked} == {f"{old.digest[:12]}.tar.gz", "whole.tar.gz"}
        assert len(list((node.cache / "packs").iterdir())) == 1
    assert list((node.cache / "packs").iterdir()) == []


def test_packs_of_a_command_that_was_killed_are_removed_later(node: NodeDir) -> None:
    for name, age_s in (("old", 90_000), ("new", 10)):
        (node.cache / "packs" / name).mkdir(parents=True)
        os.utime(node.cache / "packs" / name, (time.time() - age_s,) * 2)
    tree = tree_of({"a": b"1"})
    with TreePacks([tree], cache=node.cache) as packs:
        packs.pack(tree, ())
        assert {path.name for path in (node.cache / "packs").iterdir()} > {"new"}
    assert [path.name for path in (node.cache / "packs").iterdir()] == ["new"]
