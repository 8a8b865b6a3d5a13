"""Checkpoints are complete or absent, wherever the process that writes them is killed."""

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

from killed_savers import save_and_kill


@pytest.mark.parametrize(
    ("where", "stride"),
    [
        ("folder", 23),
        pytest.param("folder", 1, marks=pytest.mark.slow),
        pytest.param("bucket", 23, marks=pytest.mark.slow),
    ],
)
def test_killed_at_any_line(tmp_path: Path, where: str, stride: int, request: pytest.FixtureRequest) -> None:
    """Epochs 1 and 2 exist. The process writes epoch 2 again, and then removes all but the newest."""
    if where == "bucket":
        request.getfixturevalue("server")
    # In a new process, because this one has perhaps used obstore in another test.
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        seen = pool.submit(save_and_kill, where, stride, tmp_path).result()
    assert seen == {(2, "first"), (1, "first"), (2, "second")}
