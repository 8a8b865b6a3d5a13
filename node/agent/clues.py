"""Finds what this host knows about a process that has failed: the kernel's log, its OOM killer, a full /dev/shm."""

import os
import re
import time
from collections.abc import Callable

from node import children
from node.health import KERNEL_LOG
from node.setup import process_tree
from node.wire import Clues

TIMEOUT_S = 1.5  # of each command: the job's end waits for it
BEFORE_S = 5.0  # the kernel stamps its messages by a clock of its own
MOST_LINES, LONGEST_LINE = 40, 400
FULL = 0.05  # of a file system: a process that has failed to get a page may have got others
_LINE = re.compile(r"\[\s*(\d+\.\d+)\].*(?:Killed process \d|NVRM: Xid|trap invalid opcode|segfault at)")


def count_oom_kills() -> int | None:
    """Returns how many processes the OOM killer has ended since the boot, which needs no root; None if unknown."""
    found = re.search(rb"^oom_kill (\d+)$", process_tree.read(".", "vmstat"), re.MULTILINE)
    return int(found[1]) if found is not None else None


class Watch:
    """Knows when the job's attempt began on this host."""

    def __init__(self) -> None:
        self._since, self._oom_kills = time.monotonic() - BEFORE_S, count_oom_kills()

    async def send_to(self, send: Callable[[Clues], None]) -> None:
        """Finds the clues since then, and sends them."""
        kills = count_oom_kills()
        new = None if kills is None or self._oom_kills is None else kills - self._oom_kills
        send(Clues(choose_lines(await read_kernel_log(), self._since), new, is_full("/dev/shm")))  # noqa: S108


async def read_kernel_log(timeout_s: float = TIMEOUT_S) -> str:
    """Returns the kernel's messages; "" if this user may not read them, or they do not come in time."""
    for words in KERNEL_LOG:
        try:
            ended = await children.run(words, timeout_s)
        except OSError:  # there is no such program
            continue
        if ended.code == 0 and ended.stdout.strip():
            return ended.stdout.decode("utf-8", "replace")
    return ""


def choose_lines(log: str, since: float) -> tuple[str, ...]:
    """Returns the lines of a kernel's log that may explain a failure. since: seconds since the boot. Pure."""
    matches = (match for line in log.splitlines() if (match := _LINE.match(line)) is not None)
    return tuple(match.string[:LONGEST_LINE] for match in matches if float(match[1]) >= since)[-MOST_LINES:]


def is_full(folder: str) -> bool:
    """Whether a file system is full, or nearly so."""
    try:
        status = os.statvfs(folder)
    except OSError:  # there is no such folder
        return False
    return status.f_bavail < FULL * status.f_blocks
