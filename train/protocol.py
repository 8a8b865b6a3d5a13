"""What the head says of jobs, and what S3 has of it: the one form of answers, records and log lines, and their limits.

train/node/jobs.py and train/node/log.py say what they mean. Nothing that comes from a node or from S3 is used before it
went through here: a value has its type and is within its bounds, or there is a ValueError that says in a line what is
wrong. Keys and kinds of lines that a newer head knows are skipped. Pure.
"""

import re
from collections.abc import Iterator
from typing import Annotated, Literal

from msgspec import Meta, Raw, Struct
from msgspec.json import Decoder

from provision.decode import decode

MAX_LINE_BYTES = 8 << 20
"""Of a line from the head; the longest is the list of all jobs."""
MAX_RECORD_BYTES = 1 << 20
MAX_RECORD_DEPTH = 32  # of lists in lists; printed with indentation, each level makes all below it longer
MAX_JOBS = 1000  # the head keeps 50 that have ended
MAX_VALUES = 600_000  # in the list of all jobs
LONGEST_ERROR = 500  # characters
OUR_JOB_ID = re.compile(r"[0-9]{8}-[0-9]{6}-[0-9a-f]{6}")
"""As train.job.new_job_id makes them."""

Role = Literal["scheduler", "server", "worker", "launcher", "setup"]
JobState = Literal["queued", "starting", "running", "ending", "done", "failed", "stopped"]
ENDED: frozenset[JobState] = frozenset({"done", "failed", "stopped"})

JobId = Annotated[str, Meta(max_length=128, pattern=r"\A[A-Za-z0-9][A-Za-z0-9._-]*\Z")]
Name = Annotated[str, Meta(max_length=255, pattern=r"\A[^\r\n]*\Z")]
Moment = Annotated[float, Meta(ge=0, le=32_503_680_000)]  # seconds since the epoch; to the year 3000
ExitCode = Annotated[int, Meta(ge=-255, le=255)]
Count = Annotated[int, Meta(ge=0, le=1 << 31)]
ProcessNumber = Annotated[int, Meta(ge=0, lt=1 << 15)]  # each is kept as long as its log is read
Left = dict[Name, list[tuple[Count, str]]]


class _Form(Struct, frozen=True, kw_only=True):
    """A JSON object that may have more keys than these."""


class ResultForm(_Form, frozen=True, kw_only=True):
    """How a job ended."""

    state: JobState
    exit_code: ExitCode | None
    error: str | None = None
    left: Left | None = None


class LogLine(_Form, frozen=True, kw_only=True):
    """A line of a job's log: of its keys those that there are tell its kind."""

    t: Moment
    p: ProcessNumber | None = None
    role: Name | None = None
    host: Name | None = None
    rank: Count | None = None
    pid: Count | None = None
    exit: ExitCode | None = None
    signal: Annotated[int, Meta(ge=0, le=128)] | None = None
    line: str | None = None
    say: str | None = None
    stalled_since: Moment | None = None
    warnings: tuple[str, ...] | None = None
    state: str | None = None
    result: ResultForm | None = None


class RecordNode(_Form, frozen=True, kw_only=True):
    """A host of a job; one that is the user's own has no instance_id, or an empty one."""

    name: Name
    instance_id: Annotated[str, Meta(max_length=255)] | None = None


class RecordRole(_Form, frozen=True, kw_only=True):
    """A process of a job."""

    role: Name
    host: Name
    rank: Count | None = None
    ended_at: Moment | None = None


class StallForm(_Form, frozen=True, kw_only=True):
    """Why a job makes no progress."""

    text: str


class RecordForm(_Form, frozen=True, kw_only=True):
    """A job's record.json."""

    id: JobId
    name: Name
    state: JobState
    workers: Count
    servers: Count
    submitted_at: Moment
    started_at: Moment | None
    ended_at: Moment | None
    exit_code: ExitCode | None
    error: str | None
    warnings: tuple[str, ...] | None = None
    stall: StallForm | None = None
    left: Left | None = None
    nodes: tuple[RecordNode, ...] = ()
    roles: tuple[RecordRole, ...] = ()


class _Identified(_Form, frozen=True, kw_only=True):
    id: JobId


class Refused(_Form, frozen=True, kw_only=True):
    """The job for which another one was refused."""

    id: JobId
    name: Name
    state: JobState


class Submitted(_Form, frozen=True, kw_only=True):
    """The answer to an order."""

    job: JobId | None = None
    state: JobState | None = None
    refused: Refused | None = None
    error: str | None = None


