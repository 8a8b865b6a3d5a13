"""The current progress bars of a job's processes: kept in memory, and sent to those who follow the job.

They are not in the job's log, which has the last state of each bar as a line.
"""

import asyncio
from collections.abc import Collection

from node import wire
from node.wire import News

SEND_EVERY_S = 0.5
MOST_CHARACTERS = 80_000  # in a message, whose limit is 1 MiB; a character is written in up to 12 bytes


class Bars:
    """The bars of one job. watchers: the connections to send them to, all at once, at most every SEND_EVERY_S."""

    def __init__(self, watchers: Collection[asyncio.StreamWriter]) -> None:
        self._watchers = watchers
        self._bars: dict[int, str] = {}  # by the process's number
        self._is_due = False

    def put(self, number: int, text: str) -> None:
        """Sets a process's bar; "": it has none any longer."""
        if text:
            self._bars[number] = text
        else:
            self._bars.pop(number, None)
        self._send_soon()

    def end(self, number: int) -> list[str]:
        """Forgets a process, which has ended. Returns the rows of its bar, if it could not write them as lines."""
        text = self._bars.get(number, "")
        if text:
            self.put(number, "")
        return text.split("\n") if text else []

    def greet(self, watcher: asyncio.StreamWriter) -> None:
        """Sends the bars to a new watcher."""
        if self._bars:
            watcher.write(wire.encode(self._tell()))

    def _send_soon(self) -> None:
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_later(SEND_EVERY_S, self._send)

    def _send(self) -> None:
        self._is_due = False
        news = wire.encode(self._tell())
        for watcher in self._watchers:
            if watcher.transport.get_write_buffer_size():  # it accepts nothing now, and gets only the newest bars
                self._send_soon()
            else:
                watcher.write(news)

    def _tell(self) -> News:
        bars, room = {}, MOST_CHARACTERS
        for number, text in sorted(self._bars.items()):
            room -= len(text)
            if room >= 0:
                bars[number] = text
        return News(bars=bars)
