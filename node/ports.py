"""Chooses a port on the head for one job."""

import random
import socket
from collections.abc import Sequence


def choose(ports: Sequence[int]) -> int:
    """Returns any free TCP port of `ports`. Raises OSError if there is none.

    Any, because another job may start at this moment, and rank 0 may listen on another node, where the default port
    may be in use.
    """
    for port in random.sample(ports, len(ports)):
        try:
            with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as trial:
                trial.bind(("", port))
        except OSError:
            continue
        return port
    raise OSError(f"none of the ports that a job may use is free: {ports}")