class StopAnswer(_Form, frozen=True, kw_only=True):
    """The answer to `stop`."""

    result: ResultForm
    already: bool = False


class _Jobs(_Form, frozen=True, kw_only=True):
    jobs: list[Raw]


_JOBS_DECODER = Decoder(_Jobs)


class _Failure(_Form, frozen=True, kw_only=True):
    error: str


_FIRST_KEY = re.compile(rb'\s*\{\s*"([A-Za-z_]{1,40})"\s*:')
_JOBS = re.compile(rb'\s*\{\s*"jobs"\s*:\s*\[')
# In a string, and out of it.
_SIGN = re.compile(rb'\\.|["\[\]{},]', re.DOTALL)
_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_INNERMOST = re.compile(rb"[\[{][^\[\]{}]*[\]}]")


def find_first_key(line: bytes) -> str:
    """The first key of a line's JSON object, by which the head's lines are told apart; "" where it begins otherwise."""
    found = _FIRST_KEY.match(line)
    return found[1].decode("ascii") if found is not None else ""


def parse_failure(line: bytes) -> str:
    """What the head says went wrong, in a line. Raises ValueError."""
    return shorten(decode(line, _Failure).error)


def parse_log_line(line: bytes) -> LogLine:
    """A line of a job's log. Raises ValueError."""
    return decode(line, LogLine)


def parse_submitted(line: bytes) -> Submitted:
    """The answer to an order. Raises ValueError."""
    return decode(line, Submitted)


def parse_stopped(line: bytes) -> StopAnswer:
    """The answer to `stop`. Raises ValueError."""
    return decode(line, StopAnswer)


def parse_left(text: bytes) -> list[tuple[int, str]]:
    """What role.py could not end on its host. Raises ValueError."""
    return decode(text, list[tuple[Count, str]])


def parse_record(data: bytes) -> RecordForm:
    """A job's record. Raises ValueError."""
    if len(data) > MAX_RECORD_BYTES:
        raise ValueError(f"it is longer than {MAX_RECORD_BYTES >> 20} MiB")
    if _is_deep(data):
        raise ValueError("it is nested too deeply")
    return decode(data, RecordForm)


def _is_deep(data: bytes) -> bool:
    """Whether lists and objects are nested more than MAX_RECORD_DEPTH deep."""
    bare = _STRING.sub(b"", data)
    for _ in range(MAX_RECORD_DEPTH):
        bare, count = _INNERMOST.subn(b"", bare)
        if not count:
            return False
    return b"[" in bare or b"{" in bare


def find_record_id(data: bytes) -> str | None:
    """The id of a record that may be damaged otherwise; None where it has none."""
    try:
        return decode(data, _Identified).id
    except ValueError:
        return None


def split_jobs(line: bytes) -> list[bytes]:
    """The records in the head's list of jobs, as they are written, whatever each holds. Raises ValueError."""
    opening = _JOBS.match(line)
    if opening is None:
        raise ValueError("it is no list of jobs")
    if line.count(b",") > MAX_VALUES:
        raise ValueError(f"it lists more than {MAX_VALUES} values")
    try:
        found = [bytes(record) for record in _JOBS_DECODER.decode(line).jobs]
    except (ValueError, RecursionError):
        found = _split_damaged(line, opening.end())
    if len(found) > MAX_JOBS:
        raise ValueError(f"it lists more than {MAX_JOBS} jobs")
    return found


def _split_damaged(line: bytes, begin: int) -> list[bytes]:
    """The same of a list that no parser reads as a whole: one record in it would hide all others."""
    found: list[bytes] = []
    for depth, sign, position in _walk(line, begin):
        if (sign == b"," and depth == 0) or depth < 0:
            found.append(line[begin:position].strip())
            if depth < 0:
                return found
            begin = position + 1
    raise ValueError("the list of jobs has no end")


def _walk(data: bytes, begin: int) -> Iterator[tuple[int, bytes, int]]:
    """Each bracket, brace and comma outside of strings: the depth after it, the sign, and where it stands."""
    depth, in_string = 0, False
    for match in _SIGN.finditer(data, begin):
        sign = match[0]
        if sign == b'"':
            in_string = not in_string
        elif not in_string and len(sign) == 1:
            depth += (sign in b"[{") - (sign in b"]}")
            yield depth, sign, match.start()


def shorten(text: str) -> str:
    """A text from elsewhere in one line of limited length."""
    line = "; ".join(part.strip() for part in text[: 4 * LONGEST_ERROR].splitlines() if part.strip())
    return line if len(line) <= LONGEST_ERROR else f"{line[: LONGEST_ERROR - 3]}..."
