"""An event loop over a Unix socket, pipes, signals and timers."""

import os
import selectors
import signal
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from node import wire

LONGEST_WAIT_S = 1.0
SETTLE_S = 2.0
BLOCKED_WAIT_S = 0.02  # while a reader does not accept pending output


class Connection:
    """A connection to the socket: receives lines, sends messages. owner: set by the loop's user."""

    def __init__(self, plug: socket.socket) -> None:
        self._plug = plug
        self._lines = wire.LineBuffer(limit=1 << 20)
        self.outbox = wire.Outbox(plug.fileno())
        self.owner: Any = None
        self.is_open = True

    def fileno(self) -> int:
        """The descriptor, for a selector."""
        return self._plug.fileno()

    def put(self, message: Any) -> None:
        """Sends a message, immediately if possible."""
        if self.is_open:
            self.outbox.put(message)
            self.outbox.write()

    def read(self) -> tuple[list[bytes], bool]:
        """Returns the received lines, and whether the stream has ended."""
        data = wire.read_now(self.fileno())
        return ([], False) if data is None else (self._lines.feed(data), not data)

    def close(self) -> None:
        """Closes the connection."""
        if self.is_open:
            self.is_open = False
            self._plug.close()


class EventLoop:
    """Calls on_line(connection, line) and on_end(connection) for connections to the socket."""

    def __init__(
        self, path: str, on_line: Callable[[Connection, bytes], None], on_end: Callable[[Connection], None]
    ) -> None:
        self._on_line, self._on_end = on_line, on_end
        self._selector = selectors.DefaultSelector()
        self._timers: dict[str, tuple[float, Callable[[], None]]] = {}
        self._connections: set[Connection] = set()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(path)
        self._listener.listen(1024)
        self._listener.settimeout(0.0)
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)

    def watch_signals(self, callbacks: Mapping[int, Callable[[], None]]) -> None:
        """After a signal, call its callback from `step`. callbacks: by signal number."""
        source, sink = os.pipe()
        os.set_blocking(source, False)
        os.set_blocking(sink, False)
        for number in callbacks:
            signal.signal(number, lambda *_: None)  # without a handler Python writes nothing to the pipe
        signal.set_wakeup_fd(sink)

        def read() -> None:
            for number in set(bytearray(wire.read_now(source) or b"")):
                if number in callbacks:
                    callbacks[number]()

        self.add(source, read)

    def adopt(self, plug: socket.socket) -> Connection:
        """Serves a connection that did not come over the socket."""
        connection = Connection(plug)
        self._connections.add(connection)
        self._selector.register(connection, selectors.EVENT_READ, lambda: self._read(connection))
        return connection

    def add(self, descriptor: int, callback: Callable[[], None]) -> None:
        """Calls `callback` whenever the descriptor has data to read."""
        self._selector.register(descriptor, selectors.EVENT_READ, callback)

    def remove(self, descriptor: int) -> None:
        """Stops watching a descriptor."""
        self._selector.unregister(descriptor)

    def after(self, name: str, delay_s: float, callback: Callable[[], None]) -> None:
        """Calls `callback` once after a delay. Replaces a timer of the same name."""
        self._timers[name] = (time.monotonic() + delay_s, callback)

    def cancel(self, name: str) -> None:
        """Stops a timer if it exists."""
        self._timers.pop(name, None)

    def cancel_all(self) -> None:
        """Stops all timers."""
        self._timers.clear()

    def has(self, name: str) -> bool:
        """Whether a timer of this name exists."""
        return name in self._timers

    def settle(self) -> None:
        """Handles all events that have arrived, until there are no more; at most SETTLE_S seconds."""
        give_up_at = time.monotonic() + SETTLE_S
        while time.monotonic() < give_up_at and self._selector.select(timeout=0.0):
            self.step()

    def step(self, longest_wait_s: float = LONGEST_WAIT_S) -> None:
        """Waits for an event, and calls the callbacks of all events that have happened."""
        wait_s = min([longest_wait_s] + [due - time.monotonic() for due, _ in self._timers.values()])
        if any(connection.outbox.pending for connection in self._connections):
            wait_s = min(wait_s, BLOCKED_WAIT_S)
        for key, _ in self._selector.select(timeout=max(0.0, wait_s)):
            key.data()
        for connection in list(self._connections):
            connection.outbox.write()
        now = time.monotonic()
        for name in [name for name, (due, _) in self._timers.items() if due <= now]:
            if name in self._timers:
                self._timers.pop(name)[1]()

    def flush(self, connections: Iterable[Connection], timeout_s: float) -> None:
        """Waits at most timeout_s seconds until these connections have accepted their output or are closed."""
        give_up_at = time.monotonic() + timeout_s
        waiting = list(connections)
        while any(one.outbox.pending for one in waiting) and time.monotonic() < give_up_at:
            self.step()

    def drop(self, connection: Connection) -> None:
        """Closes a connection and forgets it."""
        if connection in self._connections:
            self._connections.remove(connection)
            self._selector.unregister(connection)
            connection.close()

    def _accept(self) -> None:
        try:
            plug, _ = self._listener.accept()
        except BlockingIOError:
            return
        self.adopt(plug)

    def _read(self, connection: Connection) -> None:
        lines, ended = connection.read()
        for line in lines:
            self._on_line(connection, line)
        if ended and connection in self._connections:
            self.drop(connection)
            self._on_end(connection)
