"""Ends what a role's program leaves on its host when it is killed, whatever that has done to be somebody else's.

What descends from a program that was killed falls to whoever is above it. A process that has left its session and its
environment could then not be told from a stranger's any more. So role.py forks before anything else: one of the two
goes on as the role's program, and the other stays above it as its reaper, does nothing but wait, and ends as that
ends: with its exit code, or of the same signal. It keeps stdout and stderr open until then: their end tells the other
side that all is over here.

When the reaper is killed instead, the role's program ends the job here (runner.py). When both are killed at the same
moment (`pkill -9 -f role`), the role's process dies with them (process_tree.start), and what has the job in its
environment is found by `role end`, with all below it; what has neither can no longer be found by anybody.
"""

import os
import signal
import time
from dataclasses import dataclass
from typing import NoReturn

from bootstrap.node import process_tree

PASSED_ON = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)  # what others end us with means the role's program


@dataclass(frozen=True)
class Reaper:
    """As the program below it knows it. descriptor: becomes readable when it has ended."""

    pid: int
    descriptor: int


def fork() -> Reaper:
    """Go on below a reaper, which is returned; this process itself becomes it. Raises OSError."""
    process_tree.adopt_orphans()
    reaper = os.getpid()
    source, sink = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(sink)  # now the reaper alone holds it
        return Reaper(reaper, source)
    os.close(source)
    return _wait(child)


def _wait(child: int) -> NoReturn:
    """Wait for the child's end, end what that has left, and end in the same way."""
    numbers = [number for number in PASSED_ON if signal.getsignal(number) != signal.SIG_IGN]
    for number in numbers:
        signal.signal(number, lambda given, _: process_tree.tell([child], given))
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)  # until it is waited for below, its pid is nobody else's
    for number in numbers:
        signal.signal(number, signal.SIG_IGN)  # we are ending already
    _, status = os.waitpid(child, 0)
    _end_the_rest()
    # os._exit: this process is a fork, and what the program registered to be done at its end is the child's.
    if os.WIFEXITED(status):
        os._exit(os.WEXITSTATUS(status))
    ended_by = os.WTERMSIG(status)
    if ended_by != signal.SIGKILL:  # which nobody can handle
        signal.signal(ended_by, signal.SIG_DFL)
    os.kill(os.getpid(), ended_by)
    os._exit(128 + ended_by)  # only where the signal is blocked


def _end_the_rest() -> None:
    """End all that still descends from here. It has all become our children's, or ours."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:  # we have none: the usual case, and no search of /proc for it
        return
    ending = process_tree.Ending(process_tree.find_descendants)
    while ending.go_on():
        time.sleep(process_tree.LOOK_EVERY_S)
