"""Runs one job from the head, in a session of its own: whoever started it may go. jobs.py starts it.

The order, protocol.Order, comes as one line on stdin, after which nothing is read. stdout gets "ready" once the job is
on its way (record, lock and socket are there), or one line that says why it is not. SIGTERM and SIGINT stop the job.

What launch.py lacks is here: one process that fails ends the job, everywhere; the exit code is that process's; and at
the end nothing is left on any host.
"""

import os
import signal
import sys

from bootstrap.node import process_tree
from foundation.decode import decode
from foundation.file_lock import FileLock
from train.job.protocol import Order, Supervisor
from train.node import job_folder
from train.node.role import environment
from train.node.supervisor import supervisor

LOCK_TIMEOUT_S = 5.0


def main() -> int:
    """Run the job."""
    order = decode(sys.stdin.buffer.readline(), Order)
    leave()
    held = FileLock(job_folder.path(order.job, "lock"))
    has_it = held.take(LOCK_TIMEOUT_S)
    record = job_folder.read_record(order.job)  # now nobody else writes it
    if not has_it or record is None or record.has_ended:
        sys.exit(f"{order.job}: somebody else has this job, or has ended it")
    environment.raise_open_files("auto")  # two for each process of the job
    record.supervisor = Supervisor(pid=os.getpid(), start_time=process_tree.start_time(os.getpid()))
    try:
        job = supervisor.Supervisor(order, record)
        job.log.reserve()
        job.save(lasting=True)
    except OSError as error:  # such as a full disk, which takes no complaint either
        sys.stdout.write(job_folder.describe(error) + "\n")
        return 1
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    devnull = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1):
        os.dup2(devnull, descriptor)
    job.run()
    return 0


def leave() -> None:
    """Go on as a process that belongs to nobody: no session, no terminal, no parent that passes signals on."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    if os.fork():
        os._exit(0)  # the child goes on; what is registered to be done at the end is its own
    os.setsid()
    os.chdir("/")
