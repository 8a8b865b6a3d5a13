"""Child processes that are killed while they save checkpoints."""

import itertools
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import training_scripts
from training_scripts import check, opened, save, script_modules

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
    """Does the work in a child process that is killed after this many lines; returns False if it ended before."""
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
    """Does the work in a child process; returns its result. A process that has used obstore cannot be forked."""
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


def save_and_kill(where: str, stride: int, folder: Path) -> set[tuple[int, str]]:
    """Saves a checkpoint in a process that is killed after 0, `stride`, 2 * `stride` ... lines, until one ends itself.

    where: "folder", or "bucket" for the bucket of serve_models. Returns the epochs and runs of the newest checkpoints
    that were found. This process must not have used obstore.
    """
    # Opening a bucket creates a temporary folder there, which a killed process leaves behind.
    os.environ["CLUSTER_OUTPUT_DIR"] = str(folder)
    seen: set[tuple[int, str]] = set()
    with script_modules("common.checkpoints") as (checkpoints,):
        for lines in itertools.count(step=stride):
            name = f"s3://models/killed-{lines}/net" if where == "bucket" else str(folder / f"at-{lines}" / "net")

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
            epoch, run = in_child(look)
            assert (epoch, run) in {(2, "first"), (1, "first"), (2, "second")}, lines
            seen.add((epoch, run))
            # Half-written files cause no error.
            in_child(go_on)
            assert in_child(look)[0] == 3, lines
            if where == "folder":
                drafts = [path.name for path in Path(name).parent.iterdir() if path.name.startswith(".")]
                assert not drafts, lines
                shutil.rmtree(Path(name).parent)
            if not killed:
                break
    return seen
