"""Messages between the node programs of a job: one JSON object per line, over pipes, ssh and Unix sockets."""

import json
import os
import time
from typing import Any, Optional

from msgspec import Struct, to_builtins

from node.protocol import Container, JobHost, JobResult, NewFiles, RunSettings

WAITING = b"CLUSTER-ROLE "  # on a launcher's stdout, before the Message of a role that waits for a connection
FAILED = b"CLUSTER-FAILED "  # on launch.py's stdout, after a command that it ran has failed
LONGEST_REST_S = 0.1
REST_STEP_S = 0.02
Found = tuple[int, str]
"""A process: its pid and its command line."""


class RoleOrder(RunSettings, kw_only=True):
    """The order for role.py on a host: the first line of its input.

    launcher: the name of the engine. address: the host's address, or None. launched: the variables by which the engine
    identifies the process. commands: run one after another, in `folder`. cwd, tree: see Order. data_url: a URL to try
    to read. container: where the commands run; None for the host itself. volumes: folders where volumes are mounted,
    which must work.
    attempt: the number of the job's attempt, from 1. watches_notice: whether role.py asks EC2 if the host will be
    interrupted, and reports the host's boot. authorities: see Order.
    """

    job: str
    role: str
    host: str
    launcher: str = "ssh"
    address: Optional[str]
    launched: dict[str, str]
    commands: tuple[tuple[str, ...], ...]
    cwd: str
    tree: Optional[str] = None
    env: dict[str, str]
    setup: Optional[str]
    data_url: Optional[str] = None
    container: Optional[Container] = None
    volumes: tuple[str, ...] = ()
    attempt: int = 1
    watches_notice: bool = False
    authorities: Optional[str] = None

    @property
    def folder(self) -> str:
        """The folder where the process runs."""
        return os.path.join(self.cwd, self.subfolder) if self.subfolder else self.cwd


class Notice(Struct, kw_only=True, frozen=True):
    """EC2 will interrupt this instance. action: terminate, stop or hibernate. at: seconds since the epoch, if known."""

    action: str
    at: Optional[float] = None


class Command(Struct, kw_only=True, omit_defaults=True):
    """A message from the supervisor to role.py, after the order.

    alive: sent every few seconds; silence, or the end of the stream, means that the supervisor has ended. reach: TCP
    ports to try. look: report the resources that the processes use. end: end the process. notice: have the process save
    a checkpoint, because a node will be interrupted.
    """

    alive: bool = False
    reach: Optional[tuple[tuple[str, int], ...]] = None
    look: bool = False
    end: bool = False
    notice: bool = False


class Use(Struct, kw_only=True):
    """The resources that the processes of a role have used so far, and those processes that are stopped."""

    cpu_s: float
    bytes: int
    stopped: tuple[Found, ...]


