"""Polling with growing pauses and a time limit."""

import time
from collections.abc import Callable
from typing import TypeVar

FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 10.0
_GROWTH = 1.3

T = TypeVar("T")


def poll(check: Callable[[], T | None], *, timeout_s: float) -> T | None:
    """Calls `check` until it returns a value other than None, and returns that; None after timeout_s seconds.

    Pauses grow from FIRST_PAUSE_S to LONGEST_PAUSE_S. The last call comes at the end of timeout_s.
    """
    give_up_at = time.monotonic() + timeout_s
    pause_s = FIRST_PAUSE_S
    while True:
        found = check()
        left_s = give_up_at - time.monotonic()
        if found is not None or left_s <= 0:
            return found
        time.sleep(min(pause_s, left_s))
        pause_s = min(pause_s * _GROWTH, LONGEST_PAUSE_S)
