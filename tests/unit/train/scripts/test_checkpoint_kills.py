"""Checkpoints are complete or absent, wherever the process that writes them is killed."""

import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

import pytest

import training_scripts
from training_scripts import check, opened, save

NODE_CODE = ("checkpoints.py", "s3.py", Path(training_scripts.__file__).name)


def kill_after(lines: int) -> Callable[[FrameType, str, Any], Any]:
    """A trace function that kills this process with SIGKILL after this many lines of the code that saves."""
    left = lines

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal left
        if Path(frame.f_code.co_filename).name not in NODE_CODE:
            return None
        if event == "line":
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return trace

    return trace


def killed_while(work: Callable[[], None], lines: int) -> bool:
    """Do the work in a child process that is killed after this many lines; False if it ended before."""
    child = os.fork()
    if child == 0:
        sys.settrace(kill_after(lines))
        try:
            work()
        finally:
            sys.settrace(None)
            os._exit(0)
    return os.WIFSIGNALED(os.waitpid(child, 0)[1])


def in_child(work: Callable[[], object]) -> Any:
    """What the work returns, in a child process: a process that has used obstore cannot be forked."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writing, json.dumps(work()).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        answer = pipe.read()
    os.waitpid(child, 0)
    return json.loads(answer)


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
    """Epochs 1 and 2 exist; the process writes 2 again, and then removes all but the newest."""
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
            # Half-written files do no harm.
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
