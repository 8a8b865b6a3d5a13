"""Follows a job's log for one reader, from a given offset to the job's end."""

import contextlib
import os
import select
import socket
import time

from foundation.decode import decode
from node import job_folder, wire
from node.job.log_tail import find_processes, find_tail, read_from
from node.protocol import JobResult, LogLine, LogStart, LogWanted
from node.supervisor import job_log, recovery
from node.wire import News, Watch

ALIVE_EVERY_S = 2.0
CHECK_EVERY_S = 0.1  # for new lines
RETRY_S = 0.05  # for a supervisor that is just starting or ending
READ_BYTES = 1 << 16
GIVE_UP_S = 120.0  # for a reader that no longer accepts output
RESULT = b'"result": {'


class Follower:
    """One reader of one job's log. out: the descriptor to write to. offset: that of the first byte to send."""

    def __init__(self, job: str, offset: int, out: int) -> None:
        self.job = job
        self.out = out
        os.set_blocking(out, False)
        self.events: int | None = None
        self.offset = offset
        self.last: bytes | None = None  # the result line, once read
        self.supervisor: socket.socket | None = None
        self.supervisor_lines = wire.LineBuffer(limit=1 << 20)
        # By the processes' numbers: their bars, and when the supervisor got them, since later lines may be in the log.
        self.bars: dict[int, tuple[str, float]] = {}
        self.shown_bars: dict[int, tuple[str, float]] = {}  # those that the reader knows
        self.is_complete = False  # no process writes to the log any longer
        self.pace = wire.Pace()
        self.sent_at = time.monotonic()

    def begin(self, wanted: LogWanted) -> None:
        """Sends the job's processes, and starts at the wanted part of the log. Raises OSError."""
        record = recovery.recover(self.job)
        self.open()
        if record is None or self.events is None:
            return
        with open(self.events, "rb", closefd=False) as lines:
            processes = find_processes(record.roles, len(record.attempts), lines)
        self.offset = find_tail(read_from(self.events), os.fstat(self.events).st_size, wanted, processes)
        self.send(wire.encode(LogStart(start=self.offset, processes=processes)))

    def run(self, *, wait: bool) -> None:
        """Sends the log up to its end or, without `wait`, up to its current end. Raises OSError."""
        if not wait:
            recovery.recover(self.job)
        while True:
            if wait and not self.is_complete:
                self.find_supervisor()
            is_end = self.is_complete or not wait
            self.read()
            if is_end:
                break
            if self.last is None:
                self.send_bars()
            self.sleep()
        if self.last is not None or wait:
            self.send(self.last or wire.encode(self.missing_result()))

    # -- the log -------------------------------------------------------------------------------------------------

    def read(self) -> None:
        """Sends the new whole lines of the log. The last line, the result, is sent later."""
        self.open()
        if self.events is None:
            return
        until = os.fstat(self.events).st_size
        while self.offset < until and self.last is None:
            size, data = READ_BYTES, os.pread(self.events, READ_BYTES, self.offset)
            while len(data) == size and b"\n" not in data:
                size *= 2
                data = os.pread(self.events, size, self.offset)
            # An incomplete line is read again later: on a full disk the supervisor may remove it and write another.
            whole, end, _ = data.rpartition(b"\n")
            if not end:
                return
            self.offset += len(whole) + 1
            self.pace.note()
            lines = whole + end
            last = lines[lines.rfind(b"\n", 0, -1) + 1 :]
            if RESULT in last and job_log.parse_result(last) is not None:
                self.last = last
                lines = lines[: -len(last)]
            self.send(lines)

    def send_bars(self) -> None:
        """Sends the progress bars that have changed, once the reader has the log so far, with their processes."""
        none = ("", round(time.time(), 3))
        for number in sorted(self.bars.keys() | self.shown_bars.keys()):
            text, at = self.bars.get(number, none)
            if text != self.shown_bars.get(number, none)[0]:
                # The first key shows that this line does not count for the offset.
                self.send(wire.encode({"bar": text, "p": number, "t": at}))
        self.shown_bars = self.bars

    def open(self) -> None:
        """Opens the log if it exists."""
        path = job_folder.path(self.job, "events")
        if self.events is None and os.path.exists(path):
            self.events = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def missing_result(self) -> LogLine:
        """Returns the result line for a log without one, such as after a full disk."""
        record = job_folder.read_record(self.job)
        unknown = JobResult(state="failed", exit_code=1, error="its record cannot be read")
        result, files = (record.result, record.files) if record else (unknown, ())
        return LogLine(t=round(time.time(), 3), result=result, files=files)

    # -- the supervisor ------------------------------------------------------------------------------------------

    def find_supervisor(self) -> None:
        """Connects to the supervisor; if it has ended, or is dead, completes the job. Raises OSError."""
        if self.supervisor is not None:
            return
        plug = connect(self.job)
        if plug is not None:
            try:
                plug.sendall(wire.encode(Watch()))
            except ConnectionError:  # it has just ended
                plug.close()
                return
            plug.settimeout(0.0)
            self.supervisor = plug
        elif not recovery.is_alive(self.job):
            record = recovery.recover(self.job)
            self.is_complete = record is None or record.has_ended  # otherwise, another process still completes it

    def read_supervisor(self, supervisor: socket.socket) -> None:
        """Reads the supervisor's messages, which have arrived, or the end of the connection at the job's end."""
        data = b""
        with contextlib.suppress(ConnectionError):  # its end
            data = supervisor.recv(READ_BYTES)
        for line in self.supervisor_lines.feed(data):
            news = decode(line, News)
            self.bars = news.bars
        if not data:
            supervisor.close()
            self.supervisor = None

    # -- the reader ----------------------------------------------------------------------------------------------

    def send(self, data: bytes) -> None:
        """Sends lines. Raises BrokenPipeError if the reader is gone, or accepts nothing for GIVE_UP_S."""
        self.sent_at = time.monotonic()
        while data:
            _, writable, _ = select.select([], [self.out], [], GIVE_UP_S)
            if not writable:
                raise BrokenPipeError
            with contextlib.suppress(BlockingIOError):
                data = data[os.write(self.out, data[:READ_BYTES]) :]

    def sleep(self) -> None:
        """Waits for an event. Raises OSError if the reader is gone."""
        if time.monotonic() > self.sent_at + ALIVE_EVERY_S:
            self.send(wire.encode({"alive": True}))
        if self.supervisor is None:
            time.sleep(RETRY_S)
            return
        # The supervisor's report of the job's end is handled at once.
        ready, _, _ = select.select([self.supervisor], [], [], max(CHECK_EVERY_S, self.pace.delay_s))
        if ready:
            self.read_supervisor(self.supervisor)


def connect(job: str) -> socket.socket | None:
    """Connects to a job's supervisor. Returns None if there is none."""
    plug = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with job_folder.short_path(job_folder.path(job, "socket")) as path:
            plug.connect(path)
    except OSError:
        plug.close()
        return None
    return plug
