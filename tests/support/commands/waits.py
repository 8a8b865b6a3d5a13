"""Waits for a condition instead of a fixed time."""

import time
from collections.abc import Callable
from typing import Any

PAUSE_S = 0.01
# A condition that takes long to evaluate is checked less often, because the awaited work needs the processor, too.
SHARE, OTHERS_SHARE = 15, 2


def until(condition: Callable[[], Any], what: object = "", *, timeout_s: float = 60.0) -> Any:
    """Waits until the condition is true, and returns its value. what: the message if it never is."""
    deadline = time.monotonic() + timeout_s
    while True:
        began, used = time.monotonic(), time.thread_time()
        if found := condition():
            return found
        asked = time.monotonic()
        assert asked < deadline, what
        # Time that this thread did not use itself may have gone to others, such as a command or the sandbox.
        time.sleep(max(PAUSE_S, SHARE * (time.thread_time() - used), OTHERS_SHARE * (asked - began)))
