"""`cluster train`: hands the job to the head, attaches to its output, and handles Ctrl-C."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Literal, Self

from cluster.app import App
from cluster.jobs import end_from_here, end_job
from cluster.views.live import JobDisplay
from cluster.views.status import find_results
from foundation.errors import ClusterError, JobError
from train.follow.head import Head, HeadGoneError, Talk
from train.follow.run import STOPPED, Follower, Started, check_result, render_left, submit
from train.job.protocol import JobResult, Order

Choice = Literal["stop", "leave", "continue"]
QUESTION = (
    "Stop the job, leave it running, or continue to watch it?\n"
    "[s: stop; l: leave it running; c or Enter: continue to watch] "
)


class Interrupts:
    """SIGINT and SIGTERM while attached to a job. A context manager, for the main thread.

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
        """Raises KeyboardInterrupt when there was a signal."""
        if self.number:
            raise KeyboardInterrupt

    def forget(self) -> None:
        """Forget the remembered signal."""
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


def start(app: App, head: Head, order: Order, *, talk: Talk | None = None) -> None:
    """Submit a job and return (`--detach`). talk: see train.follow.run.submit; raises as that does."""
    started = submit(head, order, follow=False, talk=talk)
    app.print(started.id)
    waits = " when the one that runs has ended" if started.state == "queued" else ""
    app.say(
        f"job {started.id} ({order.name}) runs on {head.name}{waits}: cluster logs -f {started.id} follows it, "
        f"cluster stop {started.id} ends it"
    )


def attend(app: App, head: Head, order: Order, *, plain: bool, talk: Talk | None = None) -> int:
    """Submit a job and follow it to its end; returns 0, or 130 when it was left running or withdrawn.

    talk: see train.follow.run.submit. plain: without a view at the bottom of the terminal.
    Raises JobError with the exit code of the first process that failed, and as submit does.
    """
    with Interrupts() as interrupts:
        started = _submit(head, order, talk)
        if interrupts.number:  # before it was known to have begun
            end_job(app, head, started.id)
            app.say(f"interrupted: job {started.id} was not begun, or ended at once")
            return STOPPED
        program = (order.script or "", *order.command)
        display = JobDisplay(app, plain=plain, title=f"job {order.name}", head=head.name, program=program)
        attendance = _Attendance(app, head, started.id, display, interrupts)
        try:
            result = attendance.follow(started.talk, queued=started.state == "queued")
        except HeadGoneError as error:
            raise _head_gone(app, started.id, error) from error
        except BrokenPipeError:
            app.say(_runs_on(started.id))
            raise
        finally:
            display.close()
    if result is None:
        app.say(_runs_on(started.id))
        return STOPPED
    check_result(started.id, result)
    if display.warnings:
        app.say(f"job {started.id}: done, but see the warning above", style="yellow")
    else:
        app.say(f"job {started.id}: done", style="green")
    if results := find_results(order):
        app.say(f"its files: {results}")
    return 0


def _submit(head: Head, order: Order, talk: Talk | None) -> Started:
    try:
        return submit(head, order, follow=True, talk=talk)
    except KeyboardInterrupt:  # the second one: the head does not answer
        raise JobError(
            f"interrupted: it is not known whether job {order.job} was begun",
            exit_code=STOPPED,
            hint=f"cluster jobs, cluster stop {order.job}",
        ) from None


class _Attendance:
    """Follows a job, and asks what to do when the user interrupts."""

    def __init__(self, app: App, head: Head, job: str, display: JobDisplay, interrupts: Interrupts) -> None:
        self._app = app
        self._head = head
        self._job = job
        self._display = display
        self._interrupts = interrupts
        self._follower = Follower(head, job, take=display.take, say=display.say, look=interrupts.look)

    def follow(self, talk: Any, *, queued: bool) -> JobResult | None:
        """The job's result; None: it is left running."""
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
        """Ask what to do; without a terminal, and on SIGTERM, the job is left running."""
        if self._interrupts.number == signal.SIGTERM or not can_ask():
            return "leave"
        with self._display.paused(), self._interrupts.at_once():
            try:
                return ask()
            except KeyboardInterrupt:
                sys.stderr.write("\n")
                return "leave"


def can_ask() -> bool:
    """Whether there is somebody at a terminal."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def ask() -> Choice:
    """Ask at the terminal until there is a valid answer. Raises KeyboardInterrupt.

    Enter alone means "continue", end of input "leave".
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


def _runs_on(job: str) -> str:
    return f"job {job} runs on: cluster logs -f {job} follows it, cluster stop {job} ends it"


def _head_gone(app: App, job: str, error: ClusterError) -> JobError:
    """The error for a lost head; ends the job's processes on all other nodes first."""
    left = end_from_here(app, job)
    said = f"\n  may still run: {render_left(left)}" if left else "; no process of it is left on other nodes"
    return JobError(f"job {job} ended with its head: {error.message}{said}", exit_code=1, hint="cluster status")
