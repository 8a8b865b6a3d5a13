"""The cluster's jobs: connects to the head, finds jobs, and stops them."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from datetime import UTC, datetime
from functools import partial
from itertools import chain, repeat

from bootstrap.apply import ReadyNode
from bootstrap.ssh.connections import on_all
from bootstrap.ssh.node_program import AnswerError, Check, never, runtime_command
from cluster.app import App
from cluster.nodes.source import ANSWER_TIMEOUT_S, Nodes
from cluster.session import describe, source_of
from cluster.views.results import render_new_files
from cluster.views.status import HeadJob, render_took
from foundation.decode import decode
from foundation.errors import ClusterError, ConnectError, NotFoundError
from foundation.thread_pool import run_in_thread
from node.job.log_tail import find_processes, find_tail
from node.protocol import JobResult, Left, LeftOnHost, LogWanted, Process, Unhealthy
from node.wire import Remains, StopAnswer
from provision.model import count
from train.follow.events import ALL
from train.follow.head import SILENCE_S, Head, HeadGoneError
from train.follow.records import (
    RUNNING,
    DamagedRecordError,
    JobRecord,
    S3Log,
    choose_job,
    find_running,
    join_lines,
    merge_records,
    open_s3_log,
    read_jobs,
    read_s3_records,
)
from train.follow.run import STOPPED, LogStream, render_left, stop_job
from train.follow.samples import read_samples
from train.follow.stragglers import WINDOW_S, Straggler, find_culprit

PATIENCE_S = 4.0  # the longest time to wait for the head's answer
BRIEF_PATIENCE_S = 2.0  # without a question, for which the user waits anyway
CONNECT_S = 2.0
MOST_UNCOPIED = 3


# -- the head ----------------------------------------------------------------------------------------------------------


def head_of(app: App, nodes: Sequence[ReadyNode]) -> Head:
    """Returns the head of nodes that are set up. It uses their connection until that breaks."""
    head = nodes[0]
    connect = partial(source_of(app).connect_again, head.host)
    return Head(name=head.host.name, connect=connect, connection=head.connection)


@contextmanager
def open_head(app: App, nodes: Nodes, *, wait_s: float = ANSWER_TIMEOUT_S) -> Iterator[Head]:
    """Yields the head of a cluster without setting up the nodes. It connects on first use.

    wait_s: how long the head may take to answer, in seconds. Raises NotFoundError without nodes, ClusterError when the
    head is not running.
    """
    host = nodes.find_host(nodes.choose()[0])
    source = source_of(app)
    # The first connection is to the node as described. Later ones describe it again, because it may have ended.
    connects = chain([partial(source.connect, host, wait_s=wait_s)], repeat(partial(source.connect_again, host)))
    head = Head(name=host.name, connect=lambda: next(connects)())  # noqa: PLW0108 - another one each time
    try:
        yield head
    finally:
        head.close()


def end_from_here(app: App, job: str) -> Left:
    """Ends a job's processes on every running node.

    Used when the head cannot do it. Returns the processes that may still run. Raises ClusterError when the nodes cannot
    be described.
    """
    nodes = describe(app)
    if not nodes.running:
        return {}
    command = runtime_command("agent", "end", job, must_exist=False)

    def end(name: str) -> LeftOnHost:
        try:
            connection = connections.get(nodes.find_host(name))
            found = connection.run(command, timeout_s=SILENCE_S, what="agent.py end").stdout
            return decode(found.encode() or b"{}", Remains).left
        except (ClusterError, ValueError) as error:
            return [(0, f"could not be searched: {error}")]

    with source_of(app).open_connections() as connections:
        left = zip(nodes.running, on_all(nodes.running, end), strict=True)
        return {name: found for name, found in left if found}


# -- finding jobs -----------------------------------------------------------------------------------------------------


class JobSources:
    """The sources of a cluster's jobs: its head, and [data] results. Created by `open_jobs`.

    head: None when it cannot be asked; `why_not` is then the error. nodes: None if the cloud cannot be used.
    """

    def __init__(
        self, app: App, *, head: Head | None = None, why_not: ClusterError | None = None, nodes: Nodes | None = None
    ) -> None:
        self._app, self.head, self.why_not, self.nodes = app, head, why_not, nodes

    def find_job(self, words: str | None) -> JobRecord:
        """Returns the job that `words` names, or the newest job; see choose_job. Raises ClusterError or a subclass."""
        of_head = self._ask_head()
        if of_head:
            try:
                return choose_job(of_head, words)
            except (NotFoundError, DamagedRecordError):
                if self._app.config.data.s3_results is None:
                    raise
        return choose_job(self._add_s3(of_head, self._read_s3), words)

    def find_records(self) -> tuple[JobRecord, ...]:
        """Returns all known jobs, newest first. Raises ClusterError or a subclass.

        When the head cannot be asked, this raises its error; with [data] results, it prints the error and reads S3.
        """
        reading = run_in_thread(self._read_s3)
        return self._add_s3(self._ask_head(), reading.result)

    @contextmanager
    def open_log(
        self,
        record: JobRecord,
        learn: Callable[[Sequence[Process]], None],
        *,
        message: Callable[[str], None] | None = None,
        check: Check = never,
        wait: bool = False,
        wanted: LogWanted = ALL,
    ) -> Iterator[Iterator[bytes]]:
        """Yields the wanted lines of a job's log so far, or if `wait`, until it ends.

        learn: called first, with all processes that are known by now. message: receives messages about the connection.
        check: called several times a second, and may raise. Raises ClusterError or a subclass.
        """
        if record.source == "s3" or self.head is None:
            log, processes = self._open_copy(record)
            learn(processes)
            yield _while_read(log.lines(find_tail(log.read, log.size, wanted, processes)), check)
            return
        message = message or self._app.message
        stream = LogStream(self.head, record.id, message=message, check=check, wait=wait, wanted=wanted, begin=learn)
        with closing(stream.lines()) as lines:
            yield lines

    @contextmanager
    def open_blocks(self, record: JobRecord, learn: Callable[[Sequence[Process]], None]) -> Iterator[Iterator[bytes]]:
        """As `open_log`, but yields all lines so far in blocks, each with its newline: there may be millions."""
        if record.source == "s3" or self.head is None:
            log, processes = self._open_copy(record)
            learn(processes)
            yield log.blocks()
            return
        with self.open_log(record, learn) as lines:
            yield join_lines(lines)

    def _open_copy(self, record: JobRecord) -> tuple[S3Log, tuple[Process, ...]]:
        """The copy of a job's log in S3, and the job's processes. Raises ClusterError or a subclass."""
        config = self._app.config
        log = open_s3_log(str(config.data.s3_results), record.id, region=config.provision.region)
        return log, find_processes(record.roles, len(record.attempts), log.lines())

    def _ask_head(self) -> tuple[JobRecord, ...]:
        if self.head is not None:
            try:
                return ask_head(self.head)
            except ClusterError as error:
                self.head, self.why_not = None, error
        return ()

    def _add_s3(
        self, of_head: tuple[JobRecord, ...], read_s3: Callable[[], tuple[JobRecord, ...]]
    ) -> tuple[JobRecord, ...]:
        results = self._app.config.data.s3_results
        if results is None or self.nodes is None:
            if self.why_not is not None:
                raise self.why_not
            return of_head
        if self.why_not is not None:
            hint = f" ({self.why_not.hint})" if self.why_not.hint else ""
            why = self.why_not.message.splitlines()[0]
            self._app.message(f"{why}{hint}; showing the jobs in {results}", style="yellow")
        try:
            return merge_records(of_head, read_s3())
        except ClusterError as error:
            if self.head is None:
                raise
            self._app.message(f"cannot read the jobs in {results}: {error.message}", style="yellow")
            return of_head

    def _read_s3(self) -> tuple[JobRecord, ...]:
        config = self._app.config
        if config.data.s3_results is None or self.nodes is None:
            return ()
        return read_s3_records(config.data.s3_results, region=config.provision.region)


def _while_read(lines: Iterable[bytes], check: Check) -> Iterator[bytes]:
    for line in lines:
        check()
        yield line


def ask_head(head: Head) -> tuple[JobRecord, ...]:
    """Returns the jobs that the head knows, newest first. Raises ClusterError or a subclass."""
    line = head.ask("list")
    return _read_list(head, line)[0] if line else ()  # without a set-up, no job can have run there


def _read_list(head: Head, line: bytes) -> tuple[tuple[JobRecord, ...], Mapping[str, Unhealthy]]:
    try:
        jobs, unhealthy = read_jobs(line)
        return merge_records(jobs), unhealthy
    except ValueError as error:
        raise head.not_understood(error) from None


@contextmanager
def open_jobs(app: App) -> Iterator[JobSources]:
    """Yields the cluster's jobs. The connections are closed at the end of the block. Raises AwsError."""
    try:
        app.enter_cloud()
    except ClusterError as error:
        yield JobSources(app, why_not=error)
        return
    nodes = describe(app)
    with ExitStack() as stack:
        head, why_not = None, None
        try:
            head = stack.enter_context(open_head(app, nodes))
        except ClusterError as error:
            why_not = error
        yield JobSources(app, head=head, why_not=why_not, nodes=nodes)


