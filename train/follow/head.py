"""Requests to jobs.py on the head, over ssh connections that may break."""

import collections
import math
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import wait
from contextlib import closing, suppress
from typing import Any

from bootstrap.ssh.connection import NodeConnection, wait_for_exit
from bootstrap.ssh.node_program import FIND_RUNTIME
from foundation.errors import ClusterError, ConnectError
from foundation.remote_command import Quoted, RemoteCommand, run_program
from foundation.thread_pool import run_in_thread
from node.programs import PYTHON_OPTIONS, program_words
from node.protocol import MAX_LINE_BYTES, find_first_key, parse_failure, shorten

SILENCE_S = 15.0  # jobs.py sends a line every 2 s
ANSWER_TIMEOUT_S = 25.0
WITHOUT_ANSWER_S = 10.0  # for a head that only sends keep-alives
LINE_TIMEOUT_S = 15.0  # from a line's first byte to its end
STILL_TALKS_S = 5.0  # a connection that was active within this time is not lost
END_TIMEOUT_S = 10.0  # from the end of its output to its exit
SHELL_BYTES = 1 << 16  # what a login shell may print before the answer
LOOK_EVERY_S = 0.1
LAST_LINES = 10
_RUN_IF_SET_UP = f"""{FIND_RUNTIME} exit 0
cd && exec "$runtime/bin/python" {PYTHON_OPTIONS} "$runtime/node" "$@"
"""


Look = Callable[[], None]


def never() -> None:
    """A `look` that does nothing."""


class HeadGoneError(ClusterError):
    """The head no longer runs, and neither do its jobs. Connecting again will not help."""


def program_command(name: str, words: Sequence[str], *, code_dir: str) -> RemoteCommand:
    """The command line of a node program whose path is known. Pure."""
    return run_program(*program_words(name, *words, code_dir=code_dir))


def found_program_command(name: str, words: Sequence[str], *, digest: str) -> RemoteCommand:
    """The command line that finds a node program and runs it; it prints nothing if there is none. Pure.

    digest: of this version's code tree.
    """
    return RemoteCommand("set -- ", Quoted(digest, name, *words), _RUN_IF_SET_UP)


class AnswerError(ClusterError):
    """The head sent an invalid answer, or none. Another request will not help."""


class Talk:
    """One run of jobs.py over a channel. Its lines are limited in length, and its answer in time."""

    def __init__(self, channel: Any, *, where: str) -> None:
        self._channel = channel
        self._where = where
        self._rest = bytearray()
        self._rest_since = 0.0
        self._waiting: collections.deque[bytes] = collections.deque()
        self._begun = False
        self._before_bytes = 0  # printed by a login shell
        channel.settimeout(LOOK_EVERY_S)

    def send(self, data: bytes) -> None:
        """Sends the program's whole input. Raises ConnectError."""
        try:
            self._channel.settimeout(SILENCE_S)
            self._channel.sendall(data)
            self._channel.shutdown_write()
            self._channel.settimeout(LOOK_EVERY_S)
        except OSError as error:
            raise self._lost(str(error) or "it broke") from error

    def answer(self, look: Look, *, timeout_s: float) -> bytes:
        """The line with the answer, or b"" if the program ended without one.

        Raises ConnectError when nothing arrives for timeout_s or the connection breaks, AnswerError when only other
        output arrives, ClusterError when the program failed.
        """
        deadline = time.monotonic() + timeout_s
        with closing(self.lines(look, silence_s=timeout_s, deadline=deadline)) as lines:
            alive_since = None
            for line in lines:
                if find_first_key(line) != "alive":
                    return line
                now = time.monotonic()
                alive_since = alive_since or now
                if now - alive_since > WITHOUT_ANSWER_S:
                    raise self._no_answer(f"sent only keep-alives for {WITHOUT_ANSWER_S:.0f} s")
        return b""

    def lines(self, look: Look, *, silence_s: float = SILENCE_S, deadline: float = math.inf) -> Generator[bytes]:
        """The program's lines without newlines, until it ends. Skips what a login shell prints first.

        look: called several times a second, and may raise. silence_s: how long the program may send nothing. deadline:
        a time of the monotonic clock. Raises ConnectError when the connection breaks, AnswerError for a line that is
        too long or does not end, ClusterError when the program failed.
        """
        heard_at = time.monotonic()
        while True:
            look()
            # Stored in self, not in this generator: the caller may stop here and continue with another generator.
            while self._waiting:
                line = self._waiting.popleft()
                if self._is_message(line):
                    yield line
            now = time.monotonic()
            if now > deadline and now - heard_at < STILL_TALKS_S:
                raise self._no_answer("sent other output until the timeout")
            try:
                data = self._channel.recv(1 << 16)
            except TimeoutError:
                if now - heard_at > silence_s or now > deadline:
                    raise self._lost(f"no data for {min(now - heard_at, silence_s):.0f} s") from None
                self._check_rest(now)
                continue
            except OSError as error:
                raise self._lost(str(error)) from error
            if not data:
                self._check_end()
                return
            heard_at = now
            self._take(data, now)

    def close(self) -> None:
        """Closes the channel."""
        with suppress(OSError, EOFError):
            self._channel.close()

    def _take(self, data: bytes, now: float) -> None:
        first, newline, data = data.partition(b"\n")
        if not self._rest:
            self._rest_since = now
        self._rest += first
        if newline:
            *lines, rest = data.split(b"\n")
            self._waiting.append(bytes(self._rest))
            self._waiting.extend(lines)
            self._rest = bytearray(rest)
            self._rest_since = now
        self._check_rest(now)

    def _check_rest(self, now: float) -> None:
        """Raises AnswerError for a line that does not end."""
        if len(self._rest) > MAX_LINE_BYTES:
            raise self._no_answer(f"sent a line of more than {MAX_LINE_BYTES >> 20} MiB")
        is_ours = self._begun or self._rest.startswith(b"{")
        if is_ours and self._rest and now - self._rest_since > LINE_TIMEOUT_S:
            raise self._no_answer(f"did not end a line for {LINE_TIMEOUT_S:.0f} s")

    def _is_message(self, line: bytes) -> bool:
        """Whether a line is the program's. Raises AnswerError after too much other output."""
        self._begun = self._begun or bool(find_first_key(line))
        if not self._begun:
            self._before_bytes += len(line) + 1
            if self._before_bytes > SHELL_BYTES:
                raise self._no_answer(f"printed more than {SHELL_BYTES >> 10} KiB of other output")
        return self._begun

    def _check_end(self) -> None:
        """Checks that the program ended with exit code 0. A signal or a broken connection leaves no code."""
        code = wait_for_exit(self._channel, timeout_s=END_TIMEOUT_S)
        if code == 0:
            return
        if code < 0 or code > 128:  # how shells report signals
            raise self._lost("it broke, or the program on the node was killed")
        said = self._read_stderr().splitlines()
        if "Traceback (most recent call last):" in said:
            said = said[-1:]  # the error; the rest is our program's traceback
        last = "".join(f"\n  {shorten(line)}" for line in said[-LAST_LINES:])
        raise ClusterError(
            f"{self._where}: the program on the node failed with exit code {code}:{last}", hint="cluster up"
        )

    def _read_stderr(self) -> str:
        said = b""
        while (
            len(said) < SHELL_BYTES
            and self._channel.recv_stderr_ready()
            and (data := self._channel.recv_stderr(1 << 16))
        ):
            said += data
        return said.decode("utf-8", "replace")

    def _lost(self, why: str) -> ConnectError:
        return ConnectError(f"the connection to {self._where} was lost: {why}", hint="cluster status")

    def _no_answer(self, why: str) -> AnswerError:
        return AnswerError(f"{self._where} {why}, and no answer", hint="cluster verify checks the nodes")


