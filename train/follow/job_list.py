"""Reads the head's list of jobs, in which one damaged record must not hide the others. Pure."""

import json
from typing import Optional

from msgspec import DecodeError, Raw, Struct
from msgspec.json import Decoder

from foundation.decode import decode
from node.protocol import JobId, Name, Unhealthy

MAX_JOBS = 1000  # the head keeps 50 that have ended
MAX_VALUES = 600_000


class _Identified(Struct, frozen=True, kw_only=True):
    id: JobId | None = None
    spec: Optional["_Identified"] = None


class _Jobs(Struct, frozen=True, kw_only=True):
    jobs: list[Raw]


_JOBS_DECODER = Decoder(_Jobs)


class _UnhealthyNodes(Struct, frozen=True, kw_only=True):
    unhealthy: dict[Name, Unhealthy] = {}


def find_record_id(data: bytes) -> str | None:
    """The id in a record that may be damaged, or in what the head sends in its place; None if it has none."""
    try:
        found = decode(data, _Identified)
    except ValueError:
        return None
    return found.id or (found.spec.id if found.spec is not None else None)


def split_jobs(line: bytes) -> list[bytes]:
    """The records in the head's list of jobs, each as written there. Raises ValueError."""
    if line.count(b",") > MAX_VALUES:
        raise ValueError(f"more than {MAX_VALUES} values in the list of jobs")
    try:
        found = [bytes(record) for record in _JOBS_DECODER.decode(line).jobs]
    except (DecodeError, UnicodeDecodeError, RecursionError):
        found = _split_by_python(line)
    if len(found) > MAX_JOBS:
        raise ValueError(f"more than {MAX_JOBS} jobs in the list")
    return found


def parse_unhealthy(line: bytes) -> dict[str, Unhealthy]:
    """The unhealthy nodes in the head's list of jobs, by name; {} if that part is damaged."""
    try:
        return dict(decode(line, _UnhealthyNodes).unhealthy)
    except ValueError:
        return {}


def _split_by_python(line: bytes) -> list[bytes]:
    """As split_jobs, for what msgspec does not read, such as a file name that is not UTF-8. Raises ValueError."""
    try:
        return [json.dumps(job).encode() for job in json.loads(line.decode("utf-8", "surrogateescape"))["jobs"]]
    except (KeyError, TypeError, RecursionError):
        raise ValueError("not a list of jobs") from None
