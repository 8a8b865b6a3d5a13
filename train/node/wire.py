"""What the node programs of a job say to each other: one JSON object a line, over pipes, ssh and Unix sockets."""

import json
import os
import time
from typing import Any, Optional

from msgspec import Struct, to_builtins

from train.job.protocol import JobResult, RunSettings

WAITING = b"CLUSTER-ROLE "  # on mpirun's stdout, before the Message of a role that waits to be called
FAILED = b"CLUSTER-FAILED "  # on launch.py's stdout, when a command that it ran has failed
LONGEST_REST_S = 0.1
REST_STEP_S = 0.02
Found = tuple[int, str]
"""A process: its pid and its command line."""


class RoleOrder(RunSettings, kw_only=True):
    """What role.py runs on a host: the first line that it gets.

    address: the host's; None where it has none in the job. launched: the DMLC_... variables that launch.py set.
    commands: one after the other. data_url: what it tries to read, to see whether its host can.
    """

    job: str
    role: str
    host: str
    address: Optional[str]
    launched: dict[str, str]
    commands: tuple[tuple[str, ...], ...]
    cwd: str
    env: dict[str, str]
    setup: Optional[str]
    data_url: Optional[str] = None


class Command(Struct, kw_only=True, omit_defaults=True):
    """What the supervisor tells role.py after that.

    alive: sent every few seconds; silence, or the end of the stream, means that the supervisor is gone. reach: TCP
    ports to try. look: report what the processes use. end: end the process.
    """

    alive: bool = False
    reach: Optional[tuple[tuple[str, int], ...]] = None
    look: bool = False
    end: bool = False


class Use(Struct, kw_only=True):
    """What the processes of a role have used by now, and which of them are stopped."""

    cpu_s: float
    bytes: int
    stopped: tuple[Found, ...]


class Message(Struct, kw_only=True, omit_defaults=True):
    """A line to the supervisor, over its socket.

    role, host, launched: a process introduces itself; by: the process of ssh_proxy.py that leads to it; path: the
    socket on its host at which it waits to be called.
    exit: the process has ended, by signal `signal`, at the command with the number `at`; ended: we ended it; left: what
    does not end; why: what we have to say of it.
    lost: from ssh_proxy.py: ssh ended before the process did. unread: the host cannot read the job's data.
    blocked: the ports that cannot be reached, as "10.0.0.5:34567". bound: ps-lite's address and port.
    watch, stop: from jobs.py.
    """

    exit: Optional[int] = None
    line: Optional[str] = None
    alive: bool = False
    role: Optional[str] = None
    host: Optional[str] = None
    launched: dict[str, str] = {}
    by: Optional[int] = None
    path: Optional[str] = None
    started: Optional[int] = None
    rank: Optional[int] = None
    bound: Optional[tuple[str, int]] = None
    blocked: Optional[tuple[str, ...]] = None
    look: Optional[Use] = None
    unread: Optional[str] = None
    lost: Optional[str] = None
    signal: Optional[int] = None
    ended: bool = False
    at: int = 0
    left: tuple[Found, ...] = ()
    why: Optional[str] = None
    watch: bool = False
    stop: bool = False


class Ended(Struct, kw_only=True):
    """The supervisor's answer to `watch`, at the job's end."""

    result: JobResult


def encode(message: Any) -> bytes:
    """One message as the bytes of one line, in ASCII: what is no UTF-8 in it, as in a file's name, stays as it is."""
    return json.dumps(to_builtins(message)).encode("ascii") + b"\n"


class LineBuffer:
    """Cuts a stream of bytes into lines, however it arrives. A line over `limit` bytes is cut there."""

    def __init__(self, limit: int = 1 << 16) -> None:
        self._rest = b""
        self._limit = limit

    def feed(self, data: bytes) -> list[bytes]:
        """Take bytes; return the lines, without their ends, that are complete now."""
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()
        while len(self._rest) > self._limit:
            lines.append(self._rest[: self._limit])
            self._rest = self._rest[self._limit :]
        return lines

    def flush(self) -> list[bytes]:
        """Return what is left at the end of the stream, as a list of at most one line."""
        rest, self._rest = self._rest, b""
        return [rest] if rest else []


class Outbox:
    """Output to a file descriptor that is written as the other side takes it: nothing here ever blocks."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.pending = bytearray()
        self.broken = False
        os.set_blocking(descriptor, False)

    def put(self, message: Any) -> None:
        """Append one message."""
        self.pending += encode(message)

    def pass_on(self, data: bytes) -> None:
        """Append bytes of messages."""
        self.pending += data

    def write(self) -> None:
        """Write as much as is taken now."""
        try:
            while self.pending:
                del self.pending[: os.write(self.descriptor, bytes(self.pending[: 1 << 16]))]
        except BlockingIOError:
            pass
        except OSError:  # nobody is there any more
            self.broken = True
            self.pending = bytearray()


class Pace:
    """For how long to let output gather before the next look at it.

    A line after a silence goes on at once. Where line follows upon line, they go on together, in fewer and larger
    pieces: every piece wakes all that carries it to the user's side, beside the processes that train.
    """

    def __init__(self) -> None:
        self._came_at = self._rest_s = self._until = 0.0

    def note(self) -> None:
        """Some has come."""
        now = time.monotonic()
        is_stream = now < self._came_at + 2 * LONGEST_REST_S
        self._rest_s = min(self._rest_s + REST_STEP_S, LONGEST_REST_S) if is_stream else 0.0
        self._came_at, self._until = now, now + self._rest_s

    @property
    def rest_s(self) -> float:
        """How much longer to wait."""
        return max(0.0, self._until - time.monotonic())


def read_now(descriptor: int) -> Optional[bytes]:
    """What can be read: bytes, none of them at the end, None when there is nothing just now."""
    try:
        return os.read(descriptor, 1 << 16)
    except (BlockingIOError, InterruptedError):
        return None
    except OSError:  # reset by the other side
        return b""


def text(line: bytes) -> str:
    """Decode a line of output. Progress bars redraw with carriage returns: what is left of the last one is shown."""
    return line.rstrip(b"\r").rsplit(b"\r", 1)[-1].decode("utf-8", "replace")


def write_all(descriptor: int, data: bytes) -> None:
    """Write all bytes to a file descriptor."""
    while data:
        data = data[os.write(descriptor, data) :]


def read_line(descriptor: int) -> tuple[bytes, bytes]:
    """The first line that comes, and what came with it. Raises ConnectionError, OSError."""
    data = b""
    while b"\n" not in data:
        piece = os.read(descriptor, 1 << 16)
        if not piece:
            raise ConnectionError("no order came")
        data += piece
    line, _, rest = data.partition(b"\n")
    return line, rest
