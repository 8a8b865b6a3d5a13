"""A node's disk that is full while a tree is put in place. A real one, and small: a tmpfs."""

import errno
import random
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from node_dir import NodeDir, content_of, start_placer, tree_of, wanted_content

pytestmark = pytest.mark.sandbox


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeDir]:
    home = tmp_path / "home"
    home.mkdir()
    subprocess.run(("mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(home)), check=True)
    try:
        with start_placer() as placer:
            yield NodeDir(home=home, cache=tmp_path / "cache", placer=placer)
    finally:
        subprocess.run(("umount", str(home)), check=True)


def test_nothing_half_made_is_left_and_with_room_it_goes_on(node: NodeDir) -> None:
    data = random.Random(1).randbytes(1 << 20)
    first = tree_of({"a": data})
    assert node.send(first) == {}
    other = node.home / "other"
    other.write_bytes(bytes(1 << 20))
    second = tree_of({"a": data, "b": b"1" * 900_000})  # its pack is small: the disk is full when it is unpacked
    answer = node.send(second)
    assert answer["errno"] == errno.ENOSPC
    assert second.digest in answer["said"]
    assert [path.name for path in (node.home / "tree").iterdir()] == [first.digest]
    other.unlink()
    assert node.send(second) == {}
    assert content_of(node.path(second)) == wanted_content(second)
