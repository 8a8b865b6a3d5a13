"""Reads jobs' records, from the head, and from S3 if [data] results is set.

The copy in S3 (node/supervisor/publish.py) outlives the cluster.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, islice
from typing import Any, Literal, Optional

from msgspec import Struct, structs, to_builtins

from foundation.decode import decode
from foundation.errors import ClusterError, NotFoundError, UsageError
from foundation.thread_pool import Check, map_in_threads, run_in_thread
from node.protocol import (
    MAX_LINE_BYTES,
    MAX_RECORD_BYTES,
    OUR_JOB_ID,
    JobId,
    JobSpec,
    Name,
    Record,
    Unhealthy,
)
from train.s3.connection import CONNECTIONS, Connection
from train.s3.url import S3Object, S3Url, parse_url

Source = Literal["head", "s3"]
RUNNING: frozenset[str] = frozenset({"pending", "starting", "running", "waiting", "ending"})
UNKNOWN_ID = "?"
"""The id for a damaged record that has none."""
MAX_JOBS = 1000  # the head keeps 50 that have ended
MAX_VALUES = 600_000  # in its list of jobs
MAX_S3_RECORDS = 50
LOG_PIECE_BYTES = 8 << 20  # one request each, so that a reader may take its time between them
BLOCK_BYTES = 1 << 16  # of whole lines: at most, unless one is longer
BLOCK_LINES = 512  # have about as many bytes


class JobRecord(Record, kw_only=True):
    """One job, as the command line finds it.

    source: where the record was read. The copy in S3 may be older.
    state: "damaged" if the record cannot be read; then only `id`, `source` and `error` are valid.
    """

    source: Source = "head"

    @property
    def is_damaged(self) -> bool:
        """Whether the record cannot be read."""
        return self.state == "damaged"

    @property
    def document(self) -> Mapping[str, Any]:
        """The record as one table, by the names of `cluster jobs --json`; the id and error of a damaged one."""
        if self.is_damaged:
            return {"id": self.id, "state": self.state, "error": self.error}
        train = self.spec.train
        of_train = ("launcher", "kv_store", "subfolder", "max_duration_s", "on_node_loss")
        fields = to_builtins(self.spec) | {name: getattr(train, name) for name in of_train} | to_builtins(self)
        stored = ("spec", "train", "source", "roles")
        return {key: value for key, value in fields.items() if key not in stored} | {
            "script": self.spec.script,
            "cause": self.result.cause,
            "nodes": [
                _rename(one, ip="private_ip")
                | {"machine": _rename(one["machine"], type="instance_type", image="image_id")}
                for one in fields["nodes"]
            ],
            "processes": [_rename(process, host="node") for process in fields["roles"]],
            "files": [_rename(one, host="node") for one in fields["files"]],
        }


def _rename(fields: Mapping[str, Any], **names: str) -> dict[str, Any]:
    return {names.get(name, name): value for name, value in fields.items()}


class DamagedRecordError(ClusterError):
    """The record of a job cannot be read; `job` is its id."""

    def __init__(self, record: JobRecord) -> None:
        super().__init__(
            f"the record of job {record.id} is damaged: {record.error}",
            hint="cluster jobs" if record.id == UNKNOWN_ID else f"cluster stop {record.id} ends it",
        )
        self.job = record.id


class _Identified(Struct, frozen=True, kw_only=True):
    id: JobId | None = None
    spec: Optional["_Identified"] = None


class _Jobs(Struct, frozen=True, kw_only=True):
    jobs: list[Any]
    unhealthy: dict[Name, Unhealthy] = {}


def read_record(data: bytes, *, source: Source, job: str | None = None) -> JobRecord:
    """Parses a job's record; a damaged one gets the state "damaged". job: its id, if known."""
    try:
        if len(data) > MAX_RECORD_BYTES:
            raise ValueError(f"longer than {MAX_RECORD_BYTES >> 20} MiB")  # noqa: TRY301 - as for other damage
        return structs.replace(decode(data, JobRecord), source=source)
    except ValueError as error:
        spec = JobSpec(id=job or find_record_id(data) or UNKNOWN_ID, name="", workers=0, servers=0)
        return JobRecord(spec=spec, state="damaged", submitted_at=0.0, error=str(error), source=source)


def find_record_id(data: bytes) -> str | None:
    """The id in a record that may be damaged, or in what the head sends in its place; None if it has none."""
    try:
        found = decode(data, _Identified)
    except ValueError:
        return None
    return found.id or (found.spec.id if found.spec is not None else None)


def read_jobs(line: bytes) -> tuple[tuple[JobRecord, ...], Mapping[str, Unhealthy]]:
    """The jobs in the head's list, damaged records included, and the unhealthy nodes. Raises ValueError."""
    if line.count(b",") > MAX_VALUES:
        raise ValueError(f"more than {MAX_VALUES} values in the list of jobs")
    found = decode(line, _Jobs)
    if len(found.jobs) > MAX_JOBS:
        raise ValueError(f"more than {MAX_JOBS} jobs in the list")
    return tuple(read_record(json.dumps(job).encode(), source="head") for job in found.jobs), found.unhealthy


def merge_records(*sources: Iterable[JobRecord]) -> tuple[JobRecord, ...]:
    """All jobs, newest first, damaged records last. Of several records of a job, returns the first intact one."""
    found: dict[str, JobRecord] = {}
    for record in chain(*sources):
        if record.id not in found or found[record.id].is_damaged:
            found[record.id] = record
    return tuple(sorted(found.values(), key=lambda record: (record.submitted_at, record.id), reverse=True))


