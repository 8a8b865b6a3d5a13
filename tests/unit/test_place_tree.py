"""What place_tree.py, in a process of its own, makes of what arrives."""

import errno
import io
import json
import os
import random
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bootstrap.pack import plan_pack, write_pack
from bootstrap.tree import Tree
from node_dir import PROGRAMS, NodeDir, content_of, start_placer, tree_of, wanted_content

NAMES = st.one_of(
    st.sampled_from(["a", "b", "c.py", "$(id)", "it's", 'say "x"', "two\nlines", "-rf", "\\", " ", "é日", "*", "~"]),
    st.text(st.characters(exclude_categories=("Cs",), exclude_characters="/\0"), min_size=1, max_size=8),
).filter(lambda name: name not in {".", "..", ".complete"} and len(name.encode()) < 200)
CONTENTS = st.one_of(st.sampled_from([b"", b"same", b"#!/bin/sh\n", b"x" * 70_000]), st.binary(max_size=50))


@st.composite
def trees(draw: st.DrawFn) -> Tree:
    """Files, some executable, and empty folders, where no file stands in the way of another."""
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


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(first=trees(), second=trees(), shared=trees())
def test_what_is_placed_is_what_was_sent(node: NodeDir, first: Tree, second: Tree, shared: Tree) -> None:
    """One after the other on the same node, each from what is there."""
    both = tree_of({f"{name}/{file.path}": file.source for name in ("x", "y") for file in shared.files})  # type: ignore[misc]
    for tree in (first, second, shared, both):
        assert node.send(tree, keep=tuple(node.trees())) == {}
        assert content_of(node.path(tree)) == wanted_content(tree)
        assert {path.name for path in (node.home / "tree").iterdir()} == node.trees()


def write_over(path: Path) -> None:
    path.write_bytes(b"B" * path.stat().st_size)


def make_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def make_link(path: Path) -> None:
    path.unlink()
    path.symlink_to("/etc/passwd")


def make_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("where", ["big", ".complete"])
@pytest.mark.parametrize("tamper", [write_over, Path.unlink, make_fifo, make_link, make_folder])
def test_a_base_that_a_job_has_changed_is_not_trusted(
    node: NodeDir, tamper: Callable[[Path], None], where: str
) -> None:
    first, second = tree_of({"big": b"b" * 1000}), tree_of({"big": b"b" * 1000, "new": b"1"})
    node.send(first)
    order = node.order(second)
    tamper(node.path(first) / where)
    answer = node.placer.place(node.home, order)
    assert answer["base_changed"] == first.digest
    assert where in answer["said"]
    assert not node.path(second).exists()
    assert node.send(second, whole=True) == {}
    assert content_of(node.path(second)) == wanted_content(second)


def handmade(delta: object, **contents: bytes) -> bytes:
    """A pack's bytes."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, data in {"delta": json.dumps(delta).encode(), **contents}.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return buffer.getvalue()


A = tree_of({"a": b"a"}).files[0].sha256


def delta_of(*files: tuple[str, str, int, int], **more: object) -> dict[str, object]:
    return {"base": None, "removed": [], "files": files, "folders": [], **more}


@pytest.mark.parametrize(
    ("delta", "contents"),
    [
        *[
            (delta_of((path, A, 0o644, 1)), {A: b"a"})
            for path in ("/tmp/escaped", "../escaped", "x/../../escaped", "", "x//y", "./x", ".complete", "x\0y", "x/")
        ],
        (delta_of(folders=["../escaped"]), {}),
        (delta_of(("x", A, 0o4755, 1)), {A: b"a"}),
        (delta_of(("x", A, 0o644, 1)), {A: b"b"}),
        (delta_of(("x", A, 0o644, 1)), {}),
        (delta_of(), {A: b"a"}),
        (delta_of(base="../.."), {}),
        (delta_of(removed=["x"]), {}),
        (["no delta"], {}),
        ({}, {}),
    ],
)
def test_a_pack_that_is_wrong_leaves_nothing(node: NodeDir, delta: object, contents: dict[str, bytes]) -> None:
    manifest = b""
    if isinstance(delta, dict) and delta:
        manifest = json.dumps({key: delta[key] for key in ("files", "folders")}, separators=(",", ":")).encode()
    refuse(node, handmade(delta, **contents), manifest)
    assert [path.name for path in node.home.parent.iterdir()] == ["home"]
    assert not Path("/tmp/escaped").exists()


def test_a_pack_of_another_tree_is_refused(node: NodeDir) -> None:
    refuse(node, write_pack(plan_pack(tree_of({"a": b"a"}), ()), node.cache).path.read_bytes(), b"another")


def refuse(node: NodeDir, data: bytes, manifest: bytes) -> None:
    from hashlib import sha256  # noqa: PLC0415

    node.home.mkdir(exist_ok=True)
    (node.home / "pack").write_bytes(data)
    order = {"kind": "tree", "digest": sha256(manifest).hexdigest(), "pack": "pack", "keep": []}
    answer = node.placer.place(node.home, order)
    assert answer["errno"] == errno.EBADMSG, answer
    assert list((node.home / "tree").iterdir()) == []


@pytest.mark.parametrize("compressible", [True, False])
def test_a_damaged_pack_leaves_nothing(node: NodeDir, compressible: bool) -> None:  # noqa: FBT001
    noise = random.Random(1).randbytes(30_000)
    tree = tree_of({"a": noise[:9000].hex().encode() if compressible else noise, "b": b"1"})
    data = write_pack(plan_pack(tree, ()), node.cache).path.read_bytes()
    for at in range(0, len(data) - 10_240 if not compressible else len(data) - 8, 997):
        refuse(node, data[:at], tree.manifest)
    for at in (1536, 4000, 9000):
        flipped = bytearray(data)
        flipped[at] ^= 4
        refuse(node, bytes(flipped), tree.manifest)
    refuse(node, b"", tree.manifest)


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
    assert all(len(name) == 64 for name in os.listdir(os.path.join(home, "tree"))), count
    if status == 0:
        break
    assert status == 9, status
    count += 1
print(count)
"""


