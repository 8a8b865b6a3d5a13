"""A job's log as events: one JSON object per line, a LogLine, written by the supervisor on the head.

The log is the only source of a job's output for `cluster train`, `cluster logs`, its numbers and the copy in S3.
"""

from collections.abc import Iterable
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from foundation.decode import decode
from node.protocol import JobResult, JobState, LogLine, NewFiles, Process, find_first_key


class Event(Struct, frozen=True, kw_only=True):
    """One line of the log; `at` in seconds since the epoch.

    kind "process": `process` is new, or has changed. "line": `text` is its output. "bar": `text` has the rows of its
    current progress bar; "": it has none any longer. "message": `text` is a message of the
    supervisor. "state": the job's state is now `state`. "warnings": all current warnings. "result": the last event.
    "damaged": an invalid line; `text` says why, and `at` is the time of the line before it.
    stalled_since: when the workers last made progress, in seconds since the epoch; 0.0: they make progress again;
    None: the event does not report it.
    """

    kind: Literal["process", "line", "bar", "message", "state", "warnings", "result", "damaged"]
    at: float
    process: Process | None = None
    text: str = ""
    state: JobState | None = None
    result: JobResult | None = None
    warnings: tuple[str, ...] = ()
    stalled_since: float | None = None


class EventReader:
    """Turns the log's lines into events. It must read all lines, because they depend on earlier ones."""

    def __init__(self) -> None:
        self.processes: dict[int, Process] = {}
        self.state: JobState = "queued"
        self.files: tuple[NewFiles, ...] = ()  # those that the job has created, once it has ended
        self._at = 0.0

    def learn(self, processes: Iterable[Process]) -> None:
        """Takes over the ranks of processes, whose lines then have them from the first one on."""
        for one in processes:
            self.processes[one.number] = Process(number=one.number, role=one.role, host=one.host, rank=one.rank)

    def read(self, line: bytes) -> Event | None:
        """The event of one line; None for an unknown kind of line."""
        if find_first_key(line) == "alive":  # a keep-alive, not part of the log
            return None
        try:
            message = decode(line, LogLine)
            event = self._read(message)
        except ValueError as error:
            return Event(kind="damaged", at=self._at, text=f"a line of the job's log is damaged: {error}")
        self._at = message.t
        return event

    def _read(self, message: LogLine) -> Event | None:
        """Raises ValueError for a line that is invalid at this point of the log."""
        if message.result is not None:
            self.state, self.files = message.result.state, message.files
            return Event(kind="result", at=message.t, result=message.result, state=message.result.state)
        if message.state is not None:
            self.state = message.state
            return Event(kind="state", at=message.t, state=message.state)
        if message.message is not None:
            return Event(kind="message", at=message.t, text=message.message, stalled_since=message.stalled_since)
        if message.warnings is not None:
            return Event(kind="warnings", at=message.t, warnings=message.warnings)
        return self._read_process(message, message.p) if message.p is not None else None

    def _read_process(self, message: LogLine, number: int) -> Event:
        process = self.processes.get(number)
        if message.role is not None and message.host is not None:
            known = process.rank if process is not None else None
            process = Process(number=number, role=message.role, host=message.host, rank=known)
        elif message.bar is not None and process is not None:
            return Event(kind="bar", at=message.t, process=process, text=message.bar)
        elif process is None:
            raise ValueError(f"process {number} is unknown")
        elif message.line is not None:
            return Event(kind="line", at=message.t, process=process, text=message.line)
        else:
            process = replace(
                process,
                rank=process.rank if message.rank is None else message.rank,
                pid=process.pid if message.pid is None else message.pid,
                exit_code=process.exit_code if message.exit is None else message.exit,
                signal=process.signal if message.signal is None else message.signal,
            )
        self.processes[number] = process
        return Event(kind="process", at=message.t, process=process)
