"""Starts, on the host, the ranks of a torchrun in a container: each by role.py, in a container of its own.

In place of each rank, torchrun starts bootstrap/node/containers/rank_proxy.py, which connects to this program. If the
proxy ends, its rank is ended, as torchrun would end its process. This program ends with the role.py that started it.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence

from bootstrap.node import process_tree
from train.node import wire
from train.node.programs import launched_words

MOST_DESCRIPTORS = 2


def serve(variables: str, path: str) -> int:
    """Serves proxies at the socket `path` until this process is killed. variables: as for `role launched`."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(128)
        wire.write_all(1, b"ready\n")
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=run_rank, args=(connection, variables.split(",")), daemon=True).start()


def run_rank(connection: socket.socket, variables: Sequence[str]) -> None:
    """Runs the rank of a proxy to its end, and sends the proxy its exit code."""
    with connection:
        try:
            given, descriptors = receive(connection)
        except (OSError, ValueError):  # the proxy was killed meanwhile
            return
        try:
            child = subprocess.Popen(
                launched_words(variables, python=sys.executable),
                env={**os.environ, **given},
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


def receive(connection: socket.socket) -> tuple[dict[str, str], list[int]]:
    """Receives the variables of a proxy, and the descriptors of its stdout and stderr. Raises OSError, ValueError."""
    first, descriptors, _, _ = socket.recv_fds(connection, 1, MOST_DESCRIPTORS)
    if not first or len(descriptors) != MOST_DESCRIPTORS:
        raise ValueError("no descriptors")
    line, _ = wire.read_line(connection.fileno())
    return {str(name): str(value) for name, value in json.loads(line).items()}, descriptors


def end_with(connection: socket.socket, child: "subprocess.Popen[bytes]") -> None:
    """Ends a rank when its proxy ends first."""
    try:
        while connection.recv(64):
            pass
    except OSError:
        pass
    if child.poll() is None:
        child.send_signal(signal.SIGTERM)
