"""`cluster jobs` and `logs`."""

import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, BinaryIO, Protocol, get_args

import click

from cluster.app import App, pass_app, wide_option
from cluster.completion import JOB
from cluster.jobs import JobSources, open_jobs
from cluster.nodes.ec2 import Ec2Nodes
from cluster.recovery.lost_head import find_gone
from cluster.views.jobs import job_documents, render_jobs
from cluster.views.live import JobDisplay
from cluster.views.status import iso_time
from foundation.errors import JobError
from train.follow.events import Event, EventReader, Selection, parse_since
from train.follow.records import JobRecord, fetch_s3_log
from train.follow.run import Follower, LogStream, check_result
from train.job.protocol import MAX_LINE_BYTES, JobResult, Role


@click.command("jobs")
@click.option("--json", "as_json", is_flag=True, help="Print the jobs as JSON.")
@wide_option
@pass_app
def jobs(app: App, *, as_json: bool, wide: bool) -> None:
    """List the cluster's jobs, newest first.

    The list comes from the head. Jobs that the head no longer has come from [data] results.
    """
    with open_jobs(app) as sources:
        records, nodes = sources.find_records(), sources.nodes
    gone = find_gone(app, nodes.state) if isinstance(nodes, Ec2Nodes) else frozenset()
    now = datetime.now(UTC)
    table = render_jobs(records, now=now, columns=app.find_columns(wide=wide), gone=gone)
    app.show(table, job_documents(records, now=now, gone=gone), as_json=as_json, wrapped=not wide)


class Sink(Protocol):
    """Receives events."""

    def take(self, event: Event) -> None:
        """Shows an event."""

    def say(self, text: str) -> None:
        """Shows a message of `cluster` itself."""


@click.command("logs")
@click.argument("job", type=JOB, required=False)
@click.option("-f", "--follow", is_flag=True, help="Follow the job until it ends; exit with its code.")
@click.option("--rank", "ranks", type=int, multiple=True, metavar="R", help="Show only this rank; repeatable.")
@click.option(
    "--role", "roles", type=click.Choice(get_args(Role)), multiple=True, help="Show only this role; repeatable."
)
@click.option("--since", metavar="TIME", help='Show lines since "10m" ago, or since "2026-11-21T10:00".')
@click.option("--plain", is_flag=True, help="Print every line; show no live view.")
@click.option("--json", "as_json", is_flag=True, help="Print each line as a JSON object.")
@pass_app
def logs(
    app: App,
    *,
    job: str | None,
    follow: bool,
    ranks: tuple[int, ...],
    roles: tuple[Role, ...],
    since: str | None,
    plain: bool,
    as_json: bool,
) -> None:
    """Show the output of a job.

    JOB is an id, the start of an id, or a name; for a name, it shows the newest job of that name. Without JOB, it shows
    the newest job.
    """
    selection = Selection(
        ranks=frozenset(ranks),
        roles=frozenset(roles),
        since=None if since is None else parse_since(since, now=time.time()),
    )
    with ExitStack() as stack:
        sources = stack.enter_context(open_jobs(app))
        record = sources.find_job(job)
        live = follow and not plain and not record.has_ended
        with _open_sink(app, record, selection, live=live, as_json=as_json) as sink:
            result = _show(app, sources, record, sink, follow=follow)
    if follow:
        if result is None:
            raise JobError(f"{app.config.data.results} does not record the end of job {record.id}", exit_code=1)
        check_result(record.id, result)


def _show(app: App, sources: JobSources, record: JobRecord, sink: Sink, *, follow: bool) -> JobResult | None:
    """Shows the log so far, with all known ranks; then follows it if asked. Returns the result if the job has ended."""
    with tempfile.TemporaryFile(prefix="cluster-log-") as log:
        if record.source == "s3" or sources.head is None:
            fetch_s3_log(str(app.config.data.s3_results), record.id, region=app.config.provision.region, into=log)
            return replay(log, sink.take)[1]
        for line in LogStream(sources.head, record.id, say=sink.say, wait=False).lines():
            log.write(line + b"\n")
        reader, result = replay(log, sink.take)
        if result is not None or not follow:
            return result
        offset = log.tell()
    follower = Follower(sources.head, record.id, take=sink.take, say=sink.say, reader=reader, offset=offset)
    return follower.run()


@contextmanager
def _open_sink(app: App, record: JobRecord, selection: Selection, *, live: bool, as_json: bool) -> Iterator[Sink]:
    if as_json:
        yield JsonLines(app, selection)
        return
    head = next((node.name for node in record.nodes), "node-0")
    display = JobDisplay(
        app, plain=not live, selection=selection, title=f"job {record.name}", head=head, image=record.image
    )
    try:
        yield display
    finally:
        display.close()


class JsonLines:
    """Prints each selected event as a JSON object on one line."""

    def __init__(self, app: App, selection: Selection) -> None:
        self._app = app
        self._selection = selection

    def take(self, event: Event) -> None:
        """Prints an event if it is selected."""
        if event.kind != "process" and self._selection.takes(event):
            sys.stdout.write(json.dumps(event_document(event)) + "\n")
            sys.stdout.flush()

    def say(self, text: str) -> None:
        """Prints a message to stderr."""
        self._app.say(text)


def event_document(event: Event) -> dict[str, Any]:
    """Returns an event as `cluster logs --json` prints it. Pure."""
    document: dict[str, Any] = {"time": iso_time(event.at), "kind": event.kind}
    if event.process is not None:
        document |= {"role": event.process.role, "rank": event.process.rank, "host": event.process.host}
    if event.kind in {"line", "say", "damaged"}:
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


def replay(log: BinaryIO, take: Callable[[Event], None]) -> tuple[EventReader, JobResult | None]:
    """Passes all events of a log to `take`, with each process's rank as known at the end of the log.

    So lines that were printed before their rank was known have it, too. Reads the file to its end. Returns the reader,
    and the job's result if the log contains it.
    """
    known = EventReader()
    log.seek(0)
    for line in _read_lines(log):
        if b'"p"' in line and b'"line"' not in line:
            known.read(line)
    reader, result = EventReader(), None
    log.seek(0)
    for line in _read_lines(log):
        event = reader.read(line)
        if event is None:
            continue
        if event.process is not None:
            named = known.processes.get(event.process.number, event.process)
            event = replace(event, process=replace(event.process, rank=named.rank))
        take(event)
        result = event.result or result
    return reader, result


def _read_lines(log: BinaryIO) -> Iterator[bytes]:
    """Yields a file's lines, cut at MAX_LINE_BYTES, the length of the longest line that the head writes."""
    while line := log.readline(MAX_LINE_BYTES):
        yield line
        while len(line) == MAX_LINE_BYTES and not line.endswith(b"\n"):
            line = log.readline(MAX_LINE_BYTES)