def find_straggler(app: App, sources: JobSources, record: JobRecord) -> Straggler | None:
    """Returns the worker for which the others of a running job wait; None if none is known.

    In asynchronous training, no worker waits for others. In a job without progress, who spins looks busy.
    """
    if record.state != "running" or record.stall or record.source != "head" or not record.spec.is_synchronous:
        return None
    try:
        samples = read_samples(record, sources.head, results=None, region="", since=-2 * WINDOW_S)
    except ClusterError as error:  # the job is shown without it
        app.message(f"cannot read the samples of job {record.id}: {error.message}", style="yellow")
        return None
    return find_culprit(samples, record.roles)


# -- the running job --------------------------------------------------------------------------------------------------


def ask_for_job(app: App, nodes: Nodes, *, is_brief: bool = False) -> Callable[[], HeadJob | None]:
    """Asks the head for its job in the background. The returned function waits for the answer, for a few seconds.

    It returns None when no head runs. It does not raise: the returned HeadJob contains the error. is_brief: see
    BRIEF_PATIENCE_S.
    """
    patience_s = BRIEF_PATIENCE_S if is_brief else PATIENCE_S
    head = next(iter(nodes.names), None)
    if head not in nodes.running:
        return lambda: None
    answers = run_in_thread(lambda: _ask(app, nodes))

    def wait() -> HeadJob:
        try:
            return answers.result(timeout=patience_s)
        except TimeoutError:
            return HeadJob(why=f"{head} did not answer within {patience_s:.0f} s")
        except (ClusterError, OSError) as error:
            return HeadJob(why=str(error).partition("\n")[0])

    return wait


