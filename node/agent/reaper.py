"""Ends all processes that a role's program leaves on its host when it is killed, including daemons.

Orphans of a killed program get a new parent, and one with another session and environment could no longer be
recognised. So role.py forks first: the child runs the role's program; the parent, its reaper, adopts orphans, waits,
and ends like the child, with its exit code or signal. The reaper holds stdout and stderr open until then: when they
close, no process is left.

If the reaper is killed, the role's program ends the job here (runner.py). If both are killed at once (`pkill -9 -f
role`), the role's process dies with them (process_tree.start), and `role end` finds all processes with the job in
their environment, and their descendants; others cannot be found.
"""

import os
import signal
import time
from typing import NoReturn

from msgspec import Struct

from node.setup import process_tree

PASSED_ON = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)  # meant for the role's program


class Reaper(Struct, frozen=True):
    """The reaper, as its child sees it. descriptor: becomes readable when the reaper ends."""

    pid: int
    descriptor: int


def fork() -> Reaper:
    """Fork: this process becomes the reaper, and the call returns in its child. Raises OSError."""
    process_tree.adopt_orphans()
    reaper = os.getpid()
    source, sink = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(sink)  # only the reaper keeps it open
        return Reaper(reaper, source)
    os.close(source)
    return _wait(child)


def _wait(child: int) -> NoReturn:
    """Waits for the child, ends the processes that it leaves, and ends in the same way as the child."""
    numbers = [number for number in PASSED_ON if signal.getsignal(number) != signal.SIG_IGN]
    for number in numbers:
        signal.signal(number, lambda given, _: process_tree.tell([child], given))
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)  # keeps the pid reserved
    for number in numbers:
        signal.signal(number, signal.SIG_IGN)  # already ending
    _, status = os.waitpid(child, 0)
    _end_the_rest()
    # os._exit: exit handlers belong to the child.
    if os.WIFEXITED(status):
        os._exit(os.WEXITSTATUS(status))
    ended_by = os.WTERMSIG(status)
    if ended_by != signal.SIGKILL:  # cannot be handled
        signal.signal(ended_by, signal.SIG_DFL)
    os.kill(os.getpid(), ended_by)
    os._exit(128 + ended_by)  # only where the signal is blocked


def _end_the_rest() -> None:
    """Ends all remaining descendants, which this process has adopted."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:  # no children: the usual case, which needs no search of /proc
        return
    ending = process_tree.Ending(process_tree.find_descendants, process_tree.our_programs_last)
    while ending.go_on():
        time.sleep(process_tree.LOOK_EVERY_S)
