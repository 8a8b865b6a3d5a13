"""Waiting for a condition instead of a time."""

import time
from collections.abc import Callable
from typing import Any

PAUSE_S = 0.01
# A condition that takes time is asked more rarely: what is waited for needs the processor, too.
SHARE, OTHERS_SHARE = 15, 2


def until(condition: Callable[[], Any], what: object = "", *, timeout_s: float = 60.0) -> Any:
    """Wait for something that is true, and return it. what: what is said where it does not come."""
    deadline = time.monotonic() + timeout_s
    while True:
        began, used = time.monotonic(), time.thread_time()
        if found := condition():
            return found
        asked = time.monotonic()
        assert asked < deadline, what
        # Others, such as a command or the sandbox, use what this thread does not.
        time.sleep(max(PAUSE_S, SHARE * (time.thread_time() - used), OTHERS_SHARE * (asked - began)))
