"""Finds where a Python program is, with the runtime's py-spy, which does not interrupt it."""

import os
import re
import sys
from collections.abc import Iterable, Sequence

from msgspec import Struct

from foundation.decode import decode
from node.children import run

TIMEOUT_S = 3.0
MOST_TRIED = 3  # of a process's own processes: the first may be a shell
LIBRARY = re.compile(r"/(site|dist)-packages/|/lib/python3|^<frozen")


class Frame(Struct):
    """A frame of a stack, as `py-spy dump --json` prints it."""

    name: str
    filename: str
    line: int
    short_filename: str | None = None


class Thread(Struct):
    """A thread. frames: the innermost one first."""

    frames: tuple[Frame, ...] = ()
    os_thread_id: int | None = None


async def find_place(pids: Iterable[int]) -> str:
    """Returns where the first of these processes that is a Python program is, as describe_place; "" if none is."""
    for pid in sorted(pids)[:MOST_TRIED]:
        place = await _find(pid)
        if place:
            return place
    return ""


async def _find(pid: int) -> str:
    py_spy = os.path.join(os.path.dirname(sys.executable), "py-spy")
    words = [py_spy, "dump", "--nonblocking", "--json", "--pid", str(pid)]
    try:
        ended = await run(words, TIMEOUT_S)
        if b"ermission" in ended.stderr:  # where the kernel allows only root to read another process, as Ubuntu's
            ended = await run(["sudo", "-n", *words], TIMEOUT_S)
        threads = decode(ended.stdout, tuple[Thread, ...])
    except (OSError, ValueError):  # ValueError: not a Python program
        return ""
    main = next((one for one in threads if one.os_thread_id == pid), threads[0] if threads else Thread())
    return describe_place(main.frames)


def describe_place(frames: Sequence[Frame]) -> str:
    """Describes where the main thread is: "train.py:11 (barrier)": the program's own line, and what it calls. Pure.

    Returns "" without frames. frames: the innermost one first.
    """
    if not frames:
        return ""
    if all(frame.name != "<module>" for frame in frames):  # Python ends
        return f"the end of the program ({frames[0].name})"
    at = next((frame for frame in frames if not LIBRARY.search(frame.filename)), frames[0])
    called = "" if at is frames[0] else f" ({frames[0].name})"
    name = "".join(letter if letter.isprintable() else "?" for letter in at.short_filename or at.filename)
    return f"{name}:{at.line}{called}"
