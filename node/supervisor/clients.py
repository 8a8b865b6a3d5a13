"""The programs on a job's socket: engines' launchers, jobs.py, and those who follow the job and so get its news.

The news are the current progress bars of the job's processes; the job's log has only the last state of each, as a line.
The end of the connection is that of the job.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from foundation.decode import decode
from node import wire
from node.job_folder import short_path
from node.supervisor.agents import wait_for
from node.wire import News, Request, Watch

SEND_EVERY_S = 0.5
MOST_CHARACTERS = 80_000  # in a message, whose limit is 1 MiB; a character is written in up to 12 bytes
LONGEST_REQUEST = 1 << 20
WATCHERS_END_S = 5.0


class Clients:
    """The clients of one job.

    answer(message): carries out a request, and returns the answer: b"" for none, None to refuse it. fail: called for an
    error in it.
    """

    def __init__(self, answer: Callable[[Any], Awaitable[bytes | None]], fail: Callable[[BaseException], None]) -> None:
        self._answer, self._fail = answer, fail
        self._watchers: set[asyncio.StreamWriter] = set()
        self._bars: dict[int, tuple[str, float]] = {}  # and when each was printed, by the process's number
        self._is_due = False

    async def open(self, path: str) -> None:
        """Opens the socket. Raises OSError."""
        try:
            with short_path(path) as short:
                await asyncio.start_unix_server(self._serve, short, limit=LONGEST_REQUEST, backlog=1024)
        except OSError as error:  # some network file systems have no sockets
            raise OSError(error.errno, error.strerror, path) from error

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carries out the requests of one client, one after another."""
        try:
            while line := await reader.readline():
                message: Any = decode(line, Request)  # type: ignore[arg-type] # a union
                if isinstance(message, Watch):
                    self._watchers.add(writer)
                    answer: bytes | None = wire.encode(self._make_news()) if self._bars else b""
                else:
                    answer = await self._answer(message)
                if answer is None:
                    break
                writer.write(answer)
        except (ConnectionError, ValueError):
            pass  # it has gone, or is not one of our programs
        except Exception as error:  # noqa: BLE001 - as in a callback
            self._fail(error)
        finally:
            self._watchers.discard(writer)
            writer.close()

    def put_bar(self, number: int, text: str) -> None:
        """Sets a process's bar; "": it has none any longer."""
        if text:
            self._bars[number] = text, round(time.time(), 3)
        else:
            self._bars.pop(number, None)
        self._send_soon()

    def end_bar(self, number: int) -> list[str]:
        """Forgets a process, which has ended. Returns the rows of its bar, if it could not write them as lines."""
        text, _ = self._bars.get(number, ("", 0.0))
        if text:
            self.put_bar(number, "")
        return text.split("\n") if text else []

    def _send_soon(self) -> None:
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_later(SEND_EVERY_S, self._send)

    def _send(self) -> None:
        self._is_due = False
        news = wire.encode(self._make_news())
        for watcher in self._watchers:
            if watcher.transport.get_write_buffer_size():  # it accepts nothing now, and gets only the newest bars
                self._send_soon()
            else:
                watcher.write(news)

    def _make_news(self) -> News:
        bars, room = {}, MOST_CHARACTERS
        for number, bar in sorted(self._bars.items()):
            room -= len(bar[0])
            if room >= 0:
                bars[number] = bar
        return News(bars=bars)

    async def finish(self) -> None:
        """Ends the connections of those who follow the job, in limited time."""
        watchers = list(self._watchers)
        for watcher in watchers:
            watcher.close()
        await wait_for([asyncio.ensure_future(watcher.wait_closed()) for watcher in watchers], WATCHERS_END_S)
