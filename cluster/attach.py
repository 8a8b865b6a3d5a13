"""`cluster train`: submits the job to the head, attaches to its output, and handles Ctrl-C."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Literal, Self

from cluster.app import App
from cluster.jobs import end_from_here, end_job
from cluster.views.live import JobDisplay
from cluster.views.results import find_results
from foundation.errors import ClusterError, JobError
from train.follow.head import Head, HeadGoneError, Talk
from train.follow.run import STOPPED, Follower, Started, check_order, check_result, render_left, submit
from train.job.protocol import JobResult, Order

Choice = Literal["stop", "leave", "continue"]
QUESTION = (
    "Stop the job, leave it running, or continue to watch it?\n"
    "[s: stop; l: leave it running; c or Enter: continue to watch] "
)


class Interrupts:
    """Handles SIGINT and SIGTERM while attached to a job. A context manager, for the main thread.

    The first signal is remembered until `look` raises it as KeyboardInterrupt, so that no read or write is cut short.
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

    def look(self) -> None:
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
        app.print(script.rstrip("\n"))
    app.say("the job can run; nothing was started")


def start(app: App, head: Head, order: Order, *, talk: Talk | None = None) -> None:
    """Submits a job and returns (`--detach`). talk: see train.follow.run.submit. Raises the same errors as submit."""
    started = submit(head, order, follow=False, talk=talk)
    app.print(started.id)
    state = "is queued" if started.state == "queued" else "is running"
    app.say(f"job {started.id} ({order.name}) {state} on {head.name}: {_next_commands(started.id)}")


def attend(app: App, head: Head, order: Order, *, plain: bool, talk: Talk | None = None) -> int:
    """Submits a job and follows it to its end. Returns 0, or 130 when it was left running or withdrawn.

    talk: see train.follow.run.submit. plain: show no live view. Raises JobError with the exit code of the first process
    that failed, and the same errors as submit.
    """
    with Interrupts() as interrupts:
        started = _submit(head, order, talk)
        if interrupts.number:  # before the head confirmed the start
            end_job(app, head, started.id)
            app.say(f"interrupted: job {started.id} did not start, or was stopped at once")
            return STOPPED
        program = (order.script or "", *order.command)
        display = JobDisplay(
            app, plain=plain, title=f"job {order.name}", head=head.name, program=program, image=order.image
        )
        attendance = _Attendance(app, head, started.id, display, interrupts)
        try:
            result = attendance.follow(started.talk, queued=started.state == "queued")
        except HeadGoneError as error:
            raise _head_gone(app, started.id, error) from error
        except BrokenPipeError:
            app.say(_still_running(started.id))
            raise
        finally:
            display.close()
    if result is None:
        app.say(_still_running(started.id))
        return STOPPED
    check_result(started.id, result)
    if display.warnings:
        app.say(f"job {started.id}: done, but see the warning above", style="yellow")
    else:
        app.say(f"job {started.id}: done", style="green")
    if results := find_results(order):
        app.say(f"to get its files, run: {results}")
    return 0


def _submit(head: Head, order: Order, talk: Talk | None) -> Started:
    try:
        return submit(head, order, follow=True, talk=talk)
    except KeyboardInterrupt:  # by the second signal: the head does not answer
        raise JobError(
            f"interrupted before the head confirmed job {order.job}: it may be running",
            exit_code=STOPPED,
            hint=f"cluster jobs shows whether it runs; cluster stop {order.job} stops it",
        ) from None


class _Attendance:
    """Follows a job. When the user interrupts, asks what to do."""

    def __init__(self, app: App, head: Head, job: str, display: JobDisplay, interrupts: Interrupts) -> None:
        self._app = app
        self._head = head
        self._job = job
        self._display = display
        self._interrupts = interrupts
        self._follower = Follower(head, job, take=display.take, say=display.say, look=interrupts.look)

    def follow(self, talk: Any, *, queued: bool) -> JobResult | None:
        """Returns the job's result; None if the job is left running."""
        while True:
            try:
                return self._follower.run(talk)
            except KeyboardInterrupt:
                if queued and self._follower.reader.state == "queued":
                    return end_job(self._app, self._head, self._job, say=self._display.say).result
                choice = self._choose()
                if choice == "leave":
                    return None
                self._interrupts.forget()
                if choice == "stop":
                    self._display.say(f"stopping job {self._job}")
                    stopped = end_job(self._app, self._head, self._job, say=self._display.say)
                    if not stopped.by_head:
                        return stopped.result
            talk = None

    def _choose(self) -> Choice:
        """Asks the user what to do. Without a terminal, and on SIGTERM, the job is left running."""
        if self._interrupts.number == signal.SIGTERM or not can_ask():
            return "leave"
        with self._display.paused(), self._interrupts.at_once():
            try:
                return ask()
            except KeyboardInterrupt:
                sys.stderr.write("\n")
                return "leave"


def can_ask() -> bool:
    """Whether stdin and stderr are terminals."""
    return sys.stdin.isatty() and sys.stderr.isatty()


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


def _still_running(job: str) -> str:
    return f"job {job} is still running: {_next_commands(job)}"


def _next_commands(job: str) -> str:
    return f"cluster logs -f {job} follows it, cluster stop {job} stops it"


def _head_gone(app: App, job: str, error: ClusterError) -> JobError:
    """Ends the job's processes on all other nodes, and returns the error for a lost head."""
    left = end_from_here(app, job)
    said = f"\n  may still run: {render_left(left)}" if left else "; no process of it is left on the other nodes"
    hint = "cluster status"
    if app.has_instances and app.config.data.s3_results is not None and app.config.train.on_node_loss == "requeue":
        hint = "cluster status, which continues the job on a new head, from its record in S3"
    return JobError(f"job {job} ended with its head: {error.message}{said}", exit_code=1, hint=hint)
