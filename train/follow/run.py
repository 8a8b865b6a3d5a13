"""Runs a job: submits it to the head, follows it over broken connections, stops it."""

import json
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing

from msgspec import to_builtins

from bootstrap.ssh.node_program import CHECK_EVERY_S, AnswerError, Check, NodeProgram, never
from foundation.decode import decode, shorten
from foundation.errors import AwsError, ClusterError, ConnectError, JobError, NotFoundError, UsageError
from node.protocol import (
    JobHost,
    JobResult,
    JobState,
    Left,
    LogStart,
    LogWanted,
    Order,
    Process,
    find_first_key,
)
from node.wire import Reply, StopAnswer, Submitted
from train.follow.events import Event, EventReader
from train.follow.head import SILENCE_S, Head

CLIENT_PATIENCE_S = 600.0
"""How long to retry a broken connection; the job does not wait for it."""
LONGEST_PAUSE_S = 15.0
SUBMIT_TIMEOUT_S = 90.0  # longer than jobs.py waits for another submission
STOP_TIMEOUT_S = 60.0  # the supervisor searches all hosts, some of which may not answer
STOPPED = 130
LOG_LINE = b'{"t": '  # as node/supervisor/job_log.py begins each: of these there may be millions


def submit(
    head: Head, order: Order, *, follow: bool, program: NodeProgram | None = None
) -> tuple[JobState, NodeProgram | None]:
    """Submits a job to the head. program: jobs.py's `submit`, which runs already, with the same `follow`.

    Returns the job's state and, with `follow`, the program that sends its events. If the connection breaks before the
    answer, the order is sent again; the head makes one job of both.
    Raises ConnectError, ClusterError if another job runs and this one does not queue, and for the head's errors.
    """
    program = program or head.open("submit", *(["--follow"] if follow else []))
    state: JobState | None = None
    try:
        state = _hand_over(program, order, head=head.name)
    except ConnectError as error:
        return _submit_again(head, order, error), None
    finally:
        if state is None or not follow:
            program.close()
    return state, program if follow else None


def check_order(head: Head, order: Order) -> str | None:
    """Has the head check an order as for `submit`, but start nothing; returns the batch scheduler's script, if any.

    Raises UsageError for a job that cannot run, ConnectError, ClusterError for the head's errors.
    """
    line = head.ask("check", given=order, timeout_s=SUBMIT_TIMEOUT_S)  # b"" for {}, which has no key
    reply = head.read(line or b"{}", Submitted)
    if reply.unrunnable is not None:
        raise UsageError(f"the job cannot run: {reply.unrunnable}")
    return reply.script


def _hand_over(program: NodeProgram, order: Order, *, head: str, silence_s: float = SILENCE_S) -> JobState:
    """Sends the order and reads the answer. silence_s: how long that may take. Raises as submit."""
    program.silence_s = silence_s
    program.send_message(order)
    program.end_input()
    try:
        line = program.answer(timeout_s=silence_s)
    except AnswerError as error:
        raise AnswerError(
            f"{error.message}; job {order.spec.id} may or may not have started",
            hint=f"cluster jobs; cluster stop {order.spec.id}",
        ) from error
    try:
        reply = decode(line or b"{}", Submitted)
    except ValueError as error:
        raise AnswerError(
            f"{head} sent an invalid answer: {error}; job {order.spec.id} may or may not have started",
            hint="cluster jobs",
        ) from None
    other = reply.refused
    if other is not None and order.spec.beside:
        raise ClusterError(f"job {other.id} ({other.name}) runs there already", hint="the same command attaches to it")
    if other is not None:
        nodes = ", ".join(other.waiting_for)
        raise ClusterError(
            f"job {other.id} ({other.name}) is {other.state}{f' for {nodes}' if nodes else ''} on this cluster, which "
            "runs one job at a time",
            hint=f"cluster train --queue ..., or cluster stop {other.id}",
        )
    if reply.unrunnable is not None:
        raise UsageError(f"the job was not started: {reply.unrunnable}")
    if reply.job != order.spec.id or reply.state is None:
        why = shorten(reply.error) if reply.error else "no answer"
        raise ClusterError(f"{head} did not accept job {order.spec.id}: {why}", hint="cluster jobs")
    return reply.state


def _submit_again(head: Head, order: Order, lost: ConnectError) -> JobState:
    """Sends an order again after its answer was lost; the head may already have the job. Raises as submit."""
    job = order.spec.id
    head.drop()
    try:
        with closing(head.open("submit")) as program:
            return _hand_over(program, order, head=head.name, silence_s=SUBMIT_TIMEOUT_S)
    except (ConnectError, AwsError) as error:
        raise ConnectError(
            f"{lost.message}\n  and then: {error.message}\n  job {job} may or may not have started",
            hint="cluster jobs",
        ) from error


