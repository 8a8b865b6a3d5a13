"""`cluster jobs`."""

from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime

import click

from cluster.app import App, pass_app, wide_option
from cluster.jobs import find_straggler, open_jobs
from cluster.nodes.ec2 import find_gone
from cluster.views.jobs import job_documents, render_jobs
from cluster.views.numbers import render_csv, render_json, render_numbers
from foundation.errors import UsageError
from node.job.scalars import Row, ScalarReader


@click.command("jobs")
@click.argument("job", required=False)
@click.option("--metrics", is_flag=True, help="Show the numbers that the job's workers have reported.")
@click.option("--csv", "as_csv", is_flag=True, help="Print these numbers as CSV, with a row for each.")
@click.option("--json", "as_json", is_flag=True, help="Print the jobs as JSON, or an object for each report.")
@wide_option
@pass_app
def jobs(app: App, *, job: str | None, metrics: bool, as_csv: bool, as_json: bool, wide: bool) -> None:
    """List the cluster's jobs, newest first, or show one job and where its files are.

    JOB is an id, the start of an id, or a name (the newest job of that name). The list comes from the head. Jobs that
    the head no longer has come from [data] results.

    --metrics shows speed, loss, accuracy and other numbers by worker, step and time, of JOB or of the newest job.
    """
    if as_csv and (as_json or not metrics):
        raise UsageError("--csv belongs to --metrics, without --json", hint="cluster jobs JOB --metrics --csv")
    if metrics:
        show_metrics(app, job, render_csv if as_csv else render_json if as_json else render_numbers)
        return
    with open_jobs(app) as sources:
        records = sources.find_records() if job is None else (sources.find_job(job),)
        nodes = sources.nodes
        straggler = find_straggler(app, sources, records[0]) if job is not None else None
    gone = find_gone(app, nodes.state) if nodes is not None and nodes.state is not None else frozenset()
    now = datetime.now(UTC)
    table = render_jobs(records, now=now, columns=app.find_columns(wide=wide), gone=gone, straggler=straggler)
    document = job_documents(records, now=now, gone=gone, straggler=straggler)
    app.show(table, document, as_json=as_json, wrapped=not wide)


def show_metrics(app: App, job: str | None, render: Callable[[Iterable[Row]], Iterator[str]]) -> None:
    """Prints the numbers that a job's workers have reported, while it reads them. Raises ClusterError or a subclass."""
    reader = ScalarReader()
    with open_jobs(app) as sources, sources.open_log(sources.find_job(job), reader.events.learn) as lines:
        for line in render(reader.read(lines)):
            app.print_line(line, wrapped=False)