def choose_job(records: Sequence[JobRecord], words: str | None) -> JobRecord:
    """The job that `words` names: by its id, its name (the newest of that name) or the beginning of its id.

    None: the newest job. Raises NotFoundError, UsageError for a beginning of several ids, DamagedRecordError.
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
    found = [record for record in records if words and record.id.startswith(words)]
    if len(found) > 1:
        listed = ", ".join(record.id for record in found[:5])
        raise UsageError(f'"{words}" matches {len(found)} jobs: {listed}', hint="cluster jobs")
    if not found:
        raise NotFoundError(f'there is no job "{words}"', hint="cluster jobs")
    return found[0]


def find_running(records: Iterable[JobRecord]) -> JobRecord | None:
    """The job that runs now, rather than one that a batch scheduler lets wait, or a notebook beside it."""
    found = [record for record in records if record.source == "head" and record.state in RUNNING]
    return min(found, key=lambda record: (record.spec.beside, record.state == "pending"), default=None)


# -- jobs in S3 --------------------------------------------------------------------------------------------------------


def read_s3_records(results: str, *, region: str) -> tuple[JobRecord, ...]:
    """The newest jobs below [data] results, newest first. Skips folders that are not a job's.

    Returns none if the bucket does not exist. Raises ClusterError or a subclass.
    """
    folder = parse_url(results).as_folder()
    connection = Connection(region=region)
    try:
        folders = [item for item in connection.list_level(folder) if isinstance(item, S3Url)]
    except NotFoundError:
        return ()
    # A job's id begins with its time. Other folders take none of the places.
    names = [below.key.removesuffix("/").rpartition("/")[2] for below in folders]
    names.sort(key=lambda name: (OUR_JOB_ID.fullmatch(name) is not None, name), reverse=True)

    def read(name: str, _check: Check) -> JobRecord | None:
        return _read_record(connection, folder, name)

    found = map_in_threads(read, names[:MAX_S3_RECORDS], threads=CONNECTIONS)
    return tuple(record for record in found if record is not None)


def _read_record(connection: Connection, results: S3Url, job: str) -> JobRecord | None:
    url = _inside(results, job, "record.json")
    try:
        body = connection.read(url, most_bytes=MAX_RECORD_BYTES + 1)
    except NotFoundError:  # not a job's folder
        return None
    record = read_record(body, source="s3", job=job)
    return None if record.is_damaged and OUR_JOB_ID.fullmatch(job) is None else record


def find_last_copy(results: str, job: str, *, region: str) -> float | None:
    """When something of a job was last copied to S3, in seconds since the epoch: its head does so every minute.

    None if nothing was. Raises ClusterError or a subclass.
    """
    found = Connection(region=region).list_level(_inside(parse_url(results).as_folder(), job, ""))
    return max((item.modified.timestamp() for item in found if isinstance(item, S3Object)), default=None)


class S3Log:
    """A job's log in S3, read in pieces."""

    def __init__(self, connection: Connection, url: S3Url) -> None:
        self._connection, self._url = connection, url
        self.size = int(connection.call("head_object", Bucket=url.bucket, Key=url.key)["ContentLength"])

    def read(self, start: int, end: int) -> bytes:
        """Its bytes from one offset to another. Raises ClusterError or a subclass."""
        return self._connection.read(self._url, Range=f"bytes={start}-{end - 1}") if start < end else b""

    def lines(self, start: int = 0) -> Iterator[bytes]:
        """Its lines, without newlines. Raises as read."""
        return chain.from_iterable(block[:-1].split(b"\n") for block in self.blocks(start))

    def blocks(self, start: int = 0) -> Iterator[bytes]:
        """Its lines, many at a time, each with its newline. Raises as read."""
        rest = b""
        for piece in self._pieces(start):
            data, at = rest + piece, 0
            while end := data.rfind(b"\n", at, at + BLOCK_BYTES) + 1 or data.find(b"\n", at) + 1:
                yield data[at:end]
                at = end
            rest = data[at:]
            if len(rest) > MAX_LINE_BYTES:  # not ours
                yield rest + b"\n"
                rest = b""
        if rest:
            yield rest + b"\n"

    def _pieces(self, start: int) -> Iterator[bytes]:
        """Its bytes; while the caller works with a piece, the next one arrives."""
        arriving = None
        for at in range(start, self.size, LOG_PIECE_BYTES):
            following = run_in_thread(partial(self.read, at, min(at + LOG_PIECE_BYTES, self.size)))
            if arriving is not None:
                yield arriving.result()
            arriving = following
        if arriving is not None:
            yield arriving.result()


def join_lines(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Lines without newlines as blocks, as `S3Log.blocks` yields them. Pure."""
    rows = iter(lines)
    while batch := list(islice(rows, BLOCK_LINES)):
        yield b"\n".join([*batch, b""])


def open_s3_log(results: str, job: str, *, region: str, name: str = "events") -> S3Log:
    """Finds a job's log, or another file of lines. Raises ClusterError or a subclass, such as NotFoundError."""
    return S3Log(Connection(region=region), _inside(parse_url(results).as_folder(), job, name))


def _inside(results: S3Url, job: str, name: str) -> S3Url:
    return S3Url(bucket=results.bucket, key=f"{results.key}{job}/{name}")
