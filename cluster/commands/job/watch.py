"""`cluster watch`."""

import sys
from contextlib import suppress
from functools import partial

import click

from cluster.app import App, if_interrupted, pass_app
from cluster.commands.job.logs import end, logs, show_log
from cluster.jobs import JobSources, end_job, open_head, open_jobs
from cluster.views.live import make_advisor
from cluster.views.terminal import can_draw
from cluster.watch.model import JobModel
from foundation.errors import ClusterError
from node.protocol import JobResult, LogWanted, NewFiles
from train.follow.goals import find_epochs
from train.follow.records import JobRecord
from train.follow.samples import read_samples

SAMPLE_EVERY_S = 5.0


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
    with open_jobs(app) as sources:
        record = sources.find_job(job)
        app.close()  # removes the spinner
        with if_interrupted(_still_running(record.id)):
            watched = Watched(app, sources, record)
            watched.run()
    if watched.has_ended:
        end(app, record, watched.result, watched.files)
    else:
        app.message(_still_running(record.id))


@pass_app
def _serve(app: App, *, job: str | None) -> None:
    """Serves the job's report until Ctrl-C."""
    from cluster.report import load_jobs, render_report  # noqa: PLC0415 - the plots are slow to import
    from cluster.watch.web import LivePage, make_server  # noqa: PLC0415 - as above

    with open_jobs(app) as sources:
        job_id = sources.find_job(job).id  # the name may soon mean another job

    def render() -> tuple[str, bool]:
        [found] = load_jobs(app, job_id)
        return render_report([found]), found.record.has_ended

    server, url = make_server(LivePage(render))
    app.print(url, wrapped=False)
    app.message(f"serves the report of job {job_id} to this machine alone, until Ctrl-C")
    with server, if_interrupted(f"cluster watch --web {job_id} serves it again"):
        server.serve_forever()


class Watched:
    """A job on the screen. result, files: as show_log returns them, once has_ended."""

    def __init__(self, app: App, sources: JobSources, record: JobRecord) -> None:
        self._app, self._sources, self._record = app, sources, record
        self.result: JobResult | None = None
        self.files: tuple[NewFiles, ...] = ()
        self.has_ended = False
        spec = record.spec
        program = (spec.script or "", *spec.command)
        self._model = JobModel(
            title=f"job {record.name}",
            head=next((node.name for node in record.nodes), "node-0"),
            epochs=find_epochs(program),
            advisor=make_advisor(app, spec),
            synchronous=spec.is_synchronous,
        )

    def run(self) -> None:
        """Shows the job until the user leaves.

        Raises KeyboardInterrupt after Ctrl-C, ClusterError when the job cannot be followed to its end.
        """
        from cluster.watch.screen import WatchScreen  # noqa: PLC0415 - textual is slow to import

        model = self._model
        interrupted = WatchScreen(model, follow=self._follow, sample=self._sample, stop=self._stop).run()
        if model.error is not None:
            raise model.error
        if interrupted:
            raise KeyboardInterrupt

    def _follow(self) -> None:
        wanted = LogWanted(roles=(), ranks=(), tail=None)
        self.result, files = show_log(
            self._sources, self._record, self._model, wanted=wanted, follow=True, check=self._model.refresh
        )
        self.files, self.has_ended = tuple(files), True

    def _sample(self) -> None:
        """Fetches the nodes' samples until the user leaves or the job ends. Without them, the screen has no nodes."""
        nodes, data = self._sources.nodes, self._app.config.data
        if nodes is None:
            return
        read = partial(read_samples, self._record, results=data.s3_results, region=self._app.config.provision.region)
        since = 0.0
        with suppress(ClusterError), open_head(self._app, nodes) as head:
            while True:
                with suppress(ClusterError):  # the thread that follows the job says so
                    since = self._model.take_samples(read(head, since=since))
                if self.has_ended or self._model.wait(SAMPLE_EVERY_S):
                    return

    def _stop(self) -> None:
        nodes = self._sources.nodes
        if nodes is None:
            raise AssertionError  # without them, no job is found
        self._model.message(f"stopping job {self._record.id}")
        try:
            with open_head(self._app, nodes) as head:
                end_job(self._app, head, self._record.id, message=self._model.message)
        except ClusterError as error:
            self._model.message(f"{error.message} ({error.hint})" if error.hint else error.message)


def _still_running(job: str) -> str:
    return f"job {job} continues: cluster watch {job} shows it again, cluster stop {job} stops it"