def test_killed_at_every_step_the_next_run_makes_good(node: NodeDir) -> None:
    first = tree_of({"a": b"1", "b/c": b"2"}, executable=("a",))
    second = tree_of({"a": b"1", "b/d": b"2", "b/e": b"2", "f": b"3"})
    orders, wanted = [], {}
    for tree in (first, second):
        pack = node.plan(tree)
        assert (pack.base is None) == (tree is first)
        orders.append(pack.order(node.accept(pack), keep=[first.digest]))
        assert node.placer.place(node.home, orders[-1]) == {}
        files = {file.path: file.source.decode() for file in tree.files if isinstance(file.source, bytes)}
        wanted[tree.digest] = {".complete": tree.manifest.decode(), **files}
    command = [sys.executable, "-c", CRASHING, str(PROGRAMS), str(node.home), json.dumps(orders), json.dumps(wanted)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert int(result.stdout) > 30


def send_at(node: NodeDir, tree: Tree, second: int, keep: tuple[str, ...] = ()) -> None:
    """Place a tree, as if so many seconds after 1970."""
    assert node.send(tree, keep=keep) == {}
    for path in node.path(tree).rglob("*"):
        os.utime(path, (second, second))


def test_old_trees_go_but_not_those_in_use_or_wanted(node: NodeDir) -> None:
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


@pytest.mark.parametrize(
    ("write", "stays"),
    [
        (Path.exists, False),
        (lambda tree: (tree / "__pycache__").mkdir(), False),
        (lambda tree: [(tree / "__pycache__").mkdir(), (tree / "__pycache__" / "n.pyc").touch()], False),
        (lambda tree: (tree / "model.params").touch(), True),
        (lambda tree: (tree / "logs" / "1.txt").touch(), True),
        (lambda tree: (tree / "n").write_text("changed"), True),
        (lambda tree: (tree / "latest").symlink_to("/tmp"), True),
        (lambda tree: (tree / ".complete").write_text(""), True),
    ],
)
def test_what_a_job_has_written_is_not_removed(node: NodeDir, write: Callable[[Path], None], *, stays: bool) -> None:
    made = [tree_of({"n": str(index).encode()}, "logs") for index in range(6)]
    send_at(node, made[0], 0)
    write(node.path(made[0]))
    for index, tree in enumerate(made[1:], 1):
        send_at(node, tree, index)
    assert (made[0].digest in node.trees()) is stays


def test_a_tree_in_place_needs_no_pack_and_packs_go_when_they_are_not_needed(node: NodeDir) -> None:
    tree = tree_of({"a": b"1"})
    pack = node.plan(tree)
    order = pack.order(node.accept(pack), keep=())
    assert node.placer.place(node.home, order) == {}
    assert (node.home / order["pack"]).exists()  # others may still be taking it from here
    remove = "import sys, json; sys.path.insert(0, sys.argv[1]); import place_tree; "
    remove += "place_tree.remove_packs(sys.argv[2], [{'kind': 'script'}, json.loads(sys.argv[3])])"
    for _ in range(2):
        subprocess.run([sys.executable, "-c", remove, str(PROGRAMS), str(node.home), json.dumps(order)], check=True)
        assert list((node.home / "files").iterdir()) == []
    assert node.placer.place(node.home, order) == {}


def test_forgotten_packs_go_after_a_day(node: NodeDir) -> None:
    old, new = (node.plan(tree_of({"a": data})) for data in (b"1", b"2"))
    forgotten = node.home / old.order(node.accept(old), keep=())["pack"]
    os.utime(forgotten, (0, 0))
    wheel = node.home / "files" / A / "numpy-1.23-none-any.whl"
    wheel.parent.mkdir()
    wheel.write_bytes(b"")
    os.utime(wheel, (0, 0))
    order = new.order(node.accept(new), keep=())
    assert node.placer.place(node.home, order) == {}
    assert not forgotten.parent.exists()
    assert wheel.exists()
    assert (node.home / order["pack"]).exists()
