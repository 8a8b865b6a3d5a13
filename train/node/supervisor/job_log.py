"""The log of a job: events for the user's machine, and the raw output of each process in its own file.

`events` has one JSON object per line, a protocol.LogLine. All lines are complete, even if this process is killed or the
disk is full: an incomplete line is removed.
"""

import os
import time
from typing import Any, Optional

from msgspec import to_builtins

from foundation.decode import decode
from train.job.protocol import JobResult, LogLine
from train.node import job_folder, wire

RESERVE_BYTES = 1 << 18


class Log:
    """The log of one job, for writing."""

    def __init__(self, job: str) -> None:
        self._job = job
        self._path = job_folder.path(job, "events")
        self._descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._size = os.fstat(self._descriptor).st_size
        self._pending: list[bytes] = []
        self._time: Optional[bytes] = None
        # By process number: the descriptor and the pending lines.
        self._files: dict[int, tuple[int, list[bytes]]] = {}
        self._failed = False
        os.makedirs(job_folder.path(job, "ranks"), mode=0o700, exist_ok=True)

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
        self.put(p=number, line=text)
        self._files[number][1].append(text.encode("utf-8", "replace") + b"\n")

    def _put(self, line: bytes) -> None:
        if self._time is None:  # one time for all lines between two writes
            self._time = b'{"t": %.3f, ' % time.time()
        self._pending.append(self._time + line[1:])

    def open_file(self, number: int, name: str) -> None:
        """Opens the file for the output of a process."""
        place = job_folder.path(self._job, "ranks", name + ".log")
        descriptor = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._files[number] = (descriptor, [])

    def rename_file(self, number: int, old: str, new: str) -> None:
        """Gives a process's file its final name. If an earlier attempt created that file, appends the output to it."""
        folder = job_folder.path(self._job, "ranks")
        source, target = os.path.join(folder, old + ".log"), os.path.join(folder, new + ".log")
        if not os.path.exists(target):
            os.replace(source, target)
            return
        descriptor, pending = self._files[number]
        with open(source, "rb") as stream:
            pending.insert(0, stream.read())  # short: the rank is known soon after the start
        os.close(descriptor)
        os.unlink(source)
        self._files[number] = (os.open(target, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC), pending)

    def close_files(self) -> None:
        """Closes the files of all processes, which must have ended."""
        for descriptor, _ in self._files.values():
            os.close(descriptor)
        self._files = {}

    def write(self) -> None:
        """Writes all new lines. Raises OSError once; after that, drops all lines until `make_room`."""
        lines, self._pending, self._time = self._pending, [], None
        raws = []
        for descriptor, raw in self._files.values():
            if raw:
                raws.append((descriptor, b"".join(raw)))
                del raw[:]
        if self._failed:
            return
        try:
            if lines:
                self._append(b"".join(lines))
            for descriptor, data in raws:
                wire.write_all(descriptor, data)
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
        """Closes all files."""
        self.close_files()
        os.close(self._descriptor)


def repair(job: str) -> Optional[JobResult]:
    """Removes a dead writer's incomplete line. Returns the result in the last line, or None."""
    place = job_folder.path(job, "events")
    try:
        with open(place, "r+b") as stream:
            data = stream.read()
            whole = data.rfind(b"\n") + 1
            if whole < len(data):
                stream.truncate(whole)
    except FileNotFoundError:
        return None
    last = data[:whole].rpartition(b"\n")[0].rpartition(b"\n")[2]
    return decode(last, LogLine).result if last else None
