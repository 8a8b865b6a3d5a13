"""Runs one process of a job (scheduler, server, worker or set-up) on a node, and ends with it or ends it.

    role             under ssh_proxy.py's ssh: the order comes on stdin, reports go to stdout
    role launched    under launch.py or mpirun: both over a socket; exits with 0 once it has reported
    role join PATH   carries bytes between its stdin and stdout and a `role launched` that waits on this host
    role end JOB     ends what is left of a job on this host; prints a JSON list of what does not end

The first two run as two processes: this one stays above the other as its reaper (reaper.py). Under launch.py, on the
head, the socket is the supervisor's, at $CLUSTER_SOCKET. Under mpirun on other nodes there is no way there: the head's
key opens those, and no key of theirs opens the head. So the role listens on a socket of its own, says where on stdout,
which mpirun carries to the head, and the supervisor connects by way of ssh_proxy.py and `role join`.
wire.py has the messages. Secrets come in the order, and go into the process's environment: they are on no command line
and in no file.
"""

import json
import os
import select
import socket
import sys

from msgspec.structs import replace

from bootstrap.node import process_tree
from foundation.decode import decode
from train.node import job_folder, wire
from train.node.role import reaper
from train.node.role.runner import Runner
from train.node.wire import Message, RoleOrder

CALL_TIMEOUT_S = 60.0


def main() -> int:
    """Do what the command line says."""
    word, *more = sys.argv[1:] or ["run"]
    try:
        if word == "end":
            return end(*more)
        if word == "join":
            return join(*more)
        return run_launched() if word == "launched" else run()
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
    connection = call(first) if is_here else wait_for_call(first)
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


def call(first: Message) -> socket.socket:
    """Connect to the supervisor on this host."""
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(os.environ["CLUSTER_SOCKET"])
    connection.sendall(wire.encode(first))
    return connection


def wait_for_call(first: Message) -> socket.socket:
    """Have the supervisor connect to here. Raises OSError."""
    path = job_folder.path(os.environ[process_tree.JOB_VARIABLE], f"role-{os.getpid()}")
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(1)
        wire.write_all(1, wire.WAITING + wire.encode(replace(first, path=path)))
        listener.settimeout(CALL_TIMEOUT_S)
        connection, _ = listener.accept()
    os.unlink(path)
    return connection


def join(path: str) -> int:
    """Carry bytes until one side ends."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        while True:
            ready, _, _ = select.select([0, connection.fileno()], [], [])
            for source, target in ((0, connection.fileno()), (connection.fileno(), 1)):
                if source in ready:
                    data = os.read(source, 1 << 16)
                    if not data:
                        return 0
                    wire.write_all(target, data)


def end(job: str) -> int:
    """End what is left of a job here."""
    _, left = process_tree.end(job)
    print(json.dumps([[pid, words] for pid, _, words in left]))
    return 0
