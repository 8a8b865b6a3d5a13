"""Runs one process of a job (scheduler, server, worker or set-up) on a node.

    role             under ssh_proxy.py's ssh: reads the order from stdin, writes reports to stdout
    role launched VARIABLES [VALUES]   under launch.py, mpirun or torchrun: order and reports over a socket; exits with
                     0 once it has reported. VARIABLES: the prefixes of the variables that identify it, separated by
                     commas. VALUES: these variables as JSON, in place of those in its environment
    role ranks VARIABLES CONTAINER PATH   starts such roles for torchrun in a container (ranks.py)
    role join PATH   connects its stdin and stdout to a `role launched` that waits on this host
    role end JOB     ends the job's processes and containers on this host; prints a JSON list of those that do not
                     end; with --boot, after a line that identifies this boot of the host

The first two run as two processes, the parent as reaper (reaper.py). For a launcher on the head, the socket is the
supervisor's, at $CLUSTER_SOCKET. A role that mpirun or torchrun starts on another node cannot connect to the head,
which accepts no node's key. So it listens on its own socket and prints the path, which its launcher passes to the
head, and the supervisor connects with ssh_proxy.py and `role join`.
Messages are in wire.py. Secrets come with the order and go into the process's environment, never to a command line or
a file.
"""

import json
import os
import select
import socket
import sys
from collections.abc import Mapping
from typing import Optional

from msgspec.structs import replace

from foundation.decode import decode
from node import job_folder, wire
from node.agent import ranks, reaper
from node.agent.container import remove_all
from node.agent.runner import Runner
from node.setup import process_tree
from node.wire import Message, RoleOrder

CALL_TIMEOUT_S = 60.0


def main() -> int:
    """Runs the subcommand on the command line."""
    word, *more = sys.argv[1:] or ["run"]
    try:
        if word == "end":
            return end(*more)
        if word == "join":
            return join(*more)
        if word == "ranks":
            return ranks.serve(*more)
        return run_launched(*more) if word == "launched" else run()
    except ConnectionError:
        return 1  # the other side has ended, and no process was started


def run() -> int:
    """Runs the order from stdin."""
    above = fork()
    line, rest = wire.read_line(0)
    return Runner(decode(line, RoleOrder), above, 0, 1, rest).run()


def run_launched(variables: str, values: Optional[str] = None) -> int:
    """Runs the supervisor's order, received over a socket."""
    above = fork()
    beginnings = tuple(variables.split(","))
    found = os.environ if values is None else decode(values.encode(), dict[str, str])
    launched = {key: value for key, value in found.items() if key.startswith(beginnings)}
    first = Message(
        role=launched.get("DMLC_ROLE", "worker"), host=os.environ["CLUSTER_HOST"], launched=select_identity(launched)
    )
    is_here = "CLUSTER_SOCKET" in os.environ
    connection = call(first) if is_here else wait_for_call(first)
    descriptor = connection.fileno()
    line, rest = wire.read_line(descriptor)
    order = decode(line, RoleOrder)
    order.launched = {**launched, **order.launched}
    # The exit code is in the report; for a launcher it would only cause a traceback.
    Runner(order, above, descriptor, descriptor, rest, is_pinged=not is_here).run()
    return 0


def select_identity(launched: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables that the supervisor needs: ps-lite's, and ranks. Pure.

    They must be few: mpirun forwards 2 KiB at a time, and interleaves longer lines of processes on one node.
    """
    return {key: value for key, value in launched.items() if key.startswith("DMLC_") or key.endswith("RANK")}


def fork() -> reaper.Reaper:
    """Forks the reaper, and returns in its child. Exits with an error message if that fails."""
    try:
        return reaper.fork()
    except OSError as error:  # such as the process limit
        sys.exit(f"cannot start another process: {error}")


def call(first: Message) -> socket.socket:
    """Connects to the supervisor on this host, and sends it the first message."""
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(os.environ["CLUSTER_SOCKET"])
    connection.sendall(wire.encode(first))
    return connection


def wait_for_call(first: Message) -> socket.socket:
    """Prints the first message, and waits until the supervisor connects. Raises OSError."""
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
    """Copies stdin to a waiting role's socket, and the socket to stdout, until one side ends."""
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


def end(job: str, *options: str) -> int:
    """Ends a job's processes and containers on this host."""
    _, left = process_tree.end(job)
    if "--boot" in options:
        print(process_tree.boot())
    print(json.dumps([*([pid, words] for pid, _, words in left), *remove_all(job)]))
    return 0
