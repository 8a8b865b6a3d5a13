"""Reads the head's list of jobs, in which one damaged record must not hide the others. Pure."""

import re
from collections.abc import Iterator
from typing import Optional

from msgspec import Raw, Struct
from msgspec.json import Decoder

from foundation.decode import decode
from node.protocol import JobId, Name, Unhealthy

MAX_JOBS = 1000  # the head keeps 50 that have ended
MAX_VALUES = 600_000
_JOBS = re.compile(rb'\s*\{\s*"jobs"\s*:\s*\[')
_SIGN = re.compile(rb'\\.|["\[\]{},]', re.DOTALL)


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
    opening = _JOBS.match(line)
    if opening is None:
        raise ValueError("not a list of jobs")
    if line.count(b",") > MAX_VALUES:
        raise ValueError(f"more than {MAX_VALUES} values in the list of jobs")
    try:
        found = [bytes(record) for record in _JOBS_DECODER.decode(line).jobs]
    except (ValueError, RecursionError):
        found = _split_damaged(line, opening.end())
    if len(found) > MAX_JOBS:
        raise ValueError(f"more than {MAX_JOBS} jobs in the list")
    return found


def parse_unhealthy(line: bytes) -> dict[str, Unhealthy]:
    """The unhealthy nodes in the head's list of jobs, by name; {} if that part is damaged."""
    try:
        return dict(decode(line, _UnhealthyNodes).unhealthy)
    except (ValueError, RecursionError):
        return {}


def _split_damaged(line: bytes, begin: int) -> list[bytes]:
    """The records of a list that no parser reads as a whole: one damaged record must not hide the others."""
    found: list[bytes] = []
    for depth, sign, position in _walk(line, begin):
        if (sign == b"," and depth == 0) or depth < 0:
            found.append(line[begin:position].strip())
            if depth < 0:
                return found
            begin = position + 1
    raise ValueError("the list of jobs has no end")


def _walk(data: bytes, begin: int) -> Iterator[tuple[int, bytes, int]]:
    """Each bracket, brace and comma outside of strings: (depth after it, sign, position)."""
    depth, in_string = 0, False
    for match in _SIGN.finditer(data, begin):
        sign = match[0]
        if sign == b'"':
            in_string = not in_string
        elif not in_string and len(sign) == 1:
            depth += (sign in b"[{") - (sign in b"]}")
            yield depth, sign, match.start()
