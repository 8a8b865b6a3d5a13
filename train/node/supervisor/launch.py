"""Runs MXNet's own tools/launch.py, unchanged, from the installed wheel.

    launch.py PRIVATE_ADDRESS ARGUMENTS...

What it would get wrong is put right around it: the scheduler listens on the head's private address instead of what
the host's name happens to resolve to, and on a port that no other job gets. (_cluster_compat has put Thread.isAlive
back, which it calls.)
"""

import os
import runpy
import shlex
import socket
import subprocess
import sys
import threading
from typing import Any

from train.node import wire
from train.node.role import environment
from train.node.supervisor import ssh_proxy

FIRST_PORT, END_PORT = 9091, 9999  # as launch.py has them
SSH = "ssh "
_callers: set[threading.Thread] = set()  # the threads that carry what an ssh says


def claim_port() -> tuple[int, socket.socket]:
    """A port for this job's scheduler, and what holds the claim for as long as it is kept.

    launch.py finds a free port, lets go of it, and a second later the scheduler takes it, or another job's does. A name
    in Linux's abstract namespace of sockets belongs to one process at a time, and ends with it.
    """
    for port in range(FIRST_PORT, END_PORT):
        claim = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            claim.bind(f"\0cluster-scheduler-{port}")
            with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as trial:  # else launch.py would go on to the next
                trial.bind(("", port))
        except OSError:
            claim.close()
            continue
        return port, claim
    raise OSError(f"all ports from {FIRST_PORT} to {END_PORT - 1} are taken by other jobs")


def keep_quiet(failure: Any) -> None:
    """What launch.py has to say of an ssh that failed: a traceback. The supervisor knows, and says it better."""
    if not issubclass(failure.exc_type, subprocess.CalledProcessError):
        sys.excepthook(failure.exc_type, failure.exc_value, failure.exc_traceback)


def take_calls() -> None:
    """Be told of the commands that launch.py runs, each in a thread of its own.

    `ssh` is ours (ssh_proxy.py). The supervisor is told of each that fails: what it was to start may never have come to
    tell it.
    """
    run = subprocess.call

    def call(*words: Any, **options: Any) -> int:
        is_ssh = isinstance(words[0], str) and words[0].startswith(SSH)
        code = call_ssh(words[0]) if is_ssh else run(*words, **options)
        if code != 0:
            wire.write_all(1, wire.FAILED + b"\n")
        return code

    subprocess.call = call  # check_call calls it too


def call_ssh(command: str) -> int:
    """Do what an `ssh ...` of launch.py's means; returns its exit code."""
    _callers.add(threading.current_thread())
    try:
        return ssh_proxy.call_ssh(shlex.split(command)[1:])
    except ConnectionError:
        return 1  # the supervisor is gone
    except OSError as error:  # such as a limit of processes
        sys.stderr.write(f"ssh cannot be started: {error}\n")
        return 1


def main() -> None:
    """Run it with this program's arguments."""
    address = sys.argv[1]
    take_calls()
    environment.raise_open_files("auto")  # four for each `ssh`
    threading.excepthook = keep_quiet  # from Python 3.8 on
    from dmlc_tracker import tracker  # noqa: PLC0415 - it runs what it may find taken over by the two lines above

    port, claim = claim_port()

    class PSTracker(tracker.PSTracker):  # type: ignore[misc]
        def __init__(self, **given: Any) -> None:
            tracker_class.__init__(self, port=port, **given)

    tracker_class = tracker.PSTracker
    tracker.PSTracker = PSTracker
    tracker.get_host_ip = lambda _=None: address
    # The wheel has both, side by side. (Looking for `mxnet` itself would load what its import needs.)
    packages = os.path.dirname(os.path.dirname(os.path.abspath(tracker.__file__)))
    path = os.path.join(packages, "mxnet", "tools", "launch.py")
    sys.argv = [path, *sys.argv[2:]]
    with claim:
        try:
            runpy.run_path(path, run_name="__main__")
        except SystemExit as end:
            if end.code not in (None, 0):
                raise
        for caller in list(_callers):  # it waits for the scheduler alone, and its threads would end with it
            caller.join()
