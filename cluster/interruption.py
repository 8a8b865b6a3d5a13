"""The job that a command would interrupt, for the question that is asked before."""

from collections.abc import Callable
from datetime import UTC, datetime

from cluster.app import App
from cluster.head_job import ask_for_job
from cluster.status import HeadJob, render_took
from provision.model import ClusterState

Asked = Callable[[], str | None]


def ask_what_runs(app: App, state: ClusterState) -> Asked:
    """Begin to ask the head; the function returned waits, for seconds at most, and says what would be interrupted.

    It returns None where nothing runs, or there is no running head. A head that cannot be asked is no error: it may be
    the reason why the cluster is to end.
    """
    wait = ask_for_job(app, state)

    def say() -> str | None:
        job = wait()
        return None if job is None else render_interruption(job, now=datetime.now(UTC))

    return say


def confirm_ending(app: App, question: str, what_runs: Asked | None) -> bool:
    """Ask, after saying what would be interrupted; without `what_runs` there is nothing to ask. Raises UsageError."""
    if what_runs is None:
        return True
    said = what_runs()
    if said is not None:
        app.say(said, style="yellow")
    return app.confirm(question, yes=False)


def render_interruption(job: HeadJob, *, now: datetime) -> str | None:
    """What a job's nodes ending means to it; None when nothing is lost. Pure."""
    if job.why is not None:
        return f"whether a job runs there is not known: {job.why}"
    queued = f", and {job.queued} queued" if job.queued else ""
    if job.record is None:
        return f"{job.queued} queued there would not run" if job.queued else None
    took = "" if job.record.started_at is None else f", for {render_took(job.record, now=now)} now"
    return f"job {job.record.id} ({job.record.name}) runs there{took}{queued}: it would be interrupted"
