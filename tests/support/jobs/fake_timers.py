"""The event loop's timers, with a clock that only the test moves."""

import time
from collections.abc import Callable

import pytest

from node.supervisor.event_loop import EventLoop


class Timers(EventLoop):
    """Stands in for an EventLoop; `now`: seconds since it was made."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._timers: dict[str, tuple[float, Callable[[], None]]] = {}
        self.now = 0.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)

    def wait(self, seconds: float) -> None:
        """Lets time pass, then calls the callbacks of all due timers, the earliest first."""
        self.now += seconds
        for name, (due, callback) in sorted(self._timers.items(), key=lambda item: item[1][0]):
            if due <= self.now:
                del self._timers[name]
                callback()
