"""Finds the last lines of a job's log from its end: on the head, and on this machine in the copy in S3.

Pure, apart from the reading.
"""

import os
from collections.abc import Callable, Iterable, Iterator

from foundation.decode import decode
from node.job.events import EventReader
from node.protocol import MAX_LINE_BYTES, LogLine, LogWanted, Process

BLOCK_BYTES = 1 << 18
SEARCHED_BYTES = 512 << 20  # at the end of a log, for lines of a role or a rank; takes a few seconds
Read = Callable[[int, int], bytes]
"""Returns the bytes of a log from one offset to another."""


def read_from(descriptor: int) -> Read:
    """Returns the function that reads an open log."""
    return lambda start, end: os.pread(descriptor, end - start, start)


def lines_from_end(read: Read, size: int) -> Iterator[tuple[int, bytes]]:
    """Yields a log's lines with their offsets, the last one first. Only that one may lack its newline.

    Ends early at a line longer than MAX_LINE_BYTES, which is not ours.
    """
    rest = b""
    while size and len(rest) <= MAX_LINE_BYTES:
        start = max(0, size - BLOCK_BYTES)
        data = read(start, size) + rest
        whole = data.find(b"\n") + 1 or len(data) if start else 0  # from here on, the lines begin in this block
        end = len(data)
        while end > whole:
            begin = max(whole, data.rfind(b"\n", 0, end - 1) + 1)
            yield start + begin, data[begin:end]
            end = begin
        size, rest = start, data[:whole]


def find_tail(read: Read, size: int, wanted: LogWanted, processes: Iterable[Process]) -> int:
    """Returns the offset of the last lines of output, which is not after the result. processes: all of the job."""
    if wanted.tail is None and wanted.since is None:
        return 0
    count = float("inf") if wanted.tail is None else wanted.tail
    of = {process.number: process for process in processes}
    start, is_last = size, True
    for offset, line in lines_from_end(read, size):
        event = _read(line)
        if not is_last and event is not None and event.t < (wanted.since or 0.0):
            break
        if not line.endswith(b"\n"):
            start = offset
            continue
        is_output = wanted.tail is None or _counts(event, wanted, of)  # with a time alone, all lines since then
        if is_output and count:
            count -= 1
            start = offset
        elif is_last and not is_output:
            start = offset
        is_last = False
        if not count or (wanted.tail is not None and size - offset > SEARCHED_BYTES):
            break
    return start


def _read(line: bytes) -> LogLine | None:
    try:
        return decode(line, LogLine)
    except ValueError:
        return None


def _counts(event: LogLine | None, wanted: LogWanted, processes: dict[int, Process]) -> bool:
    if event is None:  # it is shown as damaged
        return True
    if event.line is None or event.p is None:
        return bool(event.message or event.warnings)
    return wanted.takes_lines_of(processes.get(event.p))


def find_processes(roles: Iterable[Process], attempts: int, lines: Iterable[bytes]) -> tuple[Process, ...]:
    """Returns a job's processes with their ranks.

    roles: those of the last attempt, as the job's record has them. attempts: how many the job has made. lines: the
    log's; they are read only for the processes of earlier attempts.
    """
    reader = EventReader()
    for line in lines if attempts > 1 else ():
        if b'"role": ' in line or b'"rank": ' in line:
            reader.read(line)
    return tuple({**reader.processes, **{role.number: role for role in roles}}.values())
