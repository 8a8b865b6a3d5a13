"""Starts the lease program at each boot, and restarts it if it is killed.

Python 3.6 and later, standard library only.
"""

import fcntl
import os
import shutil
import sys
import time
from typing import Callable, NamedTuple

from node.lease import system

PER_BOOT = "/var/lib/cloud/scripts/per-boot/cluster-lease"
UNIT = "/etc/systemd/system/cluster-lease.service"
PYTHON = sys.executable or "/usr/bin/python3"


class Armed(NamedTuple):
    """The arguments from the user data: a lease, the cluster's name, and the URL of EC2."""

    lease: str
    cluster: str
    endpoint: str


def read_armed() -> Armed:
    """Returns the arguments that the last `boot` saved. Raises OSError, ValueError."""
    with open(os.path.join(system.SAVED, "armed")) as stream:
        lines = stream.read(4096).splitlines()
    if len(lines) != len(Armed._fields):
        raise ValueError(lines)
    return Armed(*lines)


def install(program: str, armed: Armed) -> None:
    """Saves a copy for a boot whose user data cannot be read."""
    saved = system.SAVED
    try:
        os.makedirs(saved, mode=0o700, exist_ok=True)
        shutil.copyfile(program, os.path.join(saved, "new.py"))
        os.rename(os.path.join(saved, "new.py"), os.path.join(saved, "lease.py"))
        system.write_whole(os.path.join(saved, "armed"), "".join("{}\n".format(word) for word in armed))
        command = "{} -Es {}/lease.py again".format(PYTHON, saved)
        system.write_whole(PER_BOOT, "#!/bin/sh\nexec {}\n".format(command), 0o755)
        if os.path.isdir("/run/systemd/system"):
            system.write_whole(
                UNIT,
                "[Unit]\nDescription=Ends this node at the end of its cluster's lease\n"
                "[Service]\nType=oneshot\nRemainAfterExit=yes\nKillMode=process\nExecStart={}\n"
                "[Install]\nWantedBy=multi-user.target\n".format(command),
            )
            link = os.path.join(os.path.dirname(UNIT), "multi-user.target.wants", os.path.basename(UNIT))
            if not os.path.islink(link):
                os.symlink(UNIT, link)
    except OSError as error:
        system.say("no copy for the next boot: {}".format(error))


def start(armed: Armed, work: "Callable[[str, str, str], None]") -> None:
    """Starts the work in the background, unless it runs. A second process restarts it if it is killed."""
    os.makedirs(system.RUN, exist_ok=True)
    lock = os.open(os.path.join(system.RUN, "lease.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return
    sys.stdout.flush()
    if os.fork():
        os.close(lock)
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    os.chdir("/")
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    try:
        log = os.open(os.path.join(system.RUN, "lease.log"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    except OSError:
        log = null
    os.dup2(log, 2)
    try:
        with open("/proc/self/oom_score_adj", "w") as stream:
            stream.write("-1000")
    except OSError:
        pass  # not allowed in every namespace
    while True:
        try:
            child = os.fork()
        except OSError as error:  # the node has no process left; it may have one later
            system.say("cannot start: {}".format(error))
            time.sleep(1.0)
            continue
        if not child:
            try:
                work(armed.cluster, armed.lease, armed.endpoint)
            except Exception as error:  # noqa: BLE001 - after any error, it starts again
                system.say("failed: {!r}".format(error))
            finally:
                os._exit(1)
        os.waitpid(child, 0)
        system.say("started again")
        time.sleep(1.0)
