"""Running a job: submitting it to the head, following it over broken connections, stopping it."""

import json
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass

from msgspec import to_builtins

from bootstrap.ssh.connections import on_all
from foundation.decode import decode
from foundation.errors import AwsError, ClusterError, ConnectError, JobError, NotFoundError, UsageError
from train.follow.events import Event, EventReader
from train.follow.head import LOOK_EVERY_S, SILENCE_S, WITHOUT_ANSWER_S, AnswerError, Head, Look, Talk, never
from train.job.protocol import (
    JobResult,
    JobState,
    Left,
    LeftOnHost,
    Order,
    StopAnswer,
    Submitted,
    find_first_key,
    shorten,
)

CLIENT_PATIENCE_S = 600.0
"""For how long a connection that broke is tried anew; the job does not wait for it."""
LONGEST_PAUSE_S = 15.0
SUBMIT_TIMEOUT_S = 90.0  # longer than jobs.py waits for another submission
STOP_TIMEOUT_S = 60.0  # the supervisor searches all hosts, some of which may not answer
MOST_ENDS = 5
STOPPED = 130


class RefusedError(ClusterError):
    """Another job runs, and this one was not to be queued."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Started:
    """A job that the head has accepted. talk: the connection that continues with its events, if requested."""

    id: str
    state: JobState
    talk: Talk | None


def open_submission(head: Head, *, follow: bool) -> Talk:
    """Start the program that takes an order on the head, before the order is known. Raises ConnectError and others."""
    return head.open("submit", *(["--follow"] if follow else []))


def submit(head: Head, order: Order, *, follow: bool, look: Look = never, talk: Talk | None = None) -> Started:
    """Hand a job to the head's supervisor. talk: of open_submission, with the same `follow`.

    When the connection breaks before the answer, the order is sent again; the head makes one job of both.
    Raises RefusedError, ConnectError, ClusterError for what the head says.
    """
    job = order.job
    talk = talk or open_submission(head, follow=follow)
    state: JobState | None = None
    try:
        state = _hand_over(talk, order, look, head=head.name)
    except ConnectError as error:
        return _submit_again(head, order, error, look)
    finally:
        if state is None or not follow:
            talk.close()
    return Started(id=job, state=state, talk=talk if follow else None)


def _hand_over(talk: Talk, order: Order, look: Look, *, head: str, silence_s: float = SILENCE_S) -> JobState:
    """Send the order, and take the answer. silence_s: for how long that may take. Raises AnswerError and the like."""
    talk.send(json.dumps(to_builtins(order)).encode() + b"\n")
    try:
        line = talk.answer(look, timeout_s=silence_s)
    except AnswerError as error:
        raise AnswerError(
            f"{error.message}: it is not known whether job {order.job} was begun",
            hint=f"cluster jobs; cluster stop {order.job}",
        ) from error
    try:
        said = decode(line or b"{}", Submitted)
    except ValueError as error:
        raise AnswerError(
            f"{head}: it is not known whether it took job {order.job}: its answer cannot be understood: {error}",
            hint="cluster jobs",
        ) from None
    other = said.refused
    if other is not None:
        raise RefusedError(
            f"job {other.id} ({other.name}) is {other.state} on this cluster, which runs one job at a time",
            hint=f"cluster train --queue ..., or cluster stop {other.id}",
        )
    if said.unrunnable is not None:
        raise UsageError(f"no job was begun: {said.unrunnable}")
    if said.job != order.job or said.state is None:
        why = shorten(said.error) if said.error else "it did not answer"
        raise ClusterError(f"{head} did not take job {order.job}: {why}", hint="cluster jobs")
    return said.state


def _submit_again(head: Head, order: Order, lost: ConnectError, look: Look) -> Started:
    """Send an order again whose answer was lost; the head may already have the job. Raises as submit."""
    job = order.job
    head.drop()
    try:
        with closing(head.open("submit", look=look)) as talk:
            state = _hand_over(talk, order, look, head=head.name, silence_s=SUBMIT_TIMEOUT_S)
    except (ConnectError, AwsError) as error:
        raise ConnectError(
            f"{lost.message}\n  and then: {error.message}\n  so it is not known whether job {job} was begun",
            hint="cluster jobs",
        ) from error
    return Started(id=job, state=state, talk=None)


class LogStream:
    """The lines of a job's log, each exactly once and in order, over as many connections as it takes.

    offset: in bytes, where to start. wait: continue at the log's end until the caller stops. look: is called several
    times a second, and may raise. say: gets messages about the connection.
    """

    def __init__(
        self,
        head: Head,
        job: str,
        *,
        say: Callable[[str], None],
        look: Look = never,
        offset: int = 0,
        wait: bool = True,
    ) -> None:
        self.offset = offset
        self._head = head
        self._job = job
        self._say = say
        self._look = look
        self._wait = wait
        self._lost_at: float | None = None  # None while connected
        self._pause_s = 0.0
        self._told = ""
        self._ended = 0  # consecutive runs of jobs.py that ended without a line

    def lines(self, talk: Talk | None = None) -> Generator[bytes]:
        """The lines from the offset on, without newlines; talk: a connection that already sends them.

        Can be called again after an exception of `look`, and continues where it was.
        Raises ConnectError when the head could not be reached for CLIENT_PATIENCE_S, HeadGoneError, NotFoundError,
        AnswerError.
        """
        while True:
            try:
                if talk is None:
                    words = ["follow", self._job, str(self.offset), *(() if self._wait else ["--no-wait"])]
                    talk = self._head.open(*words, look=self._look)
                came_at = time.monotonic()
                for line in talk.lines(self._look):
                    self._hear()
                    if self._is_of_log(line):
                        self.offset += len(line) + 1
                        self._ended = 0
                        yield line
                        came_at = time.monotonic()
                    elif not self._wait and time.monotonic() - came_at > WITHOUT_ANSWER_S:
                        raise self._give_up(f"has sent nothing of it for {WITHOUT_ANSWER_S:.0f} s, though it is alive")
                if not self._wait:
                    return
                self._ended += 1
                if self._ended == MOST_ENDS:
                    raise self._give_up(f"has ended that {MOST_ENDS} times without a line of it")
                self._tolerate(
                    ConnectError(f"{self._head.name}: the program that follows there ended before job {self._job} did")
                )
            except (ConnectError, AwsError) as error:
                self._tolerate(error)
            finally:
                if talk is not None:
                    talk.close()
                talk = None
            self._head.drop()
            self._rest()

    def _hear(self) -> None:
        if self._lost_at is not None:
            self._say(f"connected to {self._head.name} again")
            self._lost_at, self._told = None, ""

    def _is_of_log(self, line: bytes) -> bool:
        """Whether a line is one of the log, and not of the protocol around it. Raises NotFoundError."""
        key = find_first_key(line)
        if key == "error":
            raise NotFoundError(self._head.failed(line, hint="").message, hint="cluster jobs")
        return key != "alive"

    def _give_up(self, why: str) -> AnswerError:
        return AnswerError(
            f"{self._head.name} was asked for the log of job {self._job}, and {why}",
            hint="cluster jobs; the job may still run",
        )

    def _tolerate(self, error: ClusterError) -> None:
        """Report a broken connection once. Raises ConnectError when it lasts too long."""
        now = time.monotonic()
        if self._lost_at is None:
            self._lost_at, self._pause_s = now, 0.0
        else:
            self._pause_s = min(max(1.0, 2 * self._pause_s), LONGEST_PAUSE_S)
        minutes = f"{CLIENT_PATIENCE_S / 60:.0f} min"
        if now - self._lost_at > CLIENT_PATIENCE_S:
            raise ConnectError(
                f"{error.message}\n  it was tried for {minutes}; job {self._job} may still run",
                hint=f"cluster logs -f {self._job}",
            ) from error
        told = error.message.partition("\n")[0]
        if told != self._told:
            self._say(told if self._told else f"{told}; job {self._job} runs on; trying again for {minutes}")
            self._told = told

    def _rest(self) -> None:
        until = time.monotonic() + self._pause_s
        while time.monotonic() < until:
            self._look()
            time.sleep(LOOK_EVERY_S)


class Follower:
    """One job's events, each exactly once and in order. take: gets them; the others as in LogStream.

    reader: the reader of the log up to `offset`, if there was one.
    """

    def __init__(
        self,
        head: Head,
        job: str,
        *,
        take: Callable[[Event], None],
        say: Callable[[str], None],
        look: Look = never,
        reader: EventReader | None = None,
        offset: int = 0,
    ) -> None:
        self.reader = reader or EventReader()
        self._stream = LogStream(head, job, say=say, look=look, offset=offset)
        self._take = take

    def run(self, talk: Talk | None = None) -> JobResult:
        """Follow the job to its end; raises as LogStream.lines, and can be called again likewise."""
        with closing(self._stream.lines(talk)) as lines:
            for line in lines:
                event = self.reader.read(line)
                if event is not None:
                    self._take(event)
                    if event.result is not None:
                        return event.result
        raise AssertionError  # a stream that waits does not end by itself


def run_job(head: Head, order: Order, *, take: Callable[[Event], None], say: Callable[[str], None]) -> JobResult:
    """Run a job to its end; Ctrl-C stops it without a question.

    take: gets each event. say: gets messages about the connection. Give the result to `check_result`.
    Raises RefusedError, ConnectError, HeadGoneError, ClusterError.
    """
    started = submit(head, order, follow=True)
    try:
        return Follower(head, started.id, take=take, say=say).run(started.talk)
    except KeyboardInterrupt:
        stop_job(head, started.id)
        raise


def stop_job(head: Head, job: str, gone: Sequence[str] = ()) -> tuple[JobResult, bool]:
    """Stop a job, queued or running, and wait until nothing is left of it; its result, and whether it had ended before.

    gone: ids of instances that do not run. Raises ConnectError, AnswerError, ClusterError.
    """
    line = head.ask("stop", job, *gone, timeout_s=STOP_TIMEOUT_S)
    if not line:
        raise NotFoundError(f"{head.name} knows no job {job}", hint="cluster jobs")
    try:
        said = decode(line, StopAnswer)
    except ValueError as error:
        raise head.not_understood(error) from None
    return said.result, said.already


def check_result(job: str, result: JobResult) -> None:
    """Raises JobError, with the exit code of the first process that failed, unless all of the job went well."""
    remains = f"\n  not known to have ended: {render_left(result.left)}" if result.left else ""
    if result.state == "stopped":
        why = f": {result.error}" if result.error and result.error != "stopped" else ""
        raise JobError(f"job {job} was stopped{why}{remains}", exit_code=result.exit_code or STOPPED)
    if result.state == "failed" or result.exit_code:
        raise JobError(f"job {job} failed: {result.error}{remains}", exit_code=result.exit_code or 1)
    if result.left:
        raise JobError(f"job {job} did its work, but left processes behind{remains}", exit_code=1)


def end_everywhere(ends: Mapping[str, Callable[[], str]]) -> Left:
    """End a job's processes on nodes from this machine; returns what may still run, by node.

    ends: by the node's name, what ends them there and returns what role.py prints, or raises ClusterError.
    """
    left: Left = {}

    def end_on(node: str) -> None:
        try:
            found = decode(ends[node]().encode() or b"[]", LeftOnHost)
        except (ClusterError, ValueError) as error:
            found = [(0, f"could not be searched: {error}")]
        if found:
            left[node] = found

    on_all(tuple(ends), end_on)
    return left


def render_left(left: Left) -> str:
    """What is left of a job, in a line. Pure."""
    # A process number of 0 stands for a whole host that could not be searched.
    return "; ".join(
        f"{node}: process {pid} ({words})" if pid else f"{node} {words}"
        for node, found in left.items()
        for pid, words in found
    )
