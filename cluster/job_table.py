"""Jobs as text and as JSON. Pure."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

from cluster.status import render_table, render_took
from train.records import JobRecord

ERROR_WIDTH = 60


def render_jobs(records: Sequence[JobRecord], *, now: datetime) -> str:
    """A table of jobs in the order given; one sentence when there are none."""
    if not records:
        return "no job has run on this cluster"
    heading = ("JOB", "NAME", "STATE", "WORKERS", "SERVERS", "STARTED", "TOOK", "CODE", "ERROR")
    lines = render_table([heading, *(_row(record, now) for record in records)])
    in_s3 = any(record.source == "s3" for record in records)
    return f"{lines}\n(s3): as it was last copied to [data] results; not on the head any more" if in_s3 else lines


def job_documents(records: Sequence[JobRecord]) -> Iterator[dict[str, Any]]:
    """What `cluster jobs --json` prints: the records as they are, and where each was read."""
    return ({**record.document, "source": record.source} for record in records)


def _row(record: JobRecord, now: datetime) -> tuple[str, ...]:
    if record.is_damaged:
        state = "damaged" + (" (s3)" if record.source == "s3" else "")
        return (record.id, "-", state, "-", "-", "-", "-", "-", _shorten(record.error or "-"))
    lost = record.source == "s3" and not record.has_ended
    return (
        record.id,
        record.name,
        ("? " if lost else "") + record.state + (" (s3)" if record.source == "s3" else ""),
        str(record.workers),
        str(record.servers),
        _moment(record.started_at),
        "?" if lost else render_took(record, now=now),
        "-" if record.exit_code is None else str(record.exit_code),
        _shorten(record.error or record.stall or "; ".join(f"warning: {text}" for text in record.warnings) or "-"),
    )


def _moment(at: float | None) -> str:
    """In this machine's time zone."""
    return "-" if at is None else f"{datetime.fromtimestamp(at, UTC).astimezone():%Y-%m-%d %H:%M:%S}"


def _shorten(text: str) -> str:
    line = text.partition("\n")[0]
    return line if len(line) <= ERROR_WIDTH else f"{line[: ERROR_WIDTH - 3]}..."
