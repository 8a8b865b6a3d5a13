"""Stopping a job by its supervisor, or from here when the head cannot be reached; and ending what one has left."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from cluster.app import App
from cluster.job_head import end_from_here
from provision.errors import ClusterError, ConnectError
from provision.model import ClusterState
from train.events import Result
from train.head import AnswerError, Head, HeadGoneError
from train.records import JobRecord
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
    except (ConnectError, HeadGoneError, AnswerError) as error:
        stopped = Stopped(result=end_without_head(app, job, error, say=say or app.say), by_head=False)
    _check_left(job, stopped)
    return stopped


def find_left(records: Iterable[JobRecord]) -> JobRecord | None:
    """The newest job that has ended, if something of it is not known to have ended. records: newest first. Pure."""
    newest = next((record for record in records if record.has_ended), None)
    return newest if newest is not None and newest.left else None


def end_left(head: Head, record: JobRecord, state: ClusterState) -> Stopped:
    """Have the head end what a job that has ended left on its hosts. state: the cluster's nodes as EC2 has them.

    Raises ClusterError when something is left still, or cannot be searched, ConnectError, HeadGoneError.
    """
    result, _ = stop_job(head, record.id, find_gone(record, state))
    stopped = Stopped(result=result, already=True)
    _check_left(record.id, stopped)
    return stopped


def find_gone(record: JobRecord, state: ClusterState) -> Sequence[str]:
    """The ids of a job's instances that do not run any more, and so have no processes. Pure."""
    live = {node.instance_id for node in state.nodes if node.state != "stopped"}.union(state.ending)
    own = [node.instance_id for node in record.nodes]  # empty: a host of the user's
    return [instance_id for instance_id in own if instance_id and instance_id not in live]


def _check_left(job: str, stopped: Stopped) -> None:
    """Raises ClusterError when something is left of a job."""
    if stopped.result.left:
        said = "had ended already" if stopped.already else "was stopped"
        raise ClusterError(
            f"job {job} {said}, but not all of it is known to have ended: {render_left(stopped.result.left)}",
            hint=f"cluster status shows the nodes; cluster stop {job} searches them again",
        )


def end_without_head(app: App, job: str, error: ClusterError, *, say: Callable[[str], None]) -> Result:
    """End a job's processes on all nodes from here, since the head does not do it. Raises ClusterError."""
    say(f"{error.message}; ending the processes of job {job} on all nodes from here")
    left = end_from_here(app, job)
    return Result(state="stopped", exit_code=STOPPED, error="ended from the user's machine", left=left)
