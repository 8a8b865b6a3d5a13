"""Runs one job from the head, in its own session, which outlives jobs.py, which starts it.

Reads the order, protocol.Order, as one line from stdin, and ends if there is none. Prints "ready" once record, lock and
socket exist, or one line with an error. Then what Python itself says goes to supervisor.err in the job's folder.
"""

import asyncio
import contextlib
import os
import signal
import sys
import time

from foundation.decode import decode
from foundation.file_lock import FileLock
from node import job_folder, protocol
from node.protocol import Order, Record
from node.setup import process_tree
from node.supervisor import job_log
from node.supervisor.supervisor import Supervisor

LOCK_TIMEOUT_S = 5.0


def main() -> int:
    """Runs the job."""
    line = sys.stdin.buffer.readline()
    if not line:
        return 0
    order = decode(line, Order)
    leave(order.tree)
    held = FileLock(job_folder.path(order.spec.id, "lock"))
    if not held.take(LOCK_TIMEOUT_S):
        sys.exit(f"{order.spec.id}: another supervisor runs this job")
    process_tree.raise_open_files("auto")  # a process of the job needs two
    pid = os.getpid()
    record = Record(
        spec=order.spec,
        nodes=order.hosts,
        state="queued" if order.before else "starting",
        submitted_at=order.submitted_at or time.time(),
        started_at=order.attempts[0].started_at if order.attempts else None,
        supervisor=protocol.Supervisor(pid=pid, start_time=process_tree.start_time(pid), host=os.uname().nodename),
    )
    return asyncio.run(supervise(order, record))


async def supervise(order: Order, record: Record) -> int:
    """Runs the job. Returns 1 if it cannot start."""
    try:
        first, url, env = 0, order.spec.output_url, {**order.env, **order.secrets}
        if order.attempts and url:
            first = job_log.restore(order.spec.id, url, env)
        job = Supervisor(order, record, first)
        await job.open()
        job.log.reserve()
        job.save(lasting=True)
        complaints = os.open(job_folder.path(order.spec.id, "supervisor.err"), os.O_WRONLY | os.O_CREAT, 0o600)
    except OSError as error:  # such as a full disk, where no file can hold the error
        sys.stdout.write(job_folder.describe(error) + "\n")
        return 1
    devnull = os.open(os.devnull, os.O_RDWR)
    os.dup2(complaints, 2)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    for descriptor in (0, 1):
        os.dup2(devnull, descriptor)
    await job.run()
    return 0


def leave(tree: str | None) -> None:
    """Becomes a daemon: with its own session, no terminal, and no parent that passes signals on.

    tree: the user's files, which place_tree.py keeps where a process runs in them, for nodes that replace others.
    """
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    if os.fork():
        os._exit(0)  # the child continues, and runs the exit handlers
    os.setsid()
    os.chdir("/")
    with contextlib.suppress(OSError):  # the agents report files that cannot be copied
        os.chdir(tree or "/")
