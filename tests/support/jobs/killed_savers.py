"""Child processes that are killed while they save checkpoints."""

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import training_scripts

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
    """Do the work in a child process that is killed after this many lines; return False if it ended before."""
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
    """Do the work in a child process; return its result. A process that has used obstore cannot be forked."""
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