def _ask(app: App, nodes: Nodes) -> HeadJob:
    with open_head(app, nodes, wait_s=CONNECT_S) as head:
        line = head.ask("list")
        records, unhealthy = _read_list(head, line) if line else ((), {})
    running = find_running(records)
    others = [record for record in records if record is not running]
    return HeadJob(
        set_up=bool(line),
        unhealthy=unhealthy,
        record=running,
        beside=any(record.spec.beside and not record.has_ended for record in records),
        last=next((record for record in records if record.has_ended), None),
        queued=sum(record.state in ("queued", "pending") for record in others),
        others=sum(record.state in RUNNING - {"pending"} and not record.spec.beside for record in others),
        with_files=tuple(record for record in records if render_new_files(record.files)),
    )


def warn_uncopied(app: App, job: HeadJob | None, *, yes: bool) -> None:
    """Prints which files on the nodes have not been copied to this machine, before they are deleted. job: the head's.

    yes: require_ending is not called. Raises ClusterError.
    """
    if yes and job is not None and job.why is not None:
        app.message(f"deleted without a copy: files that only the nodes have, if any: {job.why}", style="yellow")
    asks = not yes and _asks(app, job)
    copied = app.files.find_copied()
    uncopied = [record for record in (job.with_files if job is not None else ()) if record.id not in copied]
    for record in uncopied[:MOST_UNCOPIED]:
        what = render_new_files(record.files)
        whose = f"{what}, of job {record.id} ({record.name})"
        if asks:
            app.message(f"not copied: {whose}; to copy them first:", style="yellow")
            app.show_command(f"cluster results {record.id}")
        else:
            app.message(f"deleted without a copy: {whose}", style="yellow")
    if len(uncopied) > MOST_UNCOPIED:
        more = f"the files of {count(len(uncopied) - MOST_UNCOPIED, 'other job')}"
        what = f"not copied: {more}, which cluster jobs lists" if asks else f"deleted without a copy: {more}"
        app.message(what, style="yellow")


