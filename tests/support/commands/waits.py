"""Waiting for a condition instead of a time."""

import time
from collections.abc import Callable
from typing import Any


def until(condition: Callable[[], Any], what: object = "", *, timeout_s: float = 60.0) -> Any:
    """Wait for something that is true, and return it. what: what is said where it does not come."""
    deadline = time.monotonic() + timeout_s
    while not (found := condition()):
        assert time.monotonic() < deadline, what
        time.sleep(0.01)
    return found
