"""place_tree.py places trees, in its own process."""

import errno
import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bootstrap.transfer.tree import Tree, write_archive
from node_dir import PROGRAMS, NodeDir, content_of, start_placer, tree_of, wanted_content

NAMES = st.one_of(
    st.sampled_from(["a", "b", "c.py", "$(id)", "it's", 'say "x"', "two\nlines", "-rf", "\\", " ", "é日", "*", "~"]),
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="/\0"), min_size=1, max_size=8),
).filter(lambda name: name not in {".", "..", ".complete"} and len(name.encode()) < 200)
CONTENTS = st.one_of(st.sampled_from([b"", b"same", b"#!/bin/sh\n", b"x" * 70_000]), st.binary(max_size=50))


@st.composite
def trees(draw: st.DrawFn) -> Tree:
    """Trees of files, some of them executable, and of empty folders, without conflicting paths."""
    paths = draw(st.lists(st.lists(NAMES, min_size=1, max_size=3).map(tuple), max_size=8, unique=True))
    above = {path[:count] for path in paths for count in range(1, len(path))}
    leaves = ["/".join(path) for path in paths if path not in above]
    folders = [path for path in leaves if draw(st.integers(0, 4)) == 0]
    files = {path: draw(CONTENTS) for path in leaves if path not in folders}
    return tree_of(files, *folders, executable=tuple(path for path in files if draw(st.booleans())))


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeDir]:
    with start_placer() as placer:
        yield NodeDir(home=tmp_path / "home", cache=tmp_path / "cache", placer=placer)


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(first=trees(), second=trees(), shared=trees())
def test_a_placed_tree_equals_the_sent_tree(node: NodeDir, first: Tree, second: Tree, shared: Tree) -> None:
    """The trees are placed one after the other on the same node."""
    both = tree_of({f"{name}/{file.path}": file.source for name in ("x", "y") for file in shared.files})  # type: ignore[misc]
    for tree in (first, second, shared, both):
        assert node.send(tree, keep=tuple(node.trees())) == {}
        assert content_of(node.path(tree)) == wanted_content(tree)
        assert {path.name for path in (node.home / "tree").iterdir()} == node.trees()


def refuse(node: NodeDir, data: bytes) -> None:
    node.home.mkdir(exist_ok=True)
    (node.home / "archive").write_bytes(data)
    answer = node.placer.place(node.home, {"folder": "tree", "digest": "0" * 64, "archive": "archive", "keep": []})
    assert answer["errno"] == errno.EIO, answer
    assert list((node.home / "tree").iterdir()) == []


