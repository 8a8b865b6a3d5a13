"""Runs one process of a job (scheduler, server, worker or set-up) on a node, and ends with it or ends it.

    role             under ssh_proxy.py's ssh: the order comes on stdin, reports go to stdout
    role launched    under launch.py or mpirun: both over a socket (meeting.py); exits with 0 once it has reported
    role join PATH   carries bytes between its stdin and stdout and a `role launched` that waits on this host
    role end JOB     ends what is left of a job on this host; prints a JSON list of what does not end

The first two run as two processes: this one stays above the other as its reaper (reaper.py).
wire.py has the messages. Secrets come in the order, and go into the process's environment: they are on no command line
and in no file.
"""

import json
import os
import sys

from bootstrap.node import process_tree
from foundation.decode import decode
from train.node import meeting, wire
from train.node.role import reaper
from train.node.role.runner import Runner
from train.node.wire import Message, RoleOrder


def main() -> int:
    """Do what the command line says."""
    word, *more = sys.argv[1:] or ["run"]
    try:
        if word == "end":
            return end(*more)
        if word == "join":
            return meeting.join(*more)
        return run() if word == "run" else run_launched()
    except ConnectionError:
        return 1  # nobody is there any more, and nothing was started


def run() -> int:
    """Run what the order says that comes on stdin."""
    above = fork()
    line, rest = wire.read_line(0)
    return Runner(decode(line, RoleOrder), above, 0, 1, rest).run()


def run_launched() -> int:
    """Run what the supervisor orders over a socket."""
    above = fork()
    launched = {key: value for key, value in os.environ.items() if key.startswith("DMLC_")}
    first = Message(role=launched["DMLC_ROLE"], host=os.environ["CLUSTER_HOST"], launched=launched)
    is_here = "CLUSTER_SOCKET" in os.environ
    connection = meeting.call(first) if is_here else meeting.wait_for_call(first)
    descriptor = connection.fileno()
    line, rest = wire.read_line(descriptor)
    # Its code is told above; launch.py and mpirun would only add a traceback to it.
    Runner(decode(line, RoleOrder), above, descriptor, descriptor, rest, is_pinged=not is_here).run()
    return 0


def fork() -> reaper.Reaper:
    """Go on below a reaper."""
    try:
        return reaper.fork()
    except OSError as error:  # such as a limit of processes
        sys.exit(f"role.py cannot start another process: {error}")


def end(job: str) -> int:
    """End what is left of a job here."""
    _, left = process_tree.end(job)
    print(json.dumps([[pid, words] for pid, _, words in left]))
    return 0
