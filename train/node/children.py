"""The programs of ours that a supervisor starts on the head: launch.py, and ssh_proxy.py where that has none.

Python 3.6 and later, standard library only.
"""

import json
import os

import launching
import meeting
import wire


class Children(object):
    """They and what they say. say(role or None, text): takes a line of output; fail(): launch.py has failed to."""

    def __init__(self, order, hub, say, fail):
        self._order, self._hub, self._say, self._fail = order, hub, say, fail
        self._running = []  # (process, its role or None)
        self._launcher = None
        self.takes_more = True

    def start_setups(self):
        """Reach all hosts for the set-up commands. Raises OSError."""
        for host in self._order["hosts"]:
            self._watch(launching.start_setup(self._order, host), None)

    def start_launcher(self, take_in):
        """Start launch.py; take_in(process): makes the role that its output belongs to. Raises OSError."""
        self._launcher, is_launcher = launching.start(self._order)
        self._watch(self._launcher, take_in(self._launcher) if is_launcher else None)

    def _watch(self, process, role):
        source, lines = process.stdout.fileno(), wire.LineBuffer()
        self._running.append((process, role))

        def read():
            data = os.read(source, 1 << 16)
            for line in lines.feed(data) if data else lines.flush():
                if line.startswith(meeting.WAITING) and process is self._launcher:
                    self._reach(json.loads(line[len(meeting.WAITING) :].decode("utf-8")))
                elif line.startswith(meeting.FAILED) and process is self._launcher:
                    self._fail()
                else:
                    self._say(role, wire.text(line))
            if not data:
                self._hub.remove(source)
                process.stdout.close()

        self._hub.add(source, read)

    def _reach(self, waiting):
        """A process that mpirun has started on another host waits to be reached."""
        if self.takes_more:
            self._watch(launching.start_join(self._order, waiting), None)

    def take_ended(self):
        """Those that have ended since the last time: a list of (process, its role or None, whether it is launch.py)."""
        ended = [entry for entry in self._running if entry[0].poll() is not None]
        self._running = [entry for entry in self._running if entry not in ended]
        return [(process, role, process is self._launcher) for process, role in ended]

    def kill_launcher(self):
        """End launch.py at once."""
        if self._launcher is not None and self._launcher.poll() is None:
            self._launcher.kill()
