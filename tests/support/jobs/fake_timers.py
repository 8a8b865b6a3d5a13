"""Background work, with a clock that only the test moves."""

import asyncio
import time
from collections.abc import Iterator

import pytest

from node.tasks import Tasks


class FakeLoop(asyncio.SelectorEventLoop):
    """An event loop; `now`: seconds since it was made."""

    now = 0.0

    def time(self) -> float:
        return self.now


def fail(error: BaseException) -> None:
    raise error


class Timers(Tasks):
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._clock = FakeLoop()
        super().__init__(self._clock, fail)
        monkeypatch.setattr(time, "monotonic", self._clock.time)

    @property
    def now(self) -> float:
        return self._clock.now

    def wait(self, seconds: float) -> None:
        """Lets time pass, and then does what is due."""
        self._clock.run_until_complete(asyncio.sleep(0))  # tasks that have just begun
        self._clock.now += seconds
        for _ in range(3):
            self._clock.run_until_complete(asyncio.sleep(0))

    def close(self) -> None:
        self.end()
        while self._running:
            self._clock.run_until_complete(asyncio.sleep(0))
        self._clock.close()


@pytest.fixture
def timers(monkeypatch: pytest.MonkeyPatch) -> Iterator[Timers]:
    made = Timers(monkeypatch)
    yield made
    made.close()
