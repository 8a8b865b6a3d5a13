"""What the node-side programs say to each other: one JSON object a line.

Between a role's program (role.py, on any node) and its proxy (ssh_proxy.py, on the head), over ssh:
    down  {"command": [...], "env": {...}, "cwd": "...", "job": "..."}    once; then nothing: its end means stop
    up    {"started": pid}  {"line": "..."}  {"exit": code, "signal": number or null}
Between proxies (and the scheduler's role.py) and supervise.py, over its Unix socket:
    up    {"role": ..., "host": ...} first; then the same three
Between the user's machine and supervise.py, over ssh:
    down  the job (see supervise.py), then perhaps {"stop": true}; its end means stop as well
    up    {"line": "..."} for the reader, {"alive": true} in silence, and at last {"result": {...}}

Python 3.6 and later, standard library only.
"""

import json
import os


def encode(message):
    """One message as the bytes of one line."""
    return json.dumps(message).encode("utf-8") + b"\n"


class LineBuffer(object):
    """Cuts a stream of bytes into lines, however it arrives. A line over `limit` bytes is cut there."""

    def __init__(self, limit=1 << 16):
        self._rest = b""
        self._limit = limit

    def feed(self, data):
        """Take bytes; return the lines, without their ends, that are complete now."""
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()
        while len(self._rest) > self._limit:
            lines.append(self._rest[: self._limit])
            self._rest = self._rest[self._limit :]
        return lines

    def flush(self):
        """Return what is left at the end of the stream, as a list of at most one line."""
        rest, self._rest = self._rest, b""
        return [rest] if rest else []


def text(line):
    """Decode a line of output. Progress bars redraw with carriage returns: what is left of the last one is shown."""
    return line.rstrip(b"\r").rsplit(b"\r", 1)[-1].decode("utf-8", "replace")


def write_all(descriptor, data):
    """Write all bytes to a file descriptor."""
    while data:
        data = data[os.write(descriptor, data) :]
