"""A job's record, as the head keeps it and as it was copied to S3. Pure."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from foundation.errors import ClusterError, NotFoundError, UsageError
from train.job.protocol import ENDED, JobHost, JobState, Left, RecordRole, find_record_id, parse_record, split_jobs

Source = Literal["head", "s3"]
UNKNOWN_ID = "?"
"""Of a damaged record that does not even say which job it is of."""


@dataclass(frozen=True, kw_only=True, slots=True)
class JobRecord:
    """One job. Times in seconds since the epoch; `data` is its record as it was written.

    source: where the record was read. S3 has it as it was when it was copied there last.
    state: "damaged" if the record cannot be read; then only `id`, `source` and `error` are valid.
    stall: why the job makes no progress, while it makes none.
    """

    id: str
    name: str
    state: JobState | Literal["damaged"]
    workers: int
    servers: int
    submitted_at: float
    started_at: float | None
    ended_at: float | None
    exit_code: int | None
    error: str | None
    source: Source
    warnings: tuple[str, ...] = ()
    stall: str | None = None
    nodes: tuple[JobHost, ...] = ()
    roles: tuple[RecordRole, ...] = ()
    left: Left = field(default_factory=dict)
    data: bytes = field(default=b"", repr=False)

    @property
    def has_ended(self) -> bool:
        """Whether nothing of it runs or will run, as far as the record knows."""
        return self.state in ENDED

    @property
    def is_damaged(self) -> bool:
        """Whether the record cannot be read."""
        return self.state == "damaged"

    @property
    def document(self) -> Mapping[str, Any]:
        """All of the record, as it was written; of a damaged one what is known."""
        if self.is_damaged:
            return {"id": self.id, "state": self.state, "error": self.error}
        found: dict[str, Any] = json.loads(self.data)
        return found


class DamagedRecordError(ClusterError):
    """The record of a job cannot be read; `job` is its id."""

    def __init__(self, record: JobRecord) -> None:
        super().__init__(
            f"the record of job {record.id} is damaged: {record.error}",
            hint="cluster jobs lists the others" if record.id == UNKNOWN_ID else f"cluster stop {record.id} ends it",
        )
        self.job = record.id


def read_record(data: bytes, *, source: Source, job: str | None = None) -> JobRecord:
    """Parse a job's record; a damaged one has that state. job: its id, if known."""
    try:
        form = parse_record(data)
    except ValueError as error:
        return damaged_record(job or find_record_id(data) or UNKNOWN_ID, str(error), source=source)
    return JobRecord(
        id=form.id,
        name=form.name,
        state=form.state,
        workers=form.workers,
        servers=form.servers,
        submitted_at=form.submitted_at,
        started_at=form.started_at,
        ended_at=form.ended_at,
        exit_code=form.exit_code,
        error=form.error,
        warnings=form.warnings,
        stall=form.stall.text if form.stall is not None else None,
        source=source,
        nodes=form.nodes,
        roles=form.roles,
        left=form.left,
        data=data,
    )


def damaged_record(job: str, why: str, *, source: Source) -> JobRecord:
    """The stand-in for a record that cannot be read."""
    return JobRecord(
        id=job,
        name="",
        state="damaged",
        workers=0,
        servers=0,
        submitted_at=0.0,
        started_at=None,
        ended_at=None,
        exit_code=None,
        error=why,
        source=source,
    )


def read_jobs(line: bytes) -> tuple[JobRecord, ...]:
    """The head's list of jobs. Raises ValueError where it is none; a damaged record stands among the others."""
    return tuple(read_record(data, source="head") for data in split_jobs(line))


def merge_records(*sources: Iterable[JobRecord]) -> tuple[JobRecord, ...]:
    """All jobs, newest first, damaged records last; of several records of a job the first intact one."""
    found: dict[str, JobRecord] = {}
    unknown: list[JobRecord] = []
    for records in sources:
        for record in records:
            if record.id == UNKNOWN_ID:
                unknown.append(record)
            elif record.id not in found or found[record.id].is_damaged:
                found[record.id] = record
    known = sorted(found.values(), key=lambda record: (record.submitted_at, record.id), reverse=True)
    return (*known, *unknown)


def choose_job(records: Sequence[JobRecord], words: str | None) -> JobRecord:
    """The job that `words` names, newest first: its id, its name (the newest of that name), or how its id begins.

    None: the newest of all. Raises NotFoundError, UsageError when several ids begin so, DamagedRecordError.
    """
    chosen = _choose(records, words)
    if chosen.is_damaged:
        raise DamagedRecordError(chosen)
    return chosen


def _choose(records: Sequence[JobRecord], words: str | None) -> JobRecord:
    if not records:
        raise NotFoundError("no job has run on this cluster", hint="cluster train")
    if words is None:
        return records[0]
    for matches in (lambda record: record.id == words, lambda record: record.name == words):
        chosen = next(filter(matches, records), None)
        if chosen is not None:
            return chosen
    begin_so = [record for record in records if words and record.id.startswith(words)]
    if len(begin_so) > 1:
        listed = ", ".join(record.id for record in begin_so[:5])
        raise UsageError(f'"{words}": the ids of {len(begin_so)} jobs begin so: {listed}', hint="cluster jobs")
    if not begin_so:
        raise NotFoundError(f'there is no job "{words}"', hint="cluster jobs lists them")
    return begin_so[0]


def find_running(records: Iterable[JobRecord]) -> JobRecord | None:
    """The job that runs now; there is at most one."""
    return next((r for r in records if r.source == "head" and r.state in {"starting", "running", "ending"}), None)
