"""A job's record: as the head keeps it, and as S3 has it, where [data] results is set.

What train/node/supervisor/publish.py has copied to S3 outlives the cluster.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, BinaryIO, Literal

from botocore.exceptions import BotoCoreError

from foundation.errors import AwsError, ClusterError, NotFoundError, UsageError
from train.job.protocol import (
    ENDED,
    MAX_RECORD_BYTES,
    OUR_JOB_ID,
    JobHost,
    JobState,
    Left,
    Record,
    RecordRole,
    find_record_id,
    parse_record,
    split_jobs,
)
from train.s3.client import S3Client, explain, open_s3
from train.s3.url import S3Url, parse_url

Source = Literal["head", "s3"]
UNKNOWN_ID = "?"
"""Of a damaged record that does not even say which job it is of."""
MAX_S3_RECORDS = 50
PIECE_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class JobRecord:
    """One job. Times in seconds since the epoch; `data` is its record as it was written.

    source: where the record was read. S3 has it as it was when it was copied there last.
    state: "damaged" if the record cannot be read; then only `id`, `source` and `error` are valid.
    stall: why the job makes no progress, while it makes none.
    """

    id: str
    state: JobState | Literal["damaged"]
    source: Source
    name: str = ""
    workers: int = 0
    servers: int = 0
    submitted_at: float = 0.0
    started_at: float | None = None
    ended_at: float | None = None
    exit_code: int | None = None
    error: str | None = None
    warnings: tuple[str, ...] = ()
    stall: str | None = None
    nodes: tuple[JobHost, ...] = ()
    roles: tuple[RecordRole, ...] = ()
    left: Left = field(default_factory=dict)
    cwd: str = ""
    command: tuple[str, ...] = ()
    project: str | None = None
    output_url: str | None = None
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


_OF_THE_FORM = {field.name for field in fields(JobRecord)} & set(Record.__struct_fields__) - {"stall"}


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
        known = job or find_record_id(data) or UNKNOWN_ID
        return JobRecord(id=known, state="damaged", error=str(error), source=source)
    same = {name: getattr(form, name) for name in _OF_THE_FORM}
    return JobRecord(**same, stall=form.stall.text if form.stall is not None else None, source=source, data=data)


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


# -- jobs in S3 --------------------------------------------------------------------------------------------------------


def read_s3_records(results: str, *, region: str) -> tuple[JobRecord, ...]:
    """The newest jobs below [data] results, newest first. Folders of something else are left out.

    Raises ClusterError's kinds; a bucket that does not exist has no jobs.
    """
    try:
        return asyncio.run(_read_records(parse_url(results), region=region))
    except NotFoundError:
        return ()


def fetch_s3_log(results: str, job: str, *, region: str, into: BinaryIO) -> None:
    """Write a job's events into a file. Raises NotFoundError, and ClusterError's other kinds."""
    asyncio.run(_fetch_log(_inside(parse_url(results), job, "events"), region=region, into=into))


async def _read_records(results: S3Url, *, region: str) -> tuple[JobRecord, ...]:
    async with open_s3(region=region) as client:
        folders = [item async for item in client.list_level(results) if isinstance(item, S3Url)]
        # A job's id begins with the moment at which it was made.
        names = sorted((folder.key.removesuffix("/").rpartition("/")[2] for folder in folders), reverse=True)
        found = await asyncio.gather(*(_read_record(client, results, name) for name in names[:MAX_S3_RECORDS]))
    return tuple(record for record in found if record is not None)


async def _read_record(client: S3Client, results: S3Url, job: str) -> JobRecord | None:
    body = bytearray()
    try:
        async for piece in _read(client, _inside(results, job, "record.json")):
            body += piece
            if len(body) > MAX_RECORD_BYTES:
                break
    except NotFoundError:  # the folder of something else
        return None
    record = read_record(bytes(body), source="s3", job=job)
    return None if record.is_damaged and OUR_JOB_ID.fullmatch(job) is None else record


async def _fetch_log(url: S3Url, *, region: str, into: BinaryIO) -> None:
    async with open_s3(region=region) as client:
        async for piece in _read(client, url):
            into.write(piece)


async def _read(client: S3Client, url: S3Url) -> AsyncIterator[bytes]:
    response = await client.call("get_object", Bucket=url.bucket, Key=url.key)
    expected, got = int(response["ContentLength"]), 0
    try:
        async with response["Body"] as stream:
            while piece := await stream.read(PIECE_BYTES):
                got += len(piece)
                yield piece
    except (BotoCoreError, OSError) as error:
        raise explain(error, "get_object", bucket=url.bucket, key=url.key) from error
    if got < expected:
        raise AwsError(f"{url}: only {got} of {expected} bytes came", hint="the same command again")


def _inside(results: S3Url, job: str, name: str) -> S3Url:
    return S3Url(bucket=results.bucket, key=f"{results.key}{job}/{name}")
