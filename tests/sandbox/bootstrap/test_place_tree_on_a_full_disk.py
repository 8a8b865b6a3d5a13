"""Placing a tree on a real full disk: a small tmpfs."""

import errno
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


def test_nothing_partial_is_left_and_the_next_run_succeeds(node: NodeDir) -> None:
    first = tree_of({"a": b"0"})
    assert node.send(first) == {}
    second = tree_of({"b": b"1" * 5_000_000})  # its archive is small, so the disk fills up only when it is unpacked
    answer = node.send(second)
    assert answer["errno"] == errno.ENOSPC
    assert second.digest in answer["said"]
    assert [path.name for path in (node.home / "tree").iterdir()] == [first.digest]
    subprocess.run(("mount", "-o", "remount,size=8m", str(node.home)), check=True)
    assert node.send(second) == {}
    assert content_of(node.path(second)) == wanted_content(second)
