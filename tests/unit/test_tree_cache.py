"""What this machine remembers of files and trees, and what it does when that is damaged."""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bootstrap import tree_cache
from bootstrap.sync import find_files, read_found
from bootstrap.tree import Tree
from bootstrap.tree_cache import HashCache, find_bases, remember_tree
from provision.errors import ClusterError
from provision.progress import silent


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for path in ("my/train.py", "my/net/model.py", "my/data/a.rec", "my/data/b.txt"):
        (tmp_path / "project" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "project" / path).write_text(path)
    return tmp_path / "project"


def read(project: Path, *sync: str, exclude: tuple[str, ...] = (), cache: Path | None = None) -> Tree:
    found = find_files(project, sync=sync, exclude=exclude)
    return read_found(found, project_dir=project, cache=cache or project.parent / "cache", report=silent)


def count_reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files that are hashed from now on."""
    reads: list[str] = []
    real = hashlib.file_digest

    def counted(stream: Any, name: str) -> Any:
        reads.append(Path(stream.name).name)
        return real(stream, name)

    monkeypatch.setattr(hashlib, "file_digest", counted)
    return reads


def test_only_new_and_changed_files_are_read(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads = count_reads(monkeypatch)
    tree = read(project, "my")
    assert len(reads) == 4
    reads.clear()
    read(project, "my")
    assert len(reads) == 4  # just made: they could change again within one tick of the clock
    monkeypatch.setattr(tree_cache, "SETTLED_NS", -1)
    read(project, "my")
    reads.clear()
    assert read(project, "my").digest == tree.digest
    assert reads == []
    path = project / "my" / "train.py"
    before = path.stat()
    path.write_text(path.read_text().upper())
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))  # as tar and rsync do
    assert read(project, "my").digest != tree.digest
    assert reads == ["train.py"]


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(path.read_bytes()[:-10]),
        lambda path: path.write_bytes(path.read_bytes().replace(b"0", b"1")),
        lambda path: path.write_bytes(b"[]"),
        lambda path: (path.unlink(), path.mkdir()),
        lambda path: (path.unlink(), path.parent.rmdir(), path.parent.touch()),
    ],
)
def test_a_damaged_cache_is_no_cache(
    project: Path, damage: Callable[[Path], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tree_cache, "SETTLED_NS", -1)
    tree = read(project, "my")
    (path,) = project.parent.glob("cache/hashes/*")
    damage(path)
    assert read(project, "my").digest == tree.digest
    assert not list(project.parent.glob("cache/hashes/.new*"))


def test_a_file_that_is_written_to_while_it_is_read_is_refused(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = hashlib.file_digest

    def slow(stream: Any, name: str) -> Any:
        digest = real(stream, name)
        with open(stream.name, "a") as other:
            other.write("more")
        return digest

    monkeypatch.setattr(hashlib, "file_digest", slow)
    with pytest.raises(ClusterError, match=r"train\.py' is being written to"):
        read(project, "my/train.py")


def test_a_file_that_is_gone_meanwhile_is_named(project: Path) -> None:
    found = find_files(project, sync=("my",), exclude=())
    (project / "my" / "train.py").unlink()
    with pytest.raises(ClusterError, match=r"my/train\.py' cannot be read: No such file"):
        read_found(found, project_dir=project, cache=project.parent, report=silent)


def test_each_folder_has_hashes_of_its_own(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree_cache, "SETTLED_NS", -1)
    read(project, "my")
    status = (project / "my" / "train.py").stat()
    assert HashCache(project.parent / "cache", project).knows("my/train.py", status)
    assert not HashCache(project.parent / "cache", project / "my").knows("my/train.py", status)


def test_manifests_are_remembered_and_damaged_ones_are_not(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = project.parent / "cache"
    trees = [read(project, "my", exclude=exclude) for exclude in ((), ("*.rec",), ("*.py",))]
    for index, tree in enumerate(trees):
        remember_tree(tree, cache=cache)
        os.utime(cache / "trees" / tree.digest, (index, index))
    there = {*(tree.digest for tree in trees), "0" * 64, "x.new"}
    assert {base.digest for base in find_bases(there, cache=cache)} == {tree.digest for tree in trees}
    whole = next(base for base in find_bases(there, cache=cache) if base.digest == trees[0].digest)
    assert set(whole.paths.values()) == {file.path for file in trees[0].files}
    damaged = cache / "trees" / trees[1].digest
    damaged.write_bytes(damaged.read_bytes().replace(b"my", b"our"))
    assert trees[1].digest not in {base.digest for base in find_bases(there, cache=cache)}
    remember_tree(trees[1], cache=cache)
    assert len(find_bases(there, cache=cache)) == 3
    monkeypatch.setattr(tree_cache, "MANIFESTS", 2)
    remember_tree(trees[0], cache=cache)
    damaged.write_bytes(b"")
    remember_tree(trees[1], cache=cache)
    assert {path.name for path in (cache / "trees").iterdir()} == {trees[0].digest, trees[1].digest}
