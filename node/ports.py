"""Reserves ports on the head for one job."""

import random
import socket
from collections.abc import Sequence


def claim(ports: Sequence[int]) -> tuple[int, socket.socket]:
    """Returns any free TCP port of `ports`, and an open socket that reserves it among this user's jobs.

    Any, because rank 0 may listen on another node, where PyTorch's default port may be in use. A launcher finds a free
    port and closes it; a moment later its own process, or another job's, binds it. The socket's name in Linux's
    abstract namespace belongs to one process at a time, and ends with it. Raises OSError.
    """
    for port in random.sample(ports, len(ports)):
        claimed = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            claimed.bind(f"\0cluster-port-{port}")
            with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as trial:  # in use: a launcher would take the next
                trial.bind(("", port))
        except OSError:
            claimed.close()
            continue
        return port, claimed
    raise OSError(f"none of the ports that a job may use is free: {ports}")
