"""A step of the set-up as users see it: its start, and its end with the time that it took."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from foundation.progress import Event, Report


@contextmanager
def step(report: Report, what: str, *, where: str | None = None, done: str | None = None) -> Iterator[None]:
    """Reports the start and the end of a step. done: what it is called at its end, if not `what`."""
    started = time.monotonic()
    report(Event(kind="start", what=what, where=where))
    try:
        yield
    except BaseException:
        report(Event(kind="failed", what=what, where=where))
        raise
    report(Event(kind="done", what=done or what, where=where, duration_s=time.monotonic() - started))
