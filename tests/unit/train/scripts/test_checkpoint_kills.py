"""Checkpoints are complete or absent, wherever the process that writes them is killed."""

import os
import shutil
from pathlib import Path
from types import ModuleType

import pytest

from killed_savers import in_child, killed_while
from training_scripts import check, opened, save


@pytest.mark.parametrize(
    ("where", "stride"),
    [
        ("folder", 23),
        pytest.param("folder", 1, marks=pytest.mark.slow),
        pytest.param("bucket", 23, marks=pytest.mark.slow),
    ],
)
def test_killed_at_any_line(
    checkpoints: ModuleType, tmp_path: Path, where: str, stride: int, request: pytest.FixtureRequest
) -> None:
    """Epochs 1 and 2 exist. The process writes epoch 2 again, and then removes all but the newest."""
    if where == "bucket":
        request.getfixturevalue("server")
    # Opening a bucket creates a temporary folder there, which a killed process leaves behind.
    os.environ["CLUSTER_OUTPUT_DIR"] = str(tmp_path)
    lines, seen = 0, set()
    try:
        while True:
            name = f"s3://models/killed-{lines}/net" if where == "bucket" else str(tmp_path / f"at-{lines}" / "net")

            def begin(name: str = name) -> None:
                save(checkpoints, opened(checkpoints, name), 1)
                save(checkpoints, opened(checkpoints, name), 2)

            def work(name: str = name) -> None:
                place = opened(checkpoints, name)
                save(checkpoints, place, 2, "second")
                checkpoints.prune(place, 1)

            def look(name: str = name) -> tuple[int, str]:
                return check(checkpoints.find_newest(opened(checkpoints, name, to_write=False)))

            def go_on(name: str = name) -> None:
                save(checkpoints, opened(checkpoints, name), 3)

            in_child(begin)
            killed = killed_while(work, lines)
            found = tuple(in_child(look))
            assert found in {(2, "first"), (1, "first"), (2, "second")}, lines
            seen.add(found)
            # Half-written files cause no error.
            in_child(go_on)
            assert in_child(look)[0] == 3
            if where == "folder":
                assert not [path for path in Path(name).parent.iterdir() if path.name.startswith(".")]
                shutil.rmtree(Path(name).parent)
            if not killed:
                break
            lines += stride
    finally:
        del os.environ["CLUSTER_OUTPUT_DIR"]
    assert seen == {(2, "first"), (1, "first"), (2, "second")}
