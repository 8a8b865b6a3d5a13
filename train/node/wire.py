"""What the node-side programs say to each other: one JSON object a line.

Between a role's program (role.py, on any node) and supervise.py, over ssh and ssh_proxy.py or over a Unix socket:
    up    {"role": ..., "host": ...}   first; from ssh_proxy.py where that stands between, with "by": its process
          {"started": pid}  {"line": "..."}  {"alive": true}  {"rank": n}  {"bound": [address, port]}
          {"blocked": ["10.0.0.5:34567", ...]}  the answer to "reach"
          {"look": {"cpu_s", "bytes", "stopped"}}  the answer to "look", see processes.describe_use
          {"unread": text}   the host cannot read the job's data
          {"exit": code, "signal": number or null, "ended": whether we ended it, "at": which of the commands,
           "left": [[pid, command line], ...], "why": text or null}   the last one
          {"lost": text}   from ssh_proxy.py: ssh ended before the process did
    down  the order of the process (roster.py), once
          {"alive": true} now and then: silence means that nobody is there any more, and so does the end
          {"reach": [[address, port], ...]}  {"look": true}  {"end": true}
Between jobs.py and supervise.py, over the same socket:
    up    {"watch": true}  {"stop": true}
    down  {"result": {...}}   once, at the job's end
Between the user's machine and jobs.py, over ssh: see there.

Python 3.6 and later, standard library only.
"""

import json
import os
import time

LONGEST_REST_S = 0.1
REST_STEP_S = 0.02


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


class Outbox(object):
    """What is to go out: written as the other side takes it, so that nothing here ever waits for it."""

    def __init__(self, descriptor):
        self.descriptor = descriptor
        self.pending = bytearray()
        self.broken = False
        os.set_blocking(descriptor, False)

    def put(self, message):
        """Append one message."""
        self.pending += encode(message)

    def pass_on(self, data):
        """Append bytes of messages."""
        self.pending += data

    def write(self):
        """Write as much as is taken now."""
        try:
            while self.pending:
                del self.pending[: os.write(self.descriptor, bytes(self.pending[: 1 << 16]))]
        except BlockingIOError:
            pass
        except OSError:  # nobody is there any more
            self.broken = True
            self.pending = bytearray()


class Pace(object):
    """For how long to let output gather before the next look at it.

    A line after a silence goes on at once. Where line follows upon line, they go on together, in fewer and larger
    pieces: every piece wakes all that carries it to the user's side, beside the processes that train.
    """

    def __init__(self):
        self._came_at = self._rest_s = self._until = 0.0

    def note(self):
        """Some has come."""
        now = time.monotonic()
        is_stream = now < self._came_at + 2 * LONGEST_REST_S
        self._rest_s = min(self._rest_s + REST_STEP_S, LONGEST_REST_S) if is_stream else 0.0
        self._came_at, self._until = now, now + self._rest_s

    @property
    def rest_s(self):
        """How much longer to wait."""
        return max(0.0, self._until - time.monotonic())


def read_now(descriptor):
    """What can be read: bytes, none of them at the end, None when there is nothing just now."""
    try:
        return os.read(descriptor, 1 << 16)
    except (BlockingIOError, InterruptedError):
        return None
    except OSError:  # reset by the other side
        return b""


def text(line):
    """Decode a line of output. Progress bars redraw with carriage returns: what is left of the last one is shown."""
    return line.rstrip(b"\r").rsplit(b"\r", 1)[-1].decode("utf-8", "replace")


def write_all(descriptor, data):
    """Write all bytes to a file descriptor."""
    while data:
        data = data[os.write(descriptor, data) :]


def read_order(descriptor):
    """The first line that comes, as an order, and what came with it. Raises ConnectionError, OSError."""
    data = b""
    while b"\n" not in data:
        piece = os.read(descriptor, 1 << 16)
        if not piece:
            raise ConnectionError("there came no order")
        data += piece
    line, _, rest = data.partition(b"\n")
    return json.loads(line.decode("utf-8")), rest
