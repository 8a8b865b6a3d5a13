"""What one process listens to: a Unix socket, pipes, signals and the clock. It never waits for a single one of them.

Python 3.6 and later, standard library only.
"""

import os
import selectors
import signal
import socket
import time

import wire

LONGEST_WAIT_S = 1.0
BLOCKED_WAIT_S = 0.02  # while somebody does not take what is to go to him


class Connection(object):
    """One connection to the socket: lines come, messages go. `owner`: whatever it is the connection of."""

    def __init__(self, plug):
        self._plug = plug
        self._lines = wire.LineBuffer(limit=1 << 20)
        self.outbox = wire.Outbox(plug.fileno())
        self.owner = None
        self.is_open = True

    def fileno(self):
        return self._plug.fileno()

    def put(self, message):
        """Send a message, at once if that is possible."""
        if self.is_open:
            self.outbox.put(message)
            self.outbox.write()

    def read(self):
        """The lines that have come, and whether that was the end."""
        data = wire.read_now(self.fileno())
        return ([], False) if data is None else (self._lines.feed(data), not data)

    def close(self):
        if self.is_open:
            self.is_open = False
            self._plug.close()


class Hub(object):
    """Calls on_line(connection, line) and on_end(connection) for what comes over the socket."""

    def __init__(self, path, on_line, on_end):
        self._on_line, self._on_end = on_line, on_end
        self._selector = selectors.DefaultSelector()
        self._timers = {}
        self._connections = set()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(path)
        self._listener.listen(1024)
        self._listener.settimeout(0.0)
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)

    def watch_signals(self, callbacks):
        """Call one of {number: callback} after such a signal, from `step`."""
        source, sink = os.pipe()
        os.set_blocking(source, False)
        os.set_blocking(sink, False)
        for number in callbacks:
            signal.signal(number, lambda *_: None)  # Python notes them for the pipe only where they have a handler
        signal.set_wakeup_fd(sink)

        def read():
            for number in set(bytearray(wire.read_now(source) or b"")):
                if number in callbacks:
                    callbacks[number]()

        self.add(source, read)

    def add(self, descriptor, callback):
        """Call back whenever there is something to read."""
        self._selector.register(descriptor, selectors.EVENT_READ, callback)

    def remove(self, descriptor):
        self._selector.unregister(descriptor)

    def after(self, name, delay_s, callback):
        """Call back once, after a delay. One timer of a name replaces the other."""
        self._timers[name] = (time.monotonic() + delay_s, callback)

    def cancel(self, name):
        self._timers.pop(name, None)

    def has(self, name):
        """Whether there is a timer of this name."""
        return name in self._timers

    def step(self):
        """Wait until something happens, and call back for all that has."""
        wait_s = min([LONGEST_WAIT_S] + [due - time.monotonic() for due, _ in self._timers.values()])
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

    def flush(self, connections, timeout_s):
        """Wait until these have taken what is to go to them, or are gone."""
        give_up_at = time.monotonic() + timeout_s
        while any(one.outbox.pending for one in connections) and time.monotonic() < give_up_at:
            self.step()

    def drop(self, connection):
        """Hang up."""
        if connection in self._connections:
            self._connections.remove(connection)
            self._selector.unregister(connection)
            connection.close()

    def _accept(self):
        try:
            plug, _ = self._listener.accept()
        except BlockingIOError:
            return
        connection = Connection(plug)
        self._connections.add(connection)
        self._selector.register(connection, selectors.EVENT_READ, lambda: self._read(connection))

    def _read(self, connection):
        lines, ended = connection.read()
        for line in lines:
            self._on_line(connection, line)
        if ended and connection in self._connections:
            self.drop(connection)
            self._on_end(connection)
