"""`cluster report`."""

from pathlib import Path

import click

from cluster.app import App, pass_app
from foundation.errors import UsageError


@click.command("report")
@click.argument("jobs", metavar="[JOB]...", nargs=-1)
@click.option("-o", "--output", metavar="FILE", help='The file to write; "-": stdout. Default: report-JOB.html.')
@click.option("--compare", is_flag=True, help="Compare the jobs; without JOB, the two newest ones.")
@click.option("--open", "opens", is_flag=True, help="Open the page in a browser.")
@click.option("--json", "as_json", is_flag=True, help="Print the numbers as JSON; write no page.")
@pass_app
def report(app: App, *, jobs: tuple[str, ...], output: str | None, compare: bool, opens: bool, as_json: bool) -> None:
    """Write a page about a job: its curves, ranks, nodes, errors and cost.

    JOB is an id, the start of an id, or a name; default: the newest job. Several jobs are compared on one page.
    The page is one HTML file, which needs no network and no scripts.
    """
    from cluster.report import load_jobs, report_document, write_report  # noqa: PLC0415 - slow

    if compare and len(jobs) == 1:
        raise UsageError("--compare needs two jobs or more", hint="cluster jobs")
    if as_json and (output or opens):
        raise UsageError("--json prints the numbers, and writes no page", hint="cluster report --json > FILE")
    found = load_jobs(app, *jobs, newest=2 if compare else 1)
    if as_json:
        app.print_json([report_document(job) for job in found])
        return
    path = Path(output or f"report-{'-'.join(job.record.id for job in found)[:150]}.html")
    write_report(path, found)
    if output != "-":
        app.print_line(str(path), wrapped=False)
    if opens:
        click.launch(path.resolve().as_uri())
