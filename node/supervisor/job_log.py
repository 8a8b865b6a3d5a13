"""The log of a job, `events`: one JSON object per line, a protocol.LogLine.

All lines are complete, even if this process is killed or the disk is full: an incomplete line is removed. The log is
bounded: see Share.
"""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any

from msgspec import to_builtins

from foundation.decode import decode
from node import job_folder, wire
from node.job.events import EventReader
from node.job.log_tail import lines_from_end, read_from
from node.protocol import JobResult, LogLine

RESERVE_BYTES = 1 << 18
LIMIT_BYTES = 256 << 20  # of the log, for each process
MORE_BYTES_PER_S = 1 << 10  # beyond that, for each second that it runs
BURST_BYTES = 1 << 16  # beyond that, the least room for its next lines
TIME_BYTES = len('"t": 1764273815.123, ')  # which `write` adds to each line


class Share:
    """What one process may write to the log: LIMIT_BYTES, and MORE_BYTES_PER_S while it runs.

    Once it has written that, its lines are left out until there is room for BURST_BYTES. So the log shows how the
    process goes on; at its end, its last lines are written in any case.
    """

    def __init__(self, number: int, now: float) -> None:
        self._number = number
        self._began_at = now
        self._written = self._left_out = 0

    def put(self, text: str, now: float) -> list[bytes]:
        """Adds a line. Returns the lines to write."""
        line = wire.encode({"p": self._number, "line": text})
        room = LIMIT_BYTES + (now - self._began_at) * MORE_BYTES_PER_S - self._written
        size = len(line) + TIME_BYTES
        if room < (max(size, BURST_BYTES) if self._left_out else size):
            self._left_out += 1
            return []
        self._written += size
        return [*self._take_gap(self._left_out), line]

    def end(self, last_lines: Sequence[str]) -> list[bytes]:
        """Returns those of the last lines that are left out, at the end of the process."""
        texts = list(last_lines)[-self._left_out :] if self._left_out else []
        gap = self._take_gap(self._left_out - len(texts))
        return [*gap, *(wire.encode({"p": self._number, "line": text}) for text in texts)]

    def _take_gap(self, count: int) -> list[bytes]:
        self._left_out = 0
        why = f"this process has filled its {LIMIT_BYTES >> 20} MiB of the log"
        return [wire.encode({"p": self._number, "line": f"... {count} lines left out: {why} ..."})] if count else []


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
        job_folder.write_whole(job_folder.path(self._job, "reserve"), b"\0" * RESERVE_BYTES)

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
        for line in share.put(text, now):
            self._put(line)

    def _put(self, line: bytes) -> None:
        if self._time is None:  # one time for all lines between two writes
            self._time = b'{"t": %.3f, ' % time.time()
        if not self._pending:
            self._wake()
        self._pending.append(self._time + line[1:])

    def end_output(self, number: int, last_lines: Sequence[str] = ()) -> None:
        """Appends the last lines of a process, which has ended, if they were left out."""
        share = self._shares.pop(number, None)
        for line in share.end(last_lines) if share is not None else ():
            self._put(line)

    def write(self) -> None:
        """Writes all new lines. Raises OSError once; after that, drops all lines until `make_room`."""
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


def restore(job: str, url: str, env: Mapping[str, str]) -> int:
    """Writes the log of a job's earlier attempts, on another head, from its copy, without an incomplete last line.

    The job's folder must exist. Later attempts append to it. url: that of the job in [data] results. env: variables
    with the access to S3. Returns the number of the next process. Raises OSError, ValueError.
    """
    from node.staging import s3  # noqa: PLC0415 - importing obstore takes 0.1 s

    store, reader = s3.Store(env), EventReader()
    found = store.find(f"{url}events")
    with open(job_folder.path(job, "events"), "w+b") as stream:

        def write(at: int, piece: memoryview) -> None:
            stream.seek(at)
            stream.write(piece)

        if found is not None and found.size_bytes:
            store.read_range(found, 0, found.size_bytes, write)
        stream.flush()
        _drop_incomplete(stream)
        stream.seek(0)
        for line in stream:
            if b'"role": ' in line:
                reader.read(line)
    return max(reader.processes, default=-1) + 1


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
