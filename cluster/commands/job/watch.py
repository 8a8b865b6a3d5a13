"""`cluster watch`."""

import asyncio
import sys

import click

from cluster.app import App, if_interrupted, pass_app
from cluster.commands.job.logs import end, logs
from cluster.jobs import open_jobs
from cluster.views.terminal import can_draw
from cluster.watch.model import WatchedJob


@click.command("watch")
@click.argument("job", required=False)
@click.option("--web", is_flag=True, help="Serve the job's report to this machine's browsers, and refresh it.")
@click.pass_context
def watch(ctx: click.Context, *, job: str | None, web: bool) -> None:
    """Watch a job on the whole terminal: its nodes, ranks, curves and log.

    JOB is an id, the start of an id, or a name (the newest job of that name); default: the newest job. The keys are on
    the last line. q leaves, and the job runs on; s stops the job. Without a terminal, this is `cluster logs -f`.
    """
    if web:
        ctx.invoke(_serve, job=job)
    elif sys.stdin.isatty() and sys.stdout.isatty() and can_draw(sys.stderr):
        ctx.invoke(_watch, job=job)
    else:
        ctx.invoke(logs, job=job, follow=True)


@pass_app
def _watch(app: App, *, job: str | None) -> None:
    from cluster.watch.screen import WatchScreen  # noqa: PLC0415 - textual is slow to import

    with open_jobs(app) as sources:
        record = sources.find_job(job)
        app.close()  # removes the spinner
        watched = WatchedJob(app, sources, record)
        runs = f"job {record.id} continues: cluster watch {record.id} shows it again, cluster stop {record.id} stops it"
        with if_interrupted(runs):
            error = WatchScreen(watched).run()
            if error is not None:
                raise error
    if watched.has_ended:
        end(app, record, watched.result, watched.files)
    else:
        app.message(runs)


@pass_app
def _serve(app: App, *, job: str | None) -> None:
    """Serves the job's report until Ctrl-C."""
    from cluster.report import load_jobs, render_report  # noqa: PLC0415 - the plots are slow to import
    from cluster.watch.web import serve  # noqa: PLC0415 - as above

    with open_jobs(app) as sources:
        job_id = sources.find_job(job).id  # the name may soon mean another job

    def render() -> tuple[str, bool]:
        [found] = load_jobs(app, job_id)
        return render_report([found]), found.record.has_ended

    def show(url: str) -> None:
        app.print(url, wrapped=False)
        app.message(f"serves the report of job {job_id} to this machine alone, until Ctrl-C{app.reach}")

    with if_interrupted(f"cluster watch --web {job_id} serves it again"):
        asyncio.run(serve(render, show))
