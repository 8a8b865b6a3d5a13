"""Ends what a role's program leaves on its host when it is killed, whatever that has done to be somebody else's.

What descends from a program that was killed falls to whoever is above it. A process that has left its session and its
environment could then not be told from a stranger's any more. So role.py forks before anything else: one of the two
goes on as the role's program, and the other stays above it as its guardian, does nothing but wait, and ends as that
ends: with its exit code, or of the same signal. It keeps stdout and stderr open until then: their end tells the other
side that all is over here.

When the guardian is killed instead, the role's program ends the job here (runner.py). When both are killed at the same
moment (`pkill -9 -f role.py`), the role's process dies with them (processes.start), and what has the job in its
environment is found by `role.py end`, with all below it; what has neither can no longer be found by anybody.
Python 3.6 and later, standard library only.
"""

import os
import signal
import time

import processes

PASSED_ON = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)  # what others end us with means the role's program


class Guardian(object):
    """As the program below it knows it. descriptor: becomes readable when it has ended."""

    def __init__(self, pid, descriptor):
        self.pid = pid
        self.descriptor = descriptor


def fork():
    """Go on below a guardian, which is returned; this process itself becomes it. Raises OSError."""
    processes.adopt_orphans()
    guardian = os.getpid()
    source, sink = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(sink)  # now the guardian alone holds it
        return Guardian(guardian, source)
    os.close(source)
    return _guard(child)


def _guard(child):
    """Wait for the child's end, end what that has left, and end in the same way."""
    numbers = [number for number in PASSED_ON if signal.getsignal(number) != signal.SIG_IGN]
    for number in numbers:
        signal.signal(number, lambda given, _: processes.tell([child], given))
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)  # until it is waited for below, its pid is nobody else's
    for number in numbers:
        signal.signal(number, signal.SIG_IGN)  # we are ending already
    _, status = os.waitpid(child, 0)
    _end_the_rest()
    if os.WIFEXITED(status):
        os._exit(os.WEXITSTATUS(status))
    number = os.WTERMSIG(status)
    if number != signal.SIGKILL:  # which nobody can handle
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    os._exit(128 + number)  # only where the signal is blocked


def _end_the_rest():
    """End all that still descends from here. It has all become our children's, or ours."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:  # we have none: the usual case, and no search of /proc for it
        return
    ending = processes.Ending(processes.find_descendants)
    while ending.go_on():
        time.sleep(processes.LOOK_EVERY_S)
