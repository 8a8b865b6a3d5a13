"""place_tree.py places trees, in its own process."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bootstrap.transfer.tree import Tree
from node_dir import PROGRAMS, NodeDir, start_placer, tree_of


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeDir]:
    with start_placer() as placer:
        yield NodeDir(home=tmp_path / "home", cache=tmp_path / "cache", placer=placer)


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
