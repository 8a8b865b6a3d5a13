"""Trees and their archives."""

import os
import tarfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from bootstrap.transfer.tree import Tree, TreeArchives, TreeFile, make_tree, write_archive
from foundation.errors import ClusterError
from node_dir import tree_of


def test_a_digest_covers_content_paths_and_modes() -> None:
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


def tree_with(path: Path) -> Tree:
    """A tree of one file, whose source is `path` and whose recorded content is b"abc"."""
    file = tree_of({"x.rec": b"abc"}).files[0]
    return make_tree([TreeFile(path=file.path, sha256=file.sha256, size_bytes=3, mode=0o644, source=path)])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda path: path.write_bytes(b"abd"), "its content has changed"),
        (lambda path: path.write_bytes(b"ab"), "it is shorter now"),
        (lambda _: None, "No such file or directory"),
        (Path.mkdir, "Is a directory"),
    ],
)
def test_a_changed_file_is_refused(tmp_path: Path, change: Callable[[Path], object], message: str) -> None:
    change(tmp_path / "x")
    with pytest.raises(ClusterError, match=rf"'x\.rec' has changed.*{message}") as caught:
        write_archive(tree_with(tmp_path / "x"), tmp_path)
    assert caught.value.hint.startswith("run the command again")


def test_a_file_that_has_grown_is_sent_as_it_was(tmp_path: Path) -> None:
    """Such as the log of `cluster train > train.log`, in the folder that is sent."""
    (tmp_path / "x").write_bytes(b"abc and more")
    with tarfile.open(write_archive(tree_with(tmp_path / "x"), tmp_path).path) as archive:
        sent = archive.extractfile("x.rec")
        assert sent is not None
        assert sent.read() == b"abc"


QUEUED = 10
"""Jobs that wait in the queue, each with other files: on other nodes than the head, no process uses these yet."""


def test_archives_are_shared_and_removed_at_the_end(tmp_path: Path) -> None:
    tree, other = tree_of({"a": b"1"}), tree_of({"c": b"3"})
    folder = tmp_path / "archives"
    for name, age_s in (("of one that was killed", 90_000), ("of another command", 10)):
        (folder / name).mkdir(parents=True)
        os.utime(folder / name, (time.time() - age_s,) * 2)
    (folder / "of one that has just ended").symlink_to("nowhere")
    with TreeArchives([tree, other], cache=tmp_path) as archives:
        with ThreadPoolExecutor(8) as pool:
            asked = list(pool.map(archives.write, [tree, other] * 4))
        assert len({file.path for file, _ in asked}) == len({file.sha256 for file, _ in asked}) == 2
        assert all(task["keep"] == sorted([tree.digest, other.digest]) for _, task in asked)
        assert all(task["newest"] >= QUEUED for _, task in asked)
        assert len(list(folder.iterdir())) == 3
    assert sorted(path.name for path in folder.iterdir()) == ["of another command", "of one that has just ended"]
