"""Reserves ports on the head for one job."""

import socket
from collections.abc import Iterable


def claim(ports: Iterable[int]) -> tuple[int, socket.socket]:
    """Returns a free TCP port of `ports`, and an open socket that reserves it among this user's jobs.

    A launcher finds a free port and closes it; a moment later its own process, or another job's, binds it. The socket's
    name in Linux's abstract namespace belongs to one process at a time, and ends with it. Raises OSError.
    """
    for port in ports:
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
