"""`cluster train`: submits the job to the head, attaches to its output, replaces lost nodes, and handles Ctrl-C."""

import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from types import FrameType
from typing import Any, Literal, Self

from msgspec.structs import replace

from bootstrap.ssh.node_program import NodeProgram
from cluster.app import App
from cluster.jobs import ask_head, end_from_here, end_job, open_head
from cluster.nodes.ec2 import describe_state
from cluster.recovery.consent import note_end, note_order
from cluster.recovery.lost_head import continue_jobs, find_lost_head
from cluster.recovery.replacement import replace_lost
from cluster.session import describe
from cluster.views.live import JobDisplay
from cluster.views.results import describe_files, find_results
from cluster.views.terminal import escape_line
from foundation.errors import ClusterError, JobError
from node.protocol import JobHost, JobResult, JobSpec, JobState, NewFiles, Order
from train.follow.events import Event, EventReader
from train.follow.head import Head, HeadGoneError
from train.follow.run import (
    STOPPED,
    LogStream,
    check_order,
    check_result,
    pass_on,
    render_left,
    submit,
)

REPLACE_AGAIN_S = 60.0
"""How long to wait after a failed replacement, for example without capacity."""
Choice = Literal["stop", "leave", "continue"]
QUESTION = (
    "Stop the job, leave it running, or continue to watch it?\n"
    "[s: stop; l: leave it running; c or Enter: continue to watch] "
)


