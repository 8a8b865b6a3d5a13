"""The socket on which the running program answers `set` and `show`. Only root can use it.

Python 3.6 and later, standard library only.
"""

import json
import os
import socket
import time
from typing import Any, Dict

from node.lease import system

SOCKET = "lease.sock"


def open_control() -> Any:
    """Returns the socket for `set` and `show`, which only root can use; None if it cannot be created."""
    path = os.path.join(system.RUN, SOCKET)
    control = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        draft = path + ".new"
        if os.path.exists(draft):
            os.unlink(draft)
        before = os.umask(0o177)
        try:
            control.bind(draft)
        finally:
            os.umask(before)
        control.listen(8)
        os.rename(draft, path)  # once it exists, it answers
    except OSError as error:
        system.say("cannot listen: {}".format(error))
        return None
    return control


def ask(message: Dict[str, Any]) -> Dict[str, Any]:
    """Asks the running program, and returns its answer. Raises OSError, ValueError."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
        peer.settimeout(10.0)
        peer.connect(os.path.join(system.RUN, SOCKET))
        peer.sendall(json.dumps(message).encode("utf-8"))
        said = b""
        while not said.endswith(b"\n"):
            piece = peer.recv(4096)
            if not piece:
                break
            said += piece
    return dict(json.loads(said.decode("utf-8")))


def ask_soon(message: Dict[str, Any]) -> Dict[str, Any]:
    """Asks the program while it starts, and returns its answer. Raises OSError, ValueError."""
    deadline = system.boot_clock() + 10.0
    while not os.path.exists(os.path.join(system.RUN, SOCKET)) and system.boot_clock() < deadline:
        time.sleep(0.05)
    return ask(message)
