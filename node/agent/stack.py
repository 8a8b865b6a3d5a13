"""Finds where Python programs are, with the runtime's py-spy.

It reads their memory, which does not stop them. native: with the frames of C, for which it stops them for about 0.1 s.

The kernel may let only root read another program (ptrace_scope 1, as Ubuntu's does). A process of a job names the agent
as an exception (process_tree.start); for the programs that it has started, and in containers, `sudo -n` is tried.
"""

import os
import sys
from collections.abc import Sequence

from msgspec.structs import replace

from foundation.decode import decode
from node.children import run
from node.job.stacks import NOT_PYTHON, Location, Program, Thread, find_location
from node.setup import process_tree

TIMEOUT_S = 3.0
TRIES = 3  # a stack that changes while it is read may make no sense
MOST_TRIED = 3  # of a process's own processes, for its place: the first may be a shell
MOST_PROGRAMS, MOST_FRAMES = 16, 2000
LONGEST_WORDS = 200
SCOPE = "sys/kernel/yama/ptrace_scope"
NO_PYTHON = "Failed to find python version"  # py-spy's message


async def take(found: Sequence[process_tree.Process], *, native: bool = False, whole: bool = False) -> Location:
    """The place of the first of these processes that is a Python program, or why that is unknown.

    whole: with the stacks of all of them. native: with the frames of C of the first one.
    """
    location, programs = Location(why=NOT_PYTHON), list[Program]()
    for pid, _, words in sorted(found)[: None if whole else MOST_TRIED]:
        threads, reason = await _dump(pid, native=native and not programs)
        if threads:
            location = location if programs else _location_of(pid, threads)
            programs.append(Program(pid=pid, words=words[:LONGEST_WORDS], threads=threads))
        elif reason and not programs:
            location = Location(why=reason)
        frames = sum(len(thread.frames) for program in programs for thread in program.threads)
        if len(programs) == (MOST_PROGRAMS if whole else 1) or frames > MOST_FRAMES:
            break  # a message is limited
    return replace(location, programs=tuple(programs)) if whole else location


def _location_of(pid: int, threads: Sequence[Thread]) -> Location:
    """The place of the main thread."""
    location = find_location(next((one for one in threads if one.os_thread_id == pid), threads[0]).frames)
    fields = process_tree.stat(pid)
    if not location.text or fields is None or fields[0] != b"T":
        return location
    at, call, called = location.text.partition(" (")
    return replace(location, text=f"{at}, stopped by a signal{call}{called}", waits=False)


async def _dump(pid: int, *, native: bool = False) -> tuple[tuple[Thread, ...], str]:
    """Returns the threads of a Python program, or why they are unknown; ((), "") if it is none, or has ended."""
    py_spy = os.path.join(os.path.dirname(sys.executable), "py-spy")
    words = [py_spy, "dump", "--native" if native else "--nonblocking", "--json", "--pid", str(pid)]
    message = ""
    for _ in range(TRIES):
        try:
            ended = await run(words, TIMEOUT_S)
            if b"ermission" in ended.stderr and words[0] == py_spy:
                words = ["sudo", "-n", *words]
                ended = await run(words, TIMEOUT_S)
            message = _first_line(ended.stderr)
            return _cut(decode(ended.stdout, tuple[Thread, ...])), ""
        except OSError as error:
            return (), explain_refusal(str(error)) if words[0] == "sudo" else f"cannot run py-spy: {error}"
        except ValueError:
            if NO_PYTHON in message or process_tree.start_time(pid) is None:
                return (), ""
            if ended.code is None:
                return (), f"py-spy did not answer within {TIMEOUT_S:.0f} s"
            if message.startswith("sudo:"):
                return (), explain_refusal(message)
    return (), message or "py-spy printed no stack"


def explain_refusal(message: str) -> str:
    """Why a stack cannot be read: not by the agent, nor by sudo -n, which said this."""
    scope = process_tree.read("", SCOPE).decode().strip()
    rule = f"kernel.yama.ptrace_scope is {scope}" if scope and scope != "0" else "it belongs to another user"
    return f"only root may read its memory ({rule}), and sudo -n failed: {message}"


def _first_line(data: bytes) -> str:
    return data.decode("utf-8", "replace").strip().partition("\n")[0].removeprefix("Error: ")


def _cut(threads: Sequence[Thread]) -> tuple[Thread, ...]:
    """Fewer threads and frames, with shorter names: those of C++ may be longer than a message."""
    return tuple(
        replace(thread, frames=tuple(replace(one, name=one.name[:LONGEST_WORDS]) for one in thread.frames[:40]))
        for thread in threads[:40]
    )
