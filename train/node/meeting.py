"""How a process that launch.py or mpirun has started meets the supervisor.

On the head it connects to the socket at $CLUSTER_SOCKET. Elsewhere (under mpirun) there is no way there: the head's key
opens the other nodes, and no key of theirs opens the head. So it listens on a socket of its own, says where on stdout,
which mpirun carries to the head, and the supervisor comes, by way of ssh_proxy.py and `role join`.
"""

import os
import select
import socket

from msgspec.structs import replace

from bootstrap.node import process_tree
from train.node import job_folder, wire
from train.node.wire import Message

WAITING = b"CLUSTER-ROLE "  # on stdout, in front of what the supervisor needs to know
FAILED = b"CLUSTER-FAILED "  # on launch.py's stdout, when a command that it has run ended badly
CALL_TIMEOUT_S = 60.0


def call(first: Message) -> socket.socket:
    """Connect to the supervisor on this host."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.connect(os.environ["CLUSTER_SOCKET"])
    connection.sendall(wire.encode(first))
    return connection


def wait_for_call(first: Message) -> socket.socket:
    """Have the supervisor connect to here, by way of ssh_proxy.py and `role join`. Raises OSError."""
    job = os.environ[process_tree.JOB_VARIABLE]
    path = os.path.join(job_folder.path(job), f"role-{os.getpid()}")
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(path)
        listener.listen(1)
        wire.write_all(1, WAITING + wire.encode(replace(first, path=path)))
        listener.settimeout(CALL_TIMEOUT_S)
        connection, _ = listener.accept()
    os.unlink(path)
    return connection


def join(path: str) -> int:
    """Carry bytes until one side ends."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.connect(path)
        while True:
            ready, _, _ = select.select([0, connection.fileno()], [], [])
            for source, target in ((0, connection.fileno()), (connection.fileno(), 1)):
                if source in ready:
                    data = os.read(source, 1 << 16)
                    if not data:
                        return 0
                    wire.write_all(target, data)