class LogStream:
    """The lines of a job's log, each exactly once and in order, over as many connections as necessary.

    wait: at the log's end, wait for more until the caller stops. check: called several times a second, and may raise.
    message: receives messages about the connection. wanted: which part of the log, by default all of it; begin: is then
    called once before the first line, with all processes that are known by now.
    """

    def __init__(
        self,
        head: Head,
        job: str,
        *,
        message: Callable[[str], None],
        check: Check = never,
        wait: bool = True,
        wanted: LogWanted | None = None,
        begin: Callable[[tuple[Process, ...]], None] = lambda _: None,
    ) -> None:
        self.offset = 0
        self._head = head
        self._job = job
        self._message = message
        self._check = check
        self._wait = wait
        self._wanted, self._begin = wanted, begin
        self._lost_at: float | None = None  # None while connected
        self._pause_s = 0.0
        self._reported = ""

    def lines(self, program: NodeProgram | None = None) -> Generator[bytes]:
        """The lines from the offset on, without newlines. program: one that already sends them.

        A call after an exception of `check` continues where the last one stopped. Raises ConnectError when the head
        cannot be reached for CLIENT_PATIENCE_S, HeadGoneError, NotFoundError, AnswerError.
        """
        while True:
            try:
                if program is None:
                    program = self._head.open(*self._words(), check=self._check)
                program.silence_s = SILENCE_S
                for line in program.lines(check=self._check):
                    self._hear()
                    if self._is_for_reader(line):
                        yield line
                if not self._wait:
                    return
                self._tolerate(
                    ConnectError(f"{self._head.name}: the program that sends the log ended before job {self._job}")
                )
            except (ConnectError, AwsError) as error:
                self._tolerate(error)
            finally:
                if program is not None:
                    program.close()
                program = None
            self._head.drop()
            self._rest()

    def _words(self) -> list[str]:
        words = ["follow", self._job, str(self.offset), *(() if self._wait else ["--no-wait"])]
        return words if self._wanted is None else [*words, "--start", json.dumps(to_builtins(self._wanted))]

    def _hear(self) -> None:
        if self._lost_at is not None:
            self._message(f"reconnected to {self._head.name}")
            self._lost_at, self._reported = None, ""

    def _is_for_reader(self, line: bytes) -> bool:
        """Whether a line is from the log, which it counts, or a bar, and not from the protocol around them.

        Raises NotFoundError, AnswerError.
        """
        if line.startswith(LOG_LINE):
            self.offset += len(line) + 1
            return True
        key = find_first_key(line)
        if key == "bar":
            return True
        if key == "start" and self._wanted is not None:
            start = self._head.read(line, LogStart)
            self.offset, self._wanted = start.start, None
            self._begin(start.processes)
            return False
        if key == "error":
            raise NotFoundError(self._head.failed(line, hint="").message, hint="cluster jobs")
        if key == "alive":
            return False
        self.offset += len(line) + 1
        return True

    def _tolerate(self, error: ClusterError) -> None:
        """Reports a broken connection once. Raises ConnectError when it stays broken too long."""
        now = time.monotonic()
        if self._lost_at is None:
            self._lost_at, self._pause_s = now, 0.0
        else:
            self._pause_s = min(max(1.0, 2 * self._pause_s), LONGEST_PAUSE_S)
        minutes = f"{CLIENT_PATIENCE_S / 60:.0f} min"
        if now - self._lost_at > CLIENT_PATIENCE_S:
            raise ConnectError(
                f"{error.message}\n  gave up after {minutes}; job {self._job} may still run",
                hint=f"cluster logs -f {self._job}",
            ) from error
        cause = error.message.partition("\n")[0]
        if cause != self._reported:
            keeps = f"{cause}; job {self._job} keeps running; retrying for {minutes}"
            self._message(keeps if not self._reported else f"{cause} (try: {error.hint})" if error.hint else cause)
            self._reported = cause

    def _rest(self) -> None:
        until = time.monotonic() + self._pause_s
        while time.monotonic() < until:
            self._check()
            time.sleep(CHECK_EVERY_S)


def pass_on(lines: Iterable[bytes], reader: EventReader, take: Callable[[Event], None]) -> JobResult | None:
    """Passes the events of a log's lines to `take`, up to the result, which it returns; None without a result."""
    for line in lines:
        event = reader.read(line)
        if event is not None:
            take(event)
            if event.result is not None:
                return event.result
    return None


def stop_job(head: Head, job: str, gone: Sequence[str] = ()) -> StopAnswer:
    """Stops a job and waits until its processes have ended.

    gone: ids of instances that no longer run. Raises ConnectError, AnswerError, ClusterError.
    """
    line = head.ask("stop", job, *gone, timeout_s=STOP_TIMEOUT_S)
    if not line:
        raise NotFoundError(f"{head.name} has no job {job}", hint="cluster jobs")
    return head.read(line, StopAnswer)


def replace_nodes(head: Head, job: str, hosts: Sequence[JobHost]) -> tuple[str, ...]:
    """Hands new hosts to a job that waits for them; returns the names of those that it still waits for.

    Raises ConnectError, AnswerError, ClusterError.
    """
    return head.read(head.ask("replace", job, given=hosts, timeout_s=STOP_TIMEOUT_S), Reply).waiting_for


def check_result(job: str, result: JobResult) -> None:
    """Raises JobError, with the exit code of the first process that failed, unless the job succeeded."""
    remains = f"\n  may still run: {render_left(result.left)}" if result.left else ""
    if result.state == "stopped":
        why = f": {result.error}" if result.error and result.error != "stopped" else ""
        raise JobError(f"job {job} was stopped{why}{remains}", exit_code=result.exit_code or STOPPED)
    if result.state == "failed" or result.exit_code:
        cause = f"\n  cause: {result.cause}" if result.cause else ""
        raise JobError(f"job {job} failed: {result.error}{cause}{remains}", exit_code=result.exit_code or 1)
    if result.left:
        raise JobError(f"job {job} succeeded, but left processes behind{remains}", exit_code=1)


def render_left(left: Left) -> str:
    """The remaining processes of a job in one line. Pure."""
    # Process 0: the whole host could not be searched.
    return "; ".join(
        f"{node}: process {pid} ({words})" if pid else f"{node} {words}"
        for node, found in left.items()
        for pid, words in found
    )
