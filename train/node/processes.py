"""Starting a job's processes so that they can be ended, and ending them so that it is sure.

Every process of a job has CLUSTER_JOB_ID in its environment, and so have all that it starts: by this they are found,
whatever session or parent they have by then. Linux. Python 3.6 and later, standard library only.
"""

import ctypes
import os
import signal
import subprocess
import time

JOB_VARIABLE = "CLUSTER_JOB_ID"
TERM_GRACE_S = 2.0
PR_SET_PDEATHSIG = 1  # linux/prctl.h


def die_with_parent():
    """For preexec_fn: have the kernel kill this process when its parent dies, even of SIGKILL."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def start(command, env, cwd, stdin=subprocess.DEVNULL):
    """Start a command in a session of its own, its stdout and stderr in one pipe. Raises OSError."""

    def prepare():
        os.setsid()
        die_with_parent()

    return subprocess.Popen(
        command,
        env=env,
        cwd=cwd,
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        preexec_fn=prepare,
    )


def find(job):
    """The processes of a job on this host, this one left out: a list of (pid, start time, command line).

    The start time tells a process from a later one with the same pid.
    """
    wanted = (JOB_VARIABLE + "=" + job).encode()
    found = []
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == os.getpid():
            continue
        try:
            with open("/proc/%s/environ" % name, "rb") as stream:
                if wanted not in stream.read().split(b"\0"):
                    continue
            with open("/proc/%s/stat" % name, "rb") as stream:
                after_name = stream.read().rpartition(b")")[2].split()
            with open("/proc/%s/cmdline" % name, "rb") as stream:
                words = stream.read().replace(b"\0", b" ").decode("utf-8", "replace").strip()
        except (OSError, IOError):  # it ended meanwhile, or belongs to somebody else
            continue
        if after_name[0] != b"Z":
            found.append((int(name), int(after_name[19]), words))
    return found


def end(job, spare=()):
    """End all processes of a job on this host but `spare` (pids): SIGTERM, then SIGKILL.

    Returns (those that had to be ended, those that are still there), both as `find` has them.
    """
    first = [entry for entry in find(job) if entry[0] not in spare]
    left = first
    for number, patience_s in ((signal.SIGTERM, TERM_GRACE_S), (signal.SIGKILL, TERM_GRACE_S)):
        for pid, _, _ in left:
            _kill(pid, number)
        deadline = time.time() + patience_s
        while left and time.time() < deadline:
            time.sleep(0.05)
            left = [entry for entry in find(job) if entry[0] not in spare]
        if not left:
            break
    return first, left


def end_group(pid):
    """Kill the process group that `start` made, all at once."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def _kill(pid, number):
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass
