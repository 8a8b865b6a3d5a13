"""`cluster jobs`."""

from datetime import UTC, datetime

import click

from cluster.app import App, pass_app
from cluster.job_sources import open_jobs
from cluster.job_table import job_documents, render_jobs


@click.command("jobs")
@click.option("--json", "as_json", is_flag=True, help="Print the jobs as JSON.")
@pass_app
def command(app: App, *, as_json: bool) -> None:
    """Show the cluster's jobs, the newest first.

    As the head knows them, and what [data] results has of those that it does not know any more.
    """
    with open_jobs(app) as sources:
        records = sources.find_records()
    if as_json:
        app.print_json_array(job_documents(records))
    else:
        app.print(render_jobs(records, now=datetime.now(UTC)))