class Head:
    """The head of a cluster. connect: opens a connection, or raises HeadGoneError if the head no longer runs.

    command: the command line of jobs.py for its arguments. connection: an open connection, which the caller closes.
    """

    def __init__(
        self,
        *,
        name: str,
        connect: Callable[[], NodeConnection],
        command: Callable[[Sequence[str]], RemoteCommand],
        connection: NodeConnection | None = None,
    ) -> None:
        self.name = name
        self._connect = connect
        self._command = command
        self._connection = connection
        self._own: NodeConnection | None = None

    def open(self, *words: str, look: Look = never) -> Talk:
        """Runs jobs.py with these arguments, over a new connection if the last one is broken.

        look: called several times a second while connecting, and may raise. Raises ConnectError and similar errors,
        HeadGoneError.
        """
        command = self._command(words)
        if self._connection is not None:
            try:
                return Talk(self._connection.open_channel(command), where=self.name)
            except ConnectError:
                self.drop()
        self._connection = self._own = _watch(self._connect, look)
        return Talk(self._connection.open_channel(command), where=self.name)

    def drop(self) -> None:
        """Stops using the connection, which is broken or delivers no answers."""
        self._connection = None
        self.close()

    def close(self) -> None:
        """Closes the connection if this object opened it."""
        own, self._own = self._own, None
        if own is not None:
            self._connection = None
            own.close()

    def ask(self, *words: str, look: Look = never, timeout_s: float = ANSWER_TIMEOUT_S) -> bytes:
        """The answer of jobs.py within timeout_s; b"" if no job has ever run. Raises ClusterError or a subclass."""
        with closing(self.open(*words, look=look)) as talk:
            talk.send(b"")
            line = talk.answer(look, timeout_s=timeout_s)
        if find_first_key(line) == "error":
            raise self.failed(line, hint="cluster jobs")
        return line

    def failed(self, line: bytes, *, hint: str) -> ClusterError:
        """The error that a line from the head reports."""
        try:
            return ClusterError(f"{self.name}: {parse_failure(line)}", hint=hint)
        except ValueError as error:
            return self.not_understood(error)

    def not_understood(self, error: ValueError) -> AnswerError:
        """The error for an invalid answer."""
        return AnswerError(f"{self.name} sent an invalid answer: {error}", hint="cluster verify checks the nodes")


def _watch(connect: Callable[[], NodeConnection], look: Look) -> NodeConnection:
    """Connects in another thread, and calls `look` meanwhile. Raises what `connect` or `look` raises."""
    made = run_in_thread(connect)
    while not wait([made], LOOK_EVERY_S).done:
        look()
    return made.result()
