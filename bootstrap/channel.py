"""Reading a command's channel to its end: its other side may print without end, or close its output and go on."""

import math
import time
from typing import Any

from bootstrap.explain import NO_EXIT_CODE

MAX_OUTPUT_BYTES = 16 << 20


def wait_for_exit(channel: Any, *, timeout_s: float) -> int:
    """The command's exit code; NO_EXIT_CODE where a signal ended it, the connection broke or it took too long.

    channel: paramiko's, whose own recv_exit_status waits without an end.
    """
    if not channel.status_event.wait(timeout_s):
        return NO_EXIT_CODE
    return int(channel.recv_exit_status())


def drain(channel: Any, *, timeout_s: float | None) -> tuple[str, str]:
    """What a command prints on stdout and on stderr, to the end of both; timeout_s: how long that may take.

    stderr fits paramiko's window while stdout is read. Raises TimeoutError, which says why, as for too much output.
    """
    deadline = math.inf if timeout_s is None else time.monotonic() + timeout_s
    said = []
    for receive in (channel.recv, channel.recv_stderr):
        data = bytearray()
        while True:
            left_s = deadline - time.monotonic()
            channel.settimeout(None if left_s == math.inf else max(left_s, 0.01))
            try:
                piece = receive(1 << 16)
            except TimeoutError:
                piece = None
            if piece is None or time.monotonic() > deadline:
                raise TimeoutError(f"it did not end within {timeout_s:.0f} s")
            if not piece:
                break
            data += piece
            if len(data) > MAX_OUTPUT_BYTES:
                raise TimeoutError(f"it printed more than {MAX_OUTPUT_BYTES >> 20} MiB")
        said.append(data.decode("utf-8", "replace"))
    return said[0], said[1]
