"""The log of a job, `events`: one JSON object per line, a protocol.LogLine.

All lines are complete, even if this process is killed or the disk is full: an incomplete line is removed. The log is
bounded: see Share.
"""

import os
import shutil
import time
from collections import deque
from collections.abc import Callable
from typing import IO, Any

from msgspec import to_builtins

from foundation.decode import decode
from node import job_folder, wire
from node.job.log_tail import lines_from_end, read_from
from node.protocol import JobResult, LogLine

RESERVE_BYTES = 1 << 18
LIMIT_BYTES = 256 << 20  # of the log, for each process
MORE_BYTES_PER_S = 1 << 10  # beyond that, for each second that it runs
KEPT_BYTES = 1 << 16  # of its newest lines, while it prints more
TIME_BYTES = len('"t": 1764273815.123, ')  # which `write` adds to each line
LIMIT_SAID = (
    f"... this process has filled its {LIMIT_BYTES >> 20} MiB of the log: from here on, the log has only its newest "
    f"lines, up to {KEPT_BYTES >> 10} KiB about every {KEPT_BYTES // MORE_BYTES_PER_S} s and at its end ..."
)


class Share:
    """What one process may write to the log: LIMIT_BYTES, and MORE_BYTES_PER_S while it runs.

    Once it has written that, only its newest lines are kept, in memory, until there is room for all of them or it ends.
    So the log shows how the process goes on, and the end of its output is never lost.
    """

    def __init__(self, number: int, now: float) -> None:
        self._number = number
        self._began_at = now
        self._written = self._kept_bytes = self._left_out = 0
        self._kept: deque[bytes] = deque()
        self._is_said = False

    def put(self, line: bytes, now: float) -> list[bytes]:
        """Adds a line. Returns the lines to write, also kept ones: if no process has any, nobody calls `write`."""
        size = len(line) + TIME_BYTES
        if not self._kept and self._has_room(size, now):
            self._written += size
            return [line]
        self._kept.append(line)
        self._kept_bytes += size
        while self._kept_bytes > KEPT_BYTES and len(self._kept) > 1:
            self._kept_bytes -= len(self._kept.popleft()) + TIME_BYTES
            self._left_out += 1
        was_said, self._is_said = self._is_said, True
        return [*([] if was_said else [self._encode(LIMIT_SAID)]), *self.take(now)]

    def take(self, now: float, *, has_ended: bool = False) -> list[bytes]:
        """Returns the kept lines if there is room for all of them, or the process has ended."""
        if not self._kept or not (has_ended or self._has_room(self._kept_bytes, now)):
            return []
        gap = [self._encode(f"... {self._left_out} lines left out ...")] if self._left_out else []
        lines = [*gap, *self._kept]
        self._written += self._kept_bytes
        self._kept.clear()
        self._kept_bytes = self._left_out = 0
        return lines

    def _has_room(self, size: int, now: float) -> bool:
        return self._written + size <= LIMIT_BYTES + (now - self._began_at) * MORE_BYTES_PER_S

    def _encode(self, text: str) -> bytes:
        return wire.encode({"p": self._number, "line": text})


class Log:
    """The log of one job, for writing. wake: called when there are lines for `write`."""

    def __init__(self, job: str, wake: Callable[[], None] = lambda: None) -> None:
        self._job, self._wake = job, wake
        self._path = job_folder.path(job, "events")
        self._descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._size = os.fstat(self._descriptor).st_size
        self._pending: list[bytes] = []
        self._time: bytes | None = None
        self._shares: dict[int, Share] = {}  # by the process's number
        self._failed = False

    def reserve(self) -> None:
        """Reserves disk space for the last lines. Raises OSError."""
        with open(job_folder.path(self._job, "reserve"), "wb") as stream:
            stream.write(b"\0" * RESERVE_BYTES)

    def make_room(self) -> None:
        """Releases the reserved space, and allows writing again."""
        if self._failed:
            self.write()
        job_folder.remove(job_folder.path(self._job, "reserve"))
        self._failed = False

    def put(self, **keys: Any) -> None:
        """Appends a LogLine with these keys and the current time."""
        self._put(wire.encode({key: to_builtins(value) for key, value in keys.items()}))

    def put_line(self, number: int, text: str) -> None:
        """Appends a line of output."""
        if self._failed:
            return
        now = time.monotonic()
        share = self._shares.get(number) or self._shares.setdefault(number, Share(number, now))
        for line in share.put(wire.encode({"p": number, "line": text}), now):
            self._put(line)

    def _put(self, line: bytes) -> None:
        if self._time is None:  # one time for all lines between two writes
            self._time = b'{"t": %.3f, ' % time.time()
        if not self._pending:
            self._wake()
        self._pending.append(self._time + line[1:])

    def end_output(self, number: int) -> None:
        """Appends the last lines of a process, which has ended."""
        share = self._shares.pop(number, None)
        for line in share.take(time.monotonic(), has_ended=True) if share is not None else ():
            self._put(line)

    def end_all_output(self) -> None:
        """Appends the last lines of all processes."""
        for number in list(self._shares):
            self.end_output(number)

    def write(self) -> None:
        """Writes all new lines. Raises OSError once; after that, drops all lines until `make_room`."""
        now = time.monotonic()
        for share in self._shares.values():
            for line in share.take(now):
                self._put(line)
        lines, self._pending, self._time = self._pending, [], None
        if self._failed:
            return
        try:
            if lines:
                self._append(b"".join(lines))
        except OSError as error:
            self._failed = True
            raise OSError(error.errno, error.strerror, self._path) from error

    def _append(self, data: bytes) -> None:
        """Writes to the events the lines that fit completely."""
        written = 0
        try:
            while written < len(data):
                written += os.write(self._descriptor, data[written:])
        finally:
            self._size += data.rfind(b"\n", 0, written) + 1
            if written < len(data):
                os.ftruncate(self._descriptor, self._size)

    def close(self) -> None:
        """Closes the file."""
        os.close(self._descriptor)


def restore(job: str, log: IO[bytes]) -> None:
    """Writes the log of a job's earlier attempts, on another head, without an incomplete last line. Raises OSError.

    The job's folder must exist. Later attempts append to it.
    """
    with open(job_folder.path(job, "events"), "w+b") as stream:
        shutil.copyfileobj(log, stream)
        stream.flush()
        _drop_incomplete(stream)


def repair(job: str) -> JobResult | None:
    """Removes a dead writer's incomplete line. Returns the result in the last line, or None."""
    try:
        with open(job_folder.path(job, "events"), "r+b") as stream:
            return parse_result(_drop_incomplete(stream))
    except FileNotFoundError:
        return None


def parse_result(line: bytes) -> JobResult | None:
    """Returns the result in a line of the log; None for another line, or a damaged one."""
    try:
        return decode(line, LogLine).result
    except ValueError:
        return None


def _drop_incomplete(log: IO[bytes]) -> bytes:
    """Removes the last line if it is incomplete. Returns the last whole line; b"" if there is none."""
    for offset, line in lines_from_end(read_from(log.fileno()), log.seek(0, os.SEEK_END)):
        if line.endswith(b"\n"):
            return line
        log.truncate(offset)
    return b""