class Interrupts:
    """Handles SIGINT and SIGTERM while attached to a job. A context manager, for the main thread.

    The first signal is remembered until `check` raises it as KeyboardInterrupt, so that no read or write is cut short.
    A second signal is raised immediately, because a write may never finish.
    """

    def __init__(self) -> None:
        self.number = 0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._remember)
        return self

    def __exit__(self, *exc: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def check(self) -> None:
        """Raises KeyboardInterrupt if a signal was received."""
        if self.number:
            raise KeyboardInterrupt

    def forget(self) -> None:
        """Forgets the remembered signal."""
        self.number = 0

    @contextmanager
    def at_once(self) -> Iterator[None]:
        """Within the block, signals are raised immediately."""
        before = {number: signal.signal(number, signal.default_int_handler) for number in self._before}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _remember(self, number: int, frame: FrameType | None) -> None:
        del frame
        if self.number:
            raise KeyboardInterrupt
        self.number = number


def show_check(app: App, head: Head, order: Order) -> None:
    """Has the head check a job, and prints the script for the batch scheduler, if any (`--dry-run`).

    Raises the same errors as check_order.
    """
    script = check_order(head, order)
    if script is not None:
        app.print(script.rstrip("\n"), wrapped=False)
    app.message("the job can run; nothing was started")


def start(app: App, head: Head, order: Order, *, submission: NodeProgram | None = None) -> None:
    """Submits a job and returns (`--detach`). submission: see Submission. Raises the same errors as submit."""
    note_order(app, order)
    job, (state, _) = order.spec, submit(head, order, follow=False, program=submission)
    if not job.beside:
        app.print(job.id)
    how = "is queued" if state == "queued" else "is submitted" if job.scheduler else "is running"
    app.message(f"job {job.id} ({job.name}) {how} on {head.name}: {_next_commands(job.id)}")


def attend(app: App, head: Head, order: Order, *, plain: bool, submission: NodeProgram | None = None) -> int:
    """Submits a job and follows it to its end. Returns 0, or 130 when it was left running or withdrawn.

    submission: see Submission. plain: show no live view. Raises JobError with the exit code of the first process
    that failed, and the same errors as submit.
    """
    note_order(app, order)
    job = order.spec.id
    with Interrupts() as interrupts:
        state, program = _submit(head, order, submission)
        if interrupts.number:  # before the head confirmed the start
            end_job(app, head, job)
            app.message(f"interrupted: job {job} did not start, or was stopped at once")
            return STOPPED
        display = JobDisplay(app, order.spec, plain=plain, head=head.name)
        attendance = _Attendance(app, head, job, display, interrupts)
        try:
            result = attendance.follow(program, queued=state == "queued")
        except OSError:  # of stdout, such as a closed pipe or a full disk
            app.message(_still_running(job))
            raise
        finally:
            attendance.close()
            display.close()
    if result is None:
        app.message(_still_running(job))
        return STOPPED
    note_end(app, job)
    if result.state == "done":
        warned = ", but see the warning above" if display.warnings else ""
        app.message(f"job {job}: done{warned}", style="yellow" if warned else "green")
    if not app.copies_results:
        report_results(app, order.spec, attendance.reader.files, hosts=order.hosts)
        if sys.stderr.isatty():  # to people
            shows = {"its curves": display.has_numbers, "its first error": result.culprit is not None}
            named = " and ".join(what for what, is_shown in shows.items() if is_shown)
            app.message(f"cluster report {job} shows {named or 'its nodes and its timeline'}")
    check_result(job, replace(result, cause=display.advisor.instead.get(result.cause or "", result.cause)))
    return 0


def report_results(app: App, job: JobSpec, files: Sequence[NewFiles], *, hosts: Sequence[JobHost]) -> None:
    """Prints where an ended job's own files are, and the command that copies them. files: its new files on nodes."""
    command, where = find_results(job, files), describe_files(job, files, hosts=hosts)
    if command is None:
        if where:
            app.message(where)
        return
    app.message(f"{where}; to {'copy' if command.startswith('cluster results') else 'list'} them:")
    app.show_command(command)


def _submit(head: Head, order: Order, submission: NodeProgram | None) -> tuple[JobState, NodeProgram | None]:
    try:
        return submit(head, order, follow=True, program=submission)
    except KeyboardInterrupt:  # by the second signal: the head does not answer
        raise JobError(
            f"interrupted before the head confirmed job {order.spec.id}: it may be running",
            exit_code=STOPPED,
            hint=f"cluster jobs shows whether it runs; cluster stop {order.spec.id} stops it",
        ) from None


class _NodesMissingError(Exception):
    """The job waits for nodes, which this command replaces now."""


class _Attendance:
    """Follows a job, and replaces nodes that it loses. When the user interrupts, asks what to do.

    reader: that of the job's log, from the beginning or that of the last head.
    """

    def __init__(self, app: App, head: Head, job: str, display: JobDisplay, interrupts: Interrupts) -> None:
        self._app = app
        self._job = job
        self._display = display
        self._interrupts = interrupts
        self._heads = ExitStack()  # those that this command has launched in place of lost ones
        self._replace_at: float | None = None  # by time.monotonic()
        self._warned_of = ""
        self._shown_until = self._now = 0.0  # times of events
        self._use(head)

    def _use(self, head: Head) -> None:
        self._head, self.reader = head, EventReader()
        self._stream = LogStream(head, self._job, message=self._display.message, check=self._check)

    def close(self) -> None:
        """Closes the connections to new heads."""
        self._heads.close()

    def follow(self, program: NodeProgram | None, *, queued: bool) -> JobResult | None:
        """Returns the job's result; None if the job is left running. Raises JobError if it ended with its head."""
        while True:
            try:
                try:
                    with closing(self._stream.lines(program)) as lines:
                        return pass_on(lines, self.reader, self._take)
                except _NodesMissingError:
                    self._replace_nodes()
                except HeadGoneError as error:
                    self._replace_head(error)
            except KeyboardInterrupt:
                if queued and self.reader.state == "queued":
                    return end_job(self._app, self._head, self._job, message=self._display.message).result
                choice = self._choose()
                if choice == "leave":
                    return None
                self._interrupts.forget()
                if choice == "stop":
                    self._display.message(f"stopping job {self._job}")
                    stopped = end_job(self._app, self._head, self._job, message=self._display.message)
                    if not stopped.by_head:
                        return stopped.result
            program = None

    def _take(self, event: Event) -> None:
        if event.at <= self._shown_until and event.result is None:
            return  # the earlier head's, in the log of the new one
        self._now = event.at
        self._display.take(event)
        if event.kind == "state":
            waits = event.state == "waiting" and self._app.has_instances
            self._replace_at = time.monotonic() if waits else None

    def _check(self) -> None:
        self._interrupts.check()
        if self._replace_at is not None and time.monotonic() >= self._replace_at:
            raise _NodesMissingError

    def _replace_nodes(self) -> None:
        """Replaces the nodes that the job waits for, unless the head does. If that fails, it is tried again later."""
        self._replace_at = time.monotonic() + REPLACE_AGAIN_S
        with self._display.paused(), self._interrupts.at_once():
            try:
                found = next((one for one in ask_head(self._head) if one.id == self._job), None)
                if found is not None and found.head_replaces:
                    self._replace_at = None  # the job's log says when the head cannot
                elif found is not None and found.state == "waiting":
                    replace_lost(self._app, found)
            except ClusterError as error:
                if self._warned_of != error.message:
                    self._warned_of = error.message
                    self._app.warn_of(error)
        self._head.drop()  # the set-up of the nodes used connections of its own

    def _replace_head(self, error: HeadGoneError) -> None:
        """Continues the job on a new head, from its record in S3. Raises JobError if that is impossible."""
        self._shown_until = self._now
        app, config = self._app, self._app.config
        with self._display.paused(), self._interrupts.at_once():
            if app.has_instances and config.data.s3_results is not None and config.train.on_node_loss == "requeue":
                state = describe_state(app)
                lost = find_lost_head(app, state)
                is_ours = lost is not None and any(job.id == self._job for job in lost.jobs) and not lost.is_final
                if is_ours and continue_jobs(app, lost, state):
                    self._use(self._heads.enter_context(open_head(app, describe(app))))
                    return
            raise _head_gone(app, self._job, error) from error

    def _choose(self) -> Choice:
        """Asks the user what to do. Without a terminal, and on SIGTERM, the job is left running."""
        if self._interrupts.number == signal.SIGTERM or not self._app.is_interactive():
            return "leave"
        with self._display.paused(), self._interrupts.at_once():
            try:
                return ask()
            except KeyboardInterrupt:
                sys.stderr.write("\n")
                return "leave"


def ask() -> Choice:
    """Asks at the terminal until the answer is valid. Raises KeyboardInterrupt.

    An empty line means "continue"; the end of the input means "leave".
    """
    while True:
        sys.stderr.write(QUESTION)
        sys.stderr.flush()
        line = sys.stdin.readline()
        if not line:
            return "leave"
        answer = line.strip().lower() or "continue"
        choices: tuple[Choice, ...] = ("stop", "leave", "continue")
        for choice in choices:
            if choice.startswith(answer):
                return choice
        sys.stderr.write(f"{escape_line(answer)}: not one of s, l, c\n")


def _still_running(job: str) -> str:
    return f"job {job} continues: {_next_commands(job)}"


def _next_commands(job: str) -> str:
    return f"cluster logs -f {job} follows it, cluster stop {job} stops it"


def _head_gone(app: App, job: str, error: ClusterError) -> JobError:
    """Ends the job's processes on all other nodes, and returns the error for a lost head."""
    left = end_from_here(app, job)
    text = f"\n  may still run: {render_left(left)}" if left else "; no process of the job is left on the other nodes"
    return JobError(f"job {job} ended with its head: {error.message}{text}", exit_code=1, hint=error.hint)
