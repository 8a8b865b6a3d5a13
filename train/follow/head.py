"""Requests to jobs.py on the head, over ssh connections that may break."""

from collections.abc import Callable
from concurrent.futures import wait
from contextlib import closing
from typing import Any, TypeVar

from msgspec import Struct

from bootstrap.ssh.connection import NodeConnection
from bootstrap.ssh.node_program import CHECK_EVERY_S, AnswerError, Check, NodeProgram, never, runtime_command
from foundation.decode import decode, shorten
from foundation.errors import ClusterError, ConnectError
from foundation.thread_pool import run_in_thread
from node.protocol import find_first_key

SILENCE_S = 15.0  # jobs.py sends a line every 2 s
ANSWER_TIMEOUT_S = 25.0
T = TypeVar("T")


class _Failure(Struct, frozen=True):
    error: str


class HeadGoneError(ClusterError):
    """The head no longer runs, and neither do its jobs. Connecting again will not help."""


class Head:
    """The head of a cluster. connect: opens a connection, or raises HeadGoneError if the head no longer runs.

    connection: an open connection, which the caller closes. A head that was never set up answers nothing.
    """

    def __init__(
        self, *, name: str, connect: Callable[[], NodeConnection], connection: NodeConnection | None = None
    ) -> None:
        self.name = name
        self._connect = connect
        self._connection = connection
        self._own: NodeConnection | None = None

    def open(self, *words: str, check: Check = never) -> NodeProgram:
        """Runs jobs.py with these arguments, over a new connection if the last one is broken.

        check: called several times a second while connecting, and may raise. Raises ConnectError and similar errors,
        HeadGoneError.
        """
        if self._connection is not None:
            try:
                return run_jobs(self._connection, *words)
            except ConnectError:
                self.drop()
        self._connection = self._own = _watch(self._connect, check)
        return run_jobs(self._connection, *words)

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

    def ask(self, *words: str, given: Any = None, timeout_s: float = ANSWER_TIMEOUT_S) -> bytes:
        """The answer of jobs.py within timeout_s; b"" if no job has ever run. Raises ClusterError or a subclass.

        given: a message for its stdin.
        """
        with closing(self.open(*words)) as program:
            if given is not None:
                program.send_message(given)
            program.end_input()
            line = program.answer(timeout_s=timeout_s)
        if find_first_key(line) == "error":
            raise self.failed(line, hint="cluster jobs")
        return line

    def failed(self, line: bytes, *, hint: str) -> ClusterError:
        """The error that a line from the head reports."""
        try:
            return ClusterError(f"{self.name}: {shorten(decode(line, _Failure).error)}", hint=hint)
        except ValueError as error:
            return self.not_understood(error)

    def read(self, line: bytes, kind: type[T]) -> T:
        """The head's answer. Raises AnswerError if it is invalid."""
        try:
            return decode(line, kind)
        except ValueError as error:
            raise self.not_understood(error) from None

    def not_understood(self, error: ValueError) -> AnswerError:
        """The error for an invalid answer."""
        return AnswerError(f"{self.name} sent an invalid answer: {error}", hint="cluster verify")


def run_jobs(connection: NodeConnection, *words: str) -> NodeProgram:
    """Runs jobs.py with these arguments. Raises ConnectError."""
    program = NodeProgram(connection, "jobs", command=runtime_command("jobs", *words, must_exist=False))
    program.silence_s = SILENCE_S
    return program


def _watch(connect: Callable[[], NodeConnection], check: Check) -> NodeConnection:
    """Connects in another thread, and calls `check` meanwhile. Raises what `connect` or `check` raises."""
    connecting = run_in_thread(connect)
    while not wait([connecting], CHECK_EVERY_S).done:
        check()
    return connecting.result()
