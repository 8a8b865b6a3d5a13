"""Starts, on the host, the ranks of a torchrun in a container: each by role.py, in a container of its own.

In place of each rank, torchrun starts node/setup/containers/rank_proxy.py, which connects to this program. If the
proxy ends, its rank is ended, as torchrun would end its process. This program ends with the role.py that started it.

It runs outside the container, so it serves only proxies in the launcher's container, and takes nothing from them but
the rank's own variables, which become variables in the rank's container only.
"""

import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Sequence

from foundation.decode import decode
from node import wire
from node.programs import CODE_DIR, PROXY, launched_words
from node.setup import process_tree
from node.setup.containers import engine

DESCRIPTORS = 2
LONGEST_VALUE = 1024
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid: struct ucred of socket(7)


def serve(variables: str, container: str, path: str) -> int:
    """Serves proxies in a container at the socket `path` until this process is killed.

    variables: the names of a rank's variables, separated by commas. container: the launcher's, by name.
    """
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(128)
        wire.write_all(1, b"ready\n")
        while True:
            connection, _ = listener.accept()
            args = (connection, variables.split(","), container)
            threading.Thread(target=run_rank, args=args, daemon=True).start()


def run_rank(connection: socket.socket, variables: Sequence[str], container: str) -> None:
    """Runs the rank of a proxy to its end, and sends the proxy its exit code. Closes the connection of others."""
    with connection:
        try:
            if not is_proxy(find_peer(connection), container):
                return
            given, descriptors = receive(connection, variables)
        except (OSError, ValueError):  # the proxy was killed meanwhile, or it is not ours
            return
        try:
            child = subprocess.Popen(
                launched_words(variables, json.dumps(given), python=sys.executable),
                stdin=subprocess.DEVNULL,
                stdout=descriptors[0],
                stderr=descriptors[1],
                preexec_fn=process_tree.die_with_parent,
            )
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        threading.Thread(target=end_with, args=(connection, child), daemon=True).start()
        code = child.wait()
        try:
            connection.sendall(b"%d\n" % (code if code >= 0 else 128 - code))
        except OSError:
            pass  # the proxy has ended


def find_peer(connection: socket.socket) -> int:
    """Returns the pid of the process that connected, as the kernel noted it."""
    pid, _, _ = _CREDENTIALS.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return int(pid)


def is_proxy(pid: int, container: str) -> bool:
    """Whether a process runs rank_proxy.py in this container. Raises OSError for a process that is gone.

    A process in another container of the job may set the same variables, but it cannot join the mounts of this one.
    """
    inside = process_tree.find(container, engine.CONTAINER_VARIABLE)
    with open(f"/proc/{pid}/cmdline") as stream:
        program = stream.read().split("\0")[1:2]
    return program == [CODE_DIR + PROXY] and _mounts_of(pid) == _mounts_of(process_tree.first_of(inside)[0])


def _mounts_of(pid: int) -> str:
    return os.readlink(f"/proc/{pid}/ns/mnt")


def receive(connection: socket.socket, variables: Sequence[str]) -> tuple[dict[str, str], list[int]]:
    """Receives a rank's variables, without others, and the descriptors of its proxy's stdout and stderr.

    Raises OSError, ValueError.
    """
    _, descriptors, _, _ = socket.recv_fds(connection, 1, DESCRIPTORS)
    try:
        return read_variables(connection, variables, descriptors), descriptors
    except (OSError, ValueError):
        for descriptor in descriptors:
            os.close(descriptor)
        raise


def read_variables(connection: socket.socket, variables: Sequence[str], descriptors: Sequence[int]) -> dict[str, str]:
    """Reads a rank's variables. Raises OSError, ValueError."""
    line, _ = wire.read_line(connection.fileno())
    found = {name: value for name, value in decode(line, dict[str, str]).items() if name in variables}
    if not all(len(value) <= LONGEST_VALUE and value.isprintable() for value in found.values()):
        raise ValueError("torchrun sets no such values")
    if len(descriptors) != DESCRIPTORS:
        raise ValueError("no stdout and stderr")
    return found


def end_with(connection: socket.socket, child: "subprocess.Popen[bytes]") -> None:
    """Ends a rank when its proxy ends first."""
    try:
        while connection.recv(64):
            pass
    except OSError:
        pass
    if child.poll() is None:
        child.send_signal(signal.SIGTERM)
