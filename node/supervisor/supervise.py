"""Runs one job from the head, in its own session, which outlives jobs.py, which starts it.

Reads the order, protocol.Order, as one line from stdin. Prints "ready" once record, lock and socket exist, or one line
with an error.
"""

import asyncio
import os
import signal
import sys

from foundation.decode import decode
from foundation.file_lock import FileLock
from node import job_folder, protocol
from node.protocol import Order, Record
from node.setup import process_tree
from node.supervisor.supervisor import Supervisor

LOCK_TIMEOUT_S = 5.0


def main() -> int:
    """Runs the job."""
    order = decode(sys.stdin.buffer.readline(), Order)
    leave()
    held = FileLock(job_folder.path(order.spec.id, "lock"))
    has_it = held.take(LOCK_TIMEOUT_S)
    record = job_folder.read_record(order.spec.id)  # with the lock, no other process writes it
    if not has_it or record is None or record.has_ended:
        sys.exit(f"{order.spec.id}: another supervisor runs this job, or has ended it")
    process_tree.raise_open_files("auto")  # a process of the job needs two
    record.supervisor = protocol.Supervisor(pid=os.getpid(), start_time=process_tree.start_time(os.getpid()))
    return asyncio.run(supervise(order, record))


async def supervise(order: Order, record: Record) -> int:
    """Runs the job. Returns 1 if it cannot start."""
    try:
        job = Supervisor(order, record)
        await job.open()
        job.log.reserve()
        job.save(lasting=True)
    except OSError as error:  # such as a full disk, where no file can hold the error
        sys.stdout.write(job_folder.describe(error) + "\n")
        return 1
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    devnull = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1):
        os.dup2(devnull, descriptor)
    await job.run()
    return 0


def leave() -> None:
    """Becomes a daemon: with its own session, no terminal, and no parent that passes signals on."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    if os.fork():
        os._exit(0)  # the child continues, and runs the exit handlers
    os.setsid()
    os.chdir("/")
