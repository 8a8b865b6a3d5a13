"""Waiting for a condition instead of a time."""

import time
from collections.abc import Callable
from typing import Any

PAUSE_S = 0.01
SHARE = 5  # a condition that costs processor time is asked more rarely: what is waited for needs the processor, too


def until(condition: Callable[[], Any], what: object = "", *, timeout_s: float = 60.0) -> Any:
    """Wait for something that is true, and return it. what: what is said where it does not come."""
    deadline = time.monotonic() + timeout_s
    while True:
        used = time.thread_time()
        if found := condition():
            return found
        assert time.monotonic() < deadline, what
        time.sleep(max(PAUSE_S, SHARE * (time.thread_time() - used)))
