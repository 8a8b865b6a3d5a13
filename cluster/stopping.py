"""Stopping a job by its supervisor, or from here when the head cannot be reached."""

from collections.abc import Callable
from dataclasses import dataclass

from cluster.app import App
from cluster.job_head import end_from_here
from provision.errors import ClusterError, ConnectError
from train.events import Result
from train.head import Head, HeadGoneError
from train.run import STOPPED, render_left, stop_job


@dataclass(frozen=True, kw_only=True, slots=True)
class Stopped:
    """How a job ended. already: before it was to be stopped. by_head: its supervisor did it, and has it in the log."""

    result: Result
    already: bool = False
    by_head: bool = True


def stop(app: App, head: Head, job: str, *, say: Callable[[str], None] | None = None) -> Stopped:
    """Stop a job, running or queued, and see that nothing of it is left. say: for messages while a display is open.

    Raises ClusterError when something is left, or cannot be searched, and NotFoundError when there is no such job.
    """
    try:
        result, already = stop_job(head, job)
        stopped = Stopped(result=result, already=already)
    except (ConnectError, HeadGoneError) as error:
        stopped = Stopped(result=end_without_head(app, job, error, say=say or app.say), by_head=False)
    if stopped.result.left and not stopped.already:
        raise ClusterError(
            f"job {job} was stopped, but not all of it is known to have ended: {render_left(stopped.result.left)}",
            hint="cluster status",
        )
    return stopped


def end_without_head(app: App, job: str, error: ClusterError, *, say: Callable[[str], None]) -> Result:
    """End a job's processes on all nodes from here, since the head does not do it. Raises ClusterError."""
    say(f"{error.message}; ending the processes of job {job} on all nodes from here")
    left = end_from_here(app, job)
    return Result(state="stopped", exit_code=STOPPED, error="ended from the user's machine", left=left)
