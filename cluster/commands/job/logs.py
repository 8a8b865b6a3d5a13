"""`cluster logs` and `results`."""

import json
import select
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Protocol, get_args

import click

from cluster.app import App, if_interrupted, pass_app
from cluster.jobs import JobSources, open_jobs
from cluster.nodes.results import copy_job
from cluster.submission.attach import report_results
from cluster.views.jobs import event_document
from cluster.views.live import JobDisplay
from cluster.views.results import find_hosts
from cluster.views.terminal import write_unchanged
from foundation.errors import JobError
from node.protocol import JobResult, LogWanted, NewFiles, Role
from train.follow.events import Event, EventReader, is_wanted, parse_since
from train.follow.records import JobRecord
from train.follow.run import check_result, pass_on


class Sink(Protocol):
    """Receives events."""

    def take(self, event: Event) -> None:
        """Shows an event."""

    def message(self, text: str) -> None:
        """Shows a message of `cluster` itself."""


@click.command("logs")
@click.argument("job", required=False)
@click.option("-f", "--follow", is_flag=True, help="Follow the job until it ends; exit with its code.")
@click.option("--rank", "ranks", type=int, multiple=True, metavar="R", help="Show only this rank; repeatable.")
@click.option(
    "--role", "roles", type=click.Choice(get_args(Role)), multiple=True, help="Show only this role; repeatable."
)
@click.option("--tail", type=click.IntRange(min=0), metavar="N", help="Show only the last N of these lines.")
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
    tail: int | None,
    since: str | None,
    plain: bool,
    as_json: bool,
) -> None:
    """Show the output of a job.

    JOB is an id, the start of an id, or a name; for a name, it shows the newest job of that name. Without JOB, it shows
    the newest job.
    """
    after = None if since is None else parse_since(since, now=time.time())
    wanted = LogWanted(roles=roles, ranks=ranks, tail=tail, since=after)
    with ExitStack() as stack:
        sources = stack.enter_context(open_jobs(app))
        record = sources.find_job(job)
        live = follow and not plain and not record.has_ended
        if follow and not record.has_ended:
            again = f"cluster logs -f {record.id} follows the job, which continues"
            stack.enter_context(if_interrupted(f"{again}; cluster stop {record.id} stops it"))
        try:
            with _open_sink(app, record, wanted, live=live, as_json=as_json) as sink:
                if live and (tail, after) != (None, None) and record.state != "damaged":
                    # The view needs the state, which is in an earlier line.
                    sink.take(Event(kind="state", at=record.started_at or record.submitted_at, state=record.state))
                result, files = show_log(sources, record, sink, wanted=wanted, follow=follow)
        except BrokenPipeError:  # as in `cluster logs | head`
            return
    if follow:
        end(app, record, result, files, quiet=as_json)


def end(
    app: App, record: JobRecord, result: JobResult | None, files: Sequence[NewFiles], *, quiet: bool = False
) -> None:
    """Says where the files of a job that was followed are. Raises JobError with its exit code unless it succeeded."""
    if result is None:
        raise JobError(f"{app.config.data.results} does not record the end of job {record.id}", exit_code=1)
    if not quiet:
        report_results(app, record.spec, files, hosts=find_hosts(record))
    check_result(record.id, result)


def check_stdout() -> None:
    """Raises BrokenPipeError if the reader of stdout has exited: without output, this would not be noticed."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    if any(found & select.POLLERR for _, found in poll.poll(0)):
        raise BrokenPipeError


def show_log(
    sources: JobSources, record: JobRecord, sink: Sink, *, wanted: LogWanted, follow: bool
) -> tuple[JobResult | None, Sequence[NewFiles]]:
    """Shows the wanted part of the log, with all ranks that are known by now, and follows it if asked.

    Returns the result if the job has ended, and its new files.
    """
    reader = EventReader()
    log = sources.open_log(record, reader.learn, message=sink.message, check=check_stdout, wait=follow, wanted=wanted)
    with log as lines:
        return pass_on(lines, reader, sink.take), reader.files


@contextmanager
def _open_sink(app: App, record: JobRecord, wanted: LogWanted, *, live: bool, as_json: bool) -> Iterator[Sink]:
    if as_json:
        yield JsonLines(app, wanted)
        return
    head = next((node.name for node in record.nodes), "node-0")
    display = JobDisplay(app, record.spec, head=head, plain=not live, wanted=wanted)
    try:
        yield display
    except BrokenPipeError:  # a part of the log tells nothing about the job
        display.close(with_summary=False)
        raise
    finally:
        display.close()


class JsonLines:
    """Prints each wanted event as a JSON object on one line."""

    def __init__(self, app: App, wanted: LogWanted) -> None:
        self._app = app
        self._wanted = wanted

    def take(self, event: Event) -> None:
        """Prints an event if it is wanted."""
        if event.kind not in ("process", "bar") and is_wanted(event, self._wanted):
            write_unchanged(sys.stdout, json.dumps(event_document(event)))

    def message(self, text: str) -> None:
        """Prints a message to stderr."""
        self._app.message(text)


@click.command("results")
@click.argument("job", required=False)
@click.argument("folder", metavar="[DIR]", type=click.Path(path_type=Path, file_okay=False), required=False)
@pass_app
def results(app: App, *, job: str | None, folder: Path | None) -> None:
    """Copy the files that a job has created.

    JOB is an id, the start of an id, or a name; default: the newest job. DIR defaults to results/ID/. The files are
    those that the job has created or changed in the folder that it runs in, on each of its nodes; those in
    $CLUSTER_OUTPUT_DIR, below output/; and those in its folder of [data] results. If nodes have files of the same name,
    each node's files go into a folder of its own.

    Files that DIR already has in the same version are skipped. Nothing is written outside DIR.
    """
    copy_job(app, job, folder)
