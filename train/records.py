"""What is known of a job beside its output: the record that the head keeps, and S3's copy of it. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from provision.errors import NotFoundError, UsageError
from train.events import ENDED, JobState

Source = Literal["head", "s3"]


@dataclass(frozen=True, kw_only=True, slots=True)
class JobRecord:
    """One job. Times in seconds since the epoch; `document` is all of its record, as it was written.

    source: where the record was read. S3 has it as it was when it was copied there last.
    """

    id: str
    name: str
    state: JobState
    workers: int
    servers: int
    submitted_at: float
    started_at: float | None
    ended_at: float | None
    exit_code: int | None
    error: str | None
    warnings: tuple[str, ...]
    source: Source
    document: Mapping[str, Any] = field(repr=False)

    @property
    def has_ended(self) -> bool:
        """Whether nothing of it runs or will run, as far as the record knows."""
        return self.state in ENDED


def parse_record(document: Mapping[str, Any], *, source: Source) -> JobRecord:
    """A record as record.json has it. Raises KeyError for one that is none."""
    return JobRecord(
        id=str(document["id"]),
        name=str(document["name"]),
        state=cast("JobState", document["state"]),
        workers=int(document["workers"]),
        servers=int(document["servers"]),
        submitted_at=float(document["submitted_at"]),
        started_at=document["started_at"],
        ended_at=document["ended_at"],
        exit_code=document["exit_code"],
        error=document["error"],
        warnings=tuple(map(str, document.get("warnings") or ())),
        source=source,
        document=document,
    )


def merge_records(*sources: Iterable[JobRecord]) -> tuple[JobRecord, ...]:
    """All jobs, newest first; of one that several sources know the first one's record."""
    found: dict[str, JobRecord] = {}
    for records in sources:
        for record in records:
            found.setdefault(record.id, record)
    return tuple(sorted(found.values(), key=lambda record: (record.submitted_at, record.id), reverse=True))


def choose_job(records: Sequence[JobRecord], words: str | None) -> JobRecord:
    """The job that `words` names, newest first: its id, its name (the newest of that name), or how its id begins.

    None: the newest of all. Raises NotFoundError, UsageError when several ids begin so.
    """
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