def test_a_damaged_archive_leaves_nothing(node: NodeDir, tmp_path: Path) -> None:
    data = write_archive(tree_of({"a": random.Random(1).randbytes(30_000), "b": b"1"}), tmp_path).path.read_bytes()
    refuse(node, data[: len(data) // 2])
    refuse(node, b"no archive")


CRASHING = """
import json, os, sys
sys.path.insert(0, sys.argv[1])
import place_tree
home, orders, wanted = sys.argv[2], json.loads(sys.argv[3]), json.loads(sys.argv[4])

def crash_after(count):
    left = [count]
    def counted(call):
        def wrapper(*args, **more):
            left[0] -= 1
            if left[0] < 0:
                os.kill(os.getpid(), 9)
            return call(*args, **more)
        return wrapper
    for name in ("open", "mkdir", "rename", "unlink", "rmdir", "fsync", "fchmod", "close", "listdir"):
        setattr(os, name, counted(getattr(os, name)))

def place_all(count):
    child = os.fork()
    if child == 0:
        if count is not None:
            crash_after(count)
        for order in orders:
            place_tree.place(home, order)
        os._exit(0)
    return os.waitpid(child, 0)[1]

def state(digest):
    found = {}
    for folder, _, names in os.walk(os.path.join(home, "tree", digest)):
        for name in names:
            with open(os.path.join(folder, name)) as stream:
                found[os.path.relpath(os.path.join(folder, name), os.path.join(home, "tree", digest))] = stream.read()
    return found

count = 0
while True:
    for order in orders[1:]:
        place_tree.shutil.rmtree(os.path.join(home, "tree", order["digest"]), ignore_errors=True)
    status = place_all(count)
    for order in orders:  # what counts as complete is complete
        found = state(order["digest"])
        assert ".complete" not in found or found == wanted[order["digest"]], (count, found)
    assert place_all(None) == 0, count
    for order in orders:
        assert state(order["digest"]) == wanted[order["digest"]], count
    names = [name for name in os.listdir(os.path.join(home, "tree")) if len(name) != 64]
    assert all(name.endswith(".new") for name in names), count  # the tar of a killed run may still write there
    if status == 0:
        assert names == []
        break
    assert status == 9, status
    count += 1
print(count)
"""


def test_a_run_killed_at_any_step_is_repaired(node: NodeDir) -> None:
    first = tree_of({"a": b"1", "b/c": b"2"}, executable=("a",))
    second = tree_of({"a": b"1", "b/d": b"2", "b/e": b"2", "f": b"3"})
    orders, wanted = [], {}
    for tree in (first, second):
        orders.append(node.accept(tree, keep=[first.digest]))
        assert node.placer.place(node.home, orders[-1]) == {}
        files = {file.path: file.source.decode() for file in tree.files if isinstance(file.source, bytes)}
        wanted[tree.digest] = {".complete": "", **files}
    command = [sys.executable, "-c", CRASHING, str(PROGRAMS), str(node.home), json.dumps(orders), json.dumps(wanted)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert int(result.stdout) > 10


def send_at(node: NodeDir, tree: Tree, second: int, keep: tuple[str, ...] = ()) -> None:
    """Places a tree, and dates it to a time in seconds since 1970."""
    assert node.send(tree, keep=keep) == {}
    os.utime(node.path(tree) / ".complete", (second, second))


def test_old_trees_are_removed_unless_used_or_wanted(node: NodeDir) -> None:
    made = [tree_of({"n": str(index).encode()}) for index in range(9)]
    wanted = (made[0].digest,)
    for index, tree in enumerate(made[:4]):
        send_at(node, tree, index, wanted)
    with (
        subprocess.Popen(["sleep", "600"], cwd=node.path(made[1])) as in_folder,
        subprocess.Popen(["tail", "-f", str(node.path(made[2]) / "n")], stdout=subprocess.DEVNULL) as in_words,
    ):
        for index, tree in enumerate(made[4:], 4):
            send_at(node, tree, index, wanted)
        in_folder.kill()
        in_words.kill()
    assert kept(node, made) == [0, 1, 2, 5, 6, 7, 8]
    node.send(made[8], keep=wanted)
    assert kept(node, made) == [0, 5, 6, 7, 8]
    assert {path.name for path in (node.home / "tree").iterdir()} == node.trees()


def kept(node: NodeDir, made: list[Tree]) -> list[int]:
    return [index for index, tree in enumerate(made) if tree.digest in node.trees()]


def test_archives_are_removed_after_use(node: NodeDir) -> None:
    task = node.accept(tree_of({"a": b"1"}))
    assert node.placer.place(node.home, task) == {}
    assert (node.home / task["archive"]).exists()  # other nodes may still be reading it
    remove = "import sys, json; sys.path.insert(0, sys.argv[1]); import place_tree; "
    remove += "place_tree.remove_archives(sys.argv[2], [{'kind': 'script'}, json.loads(sys.argv[3])])"
    for _ in range(2):
        subprocess.run([sys.executable, "-c", remove, str(PROGRAMS), str(node.home), json.dumps(task)], check=True)
        assert list((node.home / "files").iterdir()) == []
    assert node.placer.place(node.home, task) == {}


def test_abandoned_archives_are_removed_after_a_day(node: NodeDir) -> None:
    forgotten = node.home / node.accept(tree_of({"a": b"1"}))["archive"]
    wheel = node.home / "files" / "0123" / "numpy-1.23-none-any.whl"
    wheel.parent.mkdir()
    wheel.write_bytes(b"")
    for old in (forgotten, wheel):
        os.utime(old, (0, 0))
    task = node.accept(tree_of({"a": b"2"}))
    assert node.placer.place(node.home, task) == {}
    assert not forgotten.parent.exists()
    assert wheel.exists()
    assert (node.home / task["archive"]).exists()