class Message(Struct, kw_only=True, omit_defaults=True):
    """A line to the supervisor, over its socket.

    role, host, launched: introduce a process; by: the ssh_proxy.py process that connects it; path: the socket on its
    host where it waits for a connection.
    exit: the process ended, by signal `signal`, in command number `at`; ended: role.py ended it; left: processes that
    did not end; why: role.py's own error; files: the job's new files on the host. copying: before the first command,
    it still copies the job's files.
    lost: from ssh_proxy.py: ssh ended before the process. unread: why the host cannot read the job's data.
    dead: the volume that does not work on the host. boot: process_tree.boot of the host. notice: the host will be
    interrupted. progress, saved: the numbers in files of the job's program (notice.py).
    blocked: unreachable ports, such as "10.0.0.5:34567". bound: ps-lite's address and port.
    watch, stop, replace, say: from jobs.py. replace: hosts in place of those for which the job waits; say: a line for
    its log. The supervisor replies to these two with an Answer.
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
    dead: Optional[str] = None
    boot: Optional[str] = None
    notice: Optional[Notice] = None
    progress: Optional[dict[str, int]] = None
    saved: Optional[dict[str, int]] = None
    lost: Optional[str] = None
    signal: Optional[int] = None
    ended: bool = False
    at: int = 0
    left: tuple[Found, ...] = ()
    why: Optional[str] = None
    files: Optional[NewFiles] = None
    copying: bool = False
    watch: bool = False
    stop: bool = False
    replace: Optional[tuple[JobHost, ...]] = None
    say: Optional[str] = None


class Answer(Struct, kw_only=True, omit_defaults=True):
    """The supervisor's answer to `replace` and `say`. error: why it refuses. waiting_for: the nodes still missing.

    by_head: the head's own command is replacing them.
    """

    error: Optional[str] = None
    waiting_for: tuple[str, ...] = ()
    by_head: bool = False


class Ended(Struct, kw_only=True):
    """The supervisor's answer to `watch`, at the job's end."""

    result: JobResult


def encode(message: Any) -> bytes:
    """Returns a message as one line of ASCII, which preserves invalid UTF-8, as in file names."""
    return json.dumps(to_builtins(message)).encode("ascii") + b"\n"


def is_waiting(line: str) -> bool:
    """Whether a line of a launcher is the Message of a role that waits for a connection."""
    return line.startswith(WAITING.decode())


class LineBuffer:
    """Splits a stream of bytes into lines. A line over `limit` bytes is cut there."""

    def __init__(self, limit: int = 1 << 16) -> None:
        self._rest = b""
        self._limit = limit

    def feed(self, data: bytes) -> list[bytes]:
        """Adds bytes, and returns the lines that are now complete, without newlines."""
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()
        while len(self._rest) > self._limit:
            lines.append(self._rest[: self._limit])
            self._rest = self._rest[self._limit :]
        return lines

    def flush(self) -> list[bytes]:
        """Returns the rest at the end of the stream, as a list of at most one line."""
        rest, self._rest = self._rest, b""
        return [rest] if rest else []


class Outbox:
    """Output to a file descriptor, written as the reader accepts it: never blocks."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.pending = bytearray()
        self.broken = False
        os.set_blocking(descriptor, False)

    def put(self, message: Any) -> None:
        """Appends one message."""
        self.pending += encode(message)

    def pass_on(self, data: bytes) -> None:
        """Appends bytes of messages."""
        self.pending += data

    def write(self) -> None:
        """Writes as much as the reader accepts now."""
        try:
            while self.pending:
                del self.pending[: os.write(self.descriptor, bytes(self.pending[: 1 << 16]))]
        except BlockingIOError:
            pass
        except OSError:  # the reader has closed it
            self.broken = True
            self.pending = bytearray()


class Pace:
    """Decides how long to collect output before it is passed on.

    A line after a pause is passed on at once. Lines in quick succession are collected into fewer, larger pieces: each
    piece wakes every program on its way to the user, beside the processes that train.
    """

    def __init__(self) -> None:
        self._came_at = self._rest_s = self._until = 0.0

    def note(self) -> None:
        """Records that output has arrived."""
        now = time.monotonic()
        is_stream = now < self._came_at + 2 * LONGEST_REST_S
        self._rest_s = min(self._rest_s + REST_STEP_S, LONGEST_REST_S) if is_stream else 0.0
        self._came_at, self._until = now, now + self._rest_s

    @property
    def rest_s(self) -> float:
        """The remaining time to wait."""
        return max(0.0, self._until - time.monotonic())


def read_now(descriptor: int) -> Optional[bytes]:
    """Returns the bytes that can be read now; b"" at the end of the stream, None if there are none yet."""
    try:
        return os.read(descriptor, 1 << 16)
    except (BlockingIOError, InterruptedError):
        return None
    except OSError:  # reset by the other side
        return b""


def text(line: bytes) -> str:
    """Decodes a line of output. Progress bars redraw with carriage returns: only the text after the last one counts."""
    return line.rstrip(b"\r").rsplit(b"\r", 1)[-1].decode("utf-8", "replace")


def write_all(descriptor: int, data: bytes) -> None:
    """Writes all bytes to a file descriptor."""
    while data:
        data = data[os.write(descriptor, data) :]


def read_line(descriptor: int) -> tuple[bytes, bytes]:
    """Reads the first line. Returns it, and the bytes received after it. Raises ConnectionError, OSError."""
    data = b""
    while b"\n" not in data:
        piece = os.read(descriptor, 1 << 16)
        if not piece:
            raise ConnectionError("no order")
        data += piece
    line, _, rest = data.partition(b"\n")
    return line, rest
