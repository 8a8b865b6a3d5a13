"""A cluster's jobs, as text and as JSON. Pure."""

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any

from cluster.views.document import as_document, iso_time
from cluster.views.layout import render_table
from cluster.views.results import render_files
from cluster.views.status import render_took, render_usd
from foundation.durations import render_age, render_time
from node.job import cost
from node.protocol import Attempt
from provision.model import count
from train.follow.events import Event
from train.follow.records import JobRecord
from train.follow.stragglers import Straggler


def render_jobs(
    records: Sequence[JobRecord],
    *,
    now: datetime,
    columns: int | None = None,
    gone: Collection[str] = (),
    straggler: Straggler | None = None,
) -> str:
    """Renders a table of jobs in the given order; one sentence when there are none.

    columns: the width that it fits into. The error and the warnings of a job follow on separate lines. gone: ids of
    instances that have ended. straggler: of the first job.
    """
    if not records:
        return "no job has run on this cluster"
    heading = ("JOB", "NAME", "STATE", "WORKERS", "SERVERS", "STARTED", "TOOK", "COST", "CODE")
    table = render_table(
        [heading, *(_job_row(record, now) for record in records)],
        columns=columns,
        drop=("SERVERS", "WORKERS", "STARTED", "COST", "TOOK", "NAME"),  # an id begins with a time, too
    )
    first, *rows = table.split("\n")
    lines = [first]
    for record, row in zip(records, rows, strict=True):
        lines += [row, *(f"    {note}" for note in _describe_trouble(record))]
        if has_lost_head(record, gone):
            lines.append(f"    its head, {record.nodes[0].name}, has ended")
        if straggler is not None and record is records[0]:
            lines.append(f"    slow: {straggler.why}")
    newest = next((record for record in records if not record.is_damaged), None)
    if newest is not None and (files := render_files(newest)):
        lines.append(f"files of {newest.id}: {files}")
    if any(record.source == "s3" for record in records):
        lines.append("(s3): the last copy in [data] results; no longer on the head")
    return "\n".join(lines)


def job_documents(
    records: Sequence[JobRecord], *, now: datetime, gone: Collection[str] = (), straggler: Straggler | None = None
) -> list[dict[str, Any]]:
    """Returns the output of `cluster jobs --json`: the records with their times in ISO 8601, and the source of each.

    gone: ids of instances that have ended. straggler: of the first job.
    """
    return [
        as_document(
            {
                **record.document,
                **({} if record.is_damaged else {"cost_usd": find_cost(record, now)}),
                "source": record.source,
                "head_lost": has_lost_head(record, gone),
                "straggler": straggler if record is records[0] else None,
            },
            rounded=False,
        )
        for record in records
    ]


def find_cost(record: JobRecord, now: datetime) -> float | None:
    """Returns what a job's nodes have cost so far; None if unknown.

    Computed for a running job, because the head updates the cost in the record only when something else has changed.
    """
    if record.source == "s3" or record.has_ended or record.is_damaged:
        return record.cost_usd
    return cost.find_cost(record, now.timestamp())


def has_lost_head(record: JobRecord, gone: Collection[str]) -> bool:
    """Whether the instance that was a job's head ended before the job did. gone: ids of instances that have ended."""
    heads = {host.instance_id for host in record.nodes[:1]}
    return record.source == "s3" and not record.has_ended and not heads.isdisjoint(gone)


def _job_row(record: JobRecord, now: datetime) -> tuple[str, ...]:
    in_s3 = " (s3)" if record.source == "s3" else ""
    if record.is_damaged:
        return (record.id, "-", f"damaged{in_s3}", *("-" for _ in range(6)))
    lost = record.source == "s3" and not record.has_ended
    return (
        record.id,
        record.name,
        f"{'? ' if lost else ''}{record.state}{in_s3}",
        str(record.spec.workers),
        str(record.spec.servers),
        "-" if record.started_at is None else render_time(record.started_at),
        "?" if lost else render_took(record, now=now),
        "-" if (usd := find_cost(record, now)) is None else render_usd(usd),
        "-" if record.exit_code is None else str(record.exit_code),
    )


def _describe_trouble(record: JobRecord) -> list[str]:
    """Returns a job's attempts, error or stall, place in a scheduler's queue and warnings, one line each."""
    found = render_attempts(record)
    found += [f"cause: {record.result.cause}"] if record.result.cause else []
    found += [record.error] if record.error else [record.stall.text] if record.stall else []
    found += [f"stack of {text}" for text in record.stacks]
    if record.job_number and not record.has_ended:
        pending = f": {record.pending}" if record.pending else ""
        found.append(f"{record.spec.scheduler} job {record.job_number}{pending}")
    return [text.partition("\n")[0] for text in (*found, *(f"warning: {text}" for text in record.warnings))]


def render_attempts(record: JobRecord) -> list[str]:
    """Describes the ended attempts of a job, except the final one, and the nodes that it waits for; one line each."""
    lines = []
    for attempt in record.attempts:
        is_last = attempt is record.attempts[-1]
        if attempt.ended_at is None or (is_last and record.has_ended):
            continue
        took = render_age(attempt.ended_at - attempt.started_at)
        lost = "" if attempt.lost_batches is None else f", {count(attempt.lost_batches, 'batch', 'batches')} lost"
        lines.append(f"attempt {attempt.number} ended after {took}: {_render_reason(attempt)}{lost}")
    if record.waiting_for:
        lines.append(f"waiting for {', '.join(record.waiting_for)}")
    return lines


def _render_reason(attempt: Attempt) -> str:
    names = ", ".join(attempt.lost)
    if attempt.reason == "notice":
        return f"{names} interrupted (spot notice)"
    if attempt.reason == "lost":
        return f"{names} lost"
    if attempt.reason == "unhealthy":
        return f"it failed, and {names} {'are' if len(attempt.lost) > 1 else 'is'} unhealthy"
    return (attempt.cause or attempt.error or f"exit code {attempt.exit_code}").partition("\n")[0]


def event_document(event: Event) -> dict[str, Any]:
    """Returns an event as `cluster logs --json` prints it. Pure."""
    document: dict[str, Any] = {"time": iso_time(event.at), "kind": event.kind}
    if event.process is not None:
        document |= {"role": event.process.role, "rank": event.process.rank, "node": event.process.host}
    if event.kind in {"line", "message", "damaged"}:
        document["text"] = event.text
    if event.kind == "warnings":
        document["warnings"] = list(event.warnings)
    if event.stalled_since is not None:
        document["stalled_since"] = iso_time(event.stalled_since or None)
    if event.state is not None:
        document["state"] = event.state
    if event.result is not None:
        document |= {"exit_code": event.result.exit_code, "error": event.result.error}
    return document