def require_ending(app: App, question: str, job: HeadJob | None) -> None:
    """Prints which job would be interrupted, and asks the user; see App.require. Raises UsageError.

    In the sandbox, ask only if a job would be interrupted. job: see ask_for_job. A head that does not answer is not an
    error: it may be the reason why the user ends the cluster.
    """
    message = None if job is None else render_interruption(job, now=datetime.now(UTC))
    if message is not None:
        app.message(message, style="yellow")
    app.require(question, yes=not _asks(app, job))


def _asks(app: App, job: HeadJob | None) -> bool:
    """Whether require_ending asks."""
    is_interrupted = job is not None and job.why is None and (job.record is not None or job.queued > 0)
    return is_interrupted or app.config.cloud != "sandbox"


def render_interruption(job: HeadJob, *, now: datetime) -> str | None:
    """Describes what would be lost if the nodes ended now; None if nothing would be. Pure."""
    if job.why is not None:
        return f"cannot tell whether a job is running, or has files that only the nodes have: {job.why}"
    queued = f"{count(job.queued, 'queued job')} would not run" if job.queued else None
    if job.record is None:
        return queued
    took = "" if job.record.started_at is None else f", which has run for {render_took(job.record, now=now)}"
    interrupted = f"this would interrupt job {job.record.id} ({job.record.name}){took}{job.render_others()}"
    return f"{interrupted}; {queued}" if queued else interrupted


# -- measuring ---------------------------------------------------------------------------------------------------------


def check_idle(head: Head) -> None:
    """Raises ClusterError while a job runs or waits."""
    for record in ask_head(head):
        if not (record.has_ended or record.is_damaged):
            raise ClusterError(
                f"job {record.id} ({record.name}) is {record.state} on this cluster: it would be measured with the "
                "rest",
                hint=f"cluster logs -f {record.id}, which waits for its end; or cluster stop {record.id}",
            )


# -- stopping a job ----------------------------------------------------------------------------------------------------


def end_job(
    app: App, head: Head, job: str, *, gone: Sequence[str] = (), message: Callable[[str], None] | None = None
) -> StopAnswer:
    """Stops a running or queued job, or ends what an ended one left, and checks that none of its processes is left.

    gone: ids of its nodes that no longer run. message: prints messages. Raises ClusterError when a process may be left,
    NotFoundError when the job does not exist.
    """
    try:
        stopped = stop_job(head, job, gone)
    except (ConnectError, HeadGoneError, AnswerError) as error:
        stopped = end_without_head(app, job, error, message=message or app.message)
    if stopped.result.left:
        was_stopped = "had already ended" if stopped.already else "was stopped"
        raise ClusterError(
            f"job {job} {was_stopped}, but processes of it may still run: {render_left(stopped.result.left)}",
            hint=f"cluster status shows the nodes; cluster stop {job} searches them again",
        )
    return stopped


def end_jobs(app: App, nodes: Nodes, find_used: Callable[[JobRecord], Sequence[str]]) -> None:
    """Stops the jobs that use nodes which are about to end. find_used: returns the names of these nodes; (): none.

    An error is only a warning: the nodes of a head that does not answer can end, too. Without a running head, no job
    runs.
    """
    if not nodes.names or nodes.names[0] not in nodes.running:
        return
    try:
        with open_head(app, nodes) as head:
            for record in ask_head(head):  # the newest first: queued jobs must not start
                if not record.has_ended and (used := find_used(record)):
                    app.message(f"stopping job {record.id} ({record.name}), which uses {', '.join(used)}")
                    end_job(app, head, record.id)
    except ClusterError as error:
        app.warn_of(error)


def find_left(records: Iterable[JobRecord]) -> JobRecord | None:
    """Returns the newest job that has ended, if its processes may still run. records: newest first. Pure."""
    newest = next((record for record in records if record.has_ended), None)
    return newest if newest is not None and newest.left else None


def end_without_head(app: App, job: str, error: ClusterError, *, message: Callable[[str], None]) -> StopAnswer:
    """Ends a job's processes on all nodes from this machine, because the head cannot. Raises ClusterError."""
    message(f"{error.message}; ending the processes of job {job} on all nodes from this machine")
    why, left = "ended from the user's machine", end_from_here(app, job)
    result = JobResult(state="stopped", exit_code=STOPPED, error=why, left=left)
    return StopAnswer(result=result, by_head=False)
