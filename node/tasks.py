"""The background work of a program, of a job, or of one of its attempts."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any


class Tasks:
    """Coroutines and timers that end together. fail(error): called if one of them fails."""

    def __init__(self, loop: asyncio.AbstractEventLoop, fail: Callable[[BaseException], None]) -> None:
        self._loop, self._fail = loop, fail
        self._running: set[asyncio.Task[Any]] = set()
        self._is_over = False

    def begin(self, work: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        """Runs a coroutine."""
        task = self._loop.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._finish)
        if self._is_over:
            task.cancel()
        return task

    def later(self, delay_s: float, act: Callable[[], None]) -> asyncio.TimerHandle:
        """Calls `act` after a delay."""
        return self._loop.call_later(delay_s, self.call, act)

    def call(self, act: Callable[[], None]) -> None:
        """Calls `act` now, unless they have ended."""
        if self._is_over:
            return
        try:
            act()
        except Exception as error:  # noqa: BLE001 - it is passed on
            self._fail(error)

    def end(self) -> None:
        """Ends all of them."""
        self._is_over = True
        for task in self._running:
            task.cancel()

    def _finish(self, task: "asyncio.Task[Any]") -> None:
        self._running.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._fail(error)
