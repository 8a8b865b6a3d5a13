"""Runs one command on all nodes in parallel: passes on its output, collects the results, and leaves no process behind.

node/setup/exec_command.py runs the command on a node, and describes the protocol.
"""

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, wait
from contextlib import closing
from typing import Annotated, Literal, Protocol

from msgspec import Meta, Struct

from bootstrap.ssh.connection import NodeConnection
from bootstrap.ssh.host import ACTIVATE, RUN_WORDS, Host
from bootstrap.ssh.node_program import NodeProgram
from foundation.errors import ClusterError, ConnectError
from foundation.thread_pool import run_in_thread
from node.protocol import OUTPUT_ENCODING

STOP_TIMEOUT_S = 20.0
"""More than the node's program takes at most: twice its ROOT_TIMEOUT_S and TERM_GRACE_S, 14 s in all."""

Stream = Literal["stdout", "stderr"]


class Sink(Protocol):
    """Receives the output; called from one thread for each node."""

    def take(self, node: str, stream: Stream, data: bytes) -> None:
        """Takes a piece of a node's output; b"" means that the stream has ended. An error ends the command."""

    def drop(self) -> None:
        """Stops showing output, and releases the threads that wait in `take`."""


class ExitStatus(Struct, frozen=True, kw_only=True):
    """How the command ended on one node.

    exit_code: 128 + the signal's number if a signal ended it; None if it is unknown, for the reason in `error`.
    ended_at: in seconds of the monotonic clock.
    """

    node: str
    exit_code: int | None = None
    signal: int | None = None
    error: ClusterError | None = None
    ended_at: float = 0.0


def execute(
    hosts: Sequence[Host],
    words: Sequence[str],
    *,
    open_connection: Callable[[Host], NodeConnection],
    sink: Sink,
) -> tuple[ExitStatus, ...]:
    """Runs a command on all hosts in parallel, and waits until it has ended everywhere.

    Returns how it ended on each host, in the order of `hosts`.
    On KeyboardInterrupt, and if `sink` raises an error, ends the command everywhere, with all its children, before it
    raises the error. Raises ClusterError if the command may still run somewhere.
    """
    runs = [_Run(host, words, open_connection=open_connection, sink=sink) for host in hosts]
    followed = [run_in_thread(run.follow) for run in runs]
    try:
        ended, _ = wait(followed, return_when=FIRST_EXCEPTION)
        return tuple(one.result() for one in sorted(ended, key=followed.index))
    except BaseException:
        sink.drop()
        for run in runs:
            run.stop()
        wait(followed, timeout=STOP_TIMEOUT_S)
        left = [run.host.name for run in runs if run.may_run]
        if left:
            raise ClusterError(
                f"the command was stopped, but may still run on {', '.join(left)}",
                hint=f"cluster exec --node {left[0]} -- ps -ef",
            ) from None
        raise


def choose_exit_code(statuses: Sequence[ExitStatus]) -> int:
    """1 if a node's result is unknown, else the code of the process that failed first, else 0. Pure."""
    if any(status.exit_code is None for status in statuses):
        return 1
    failed = [status for status in statuses if status.exit_code]
    return min(failed, key=lambda status: status.ended_at).exit_code or 0 if failed else 0


class _Run:
    """The command on one node, followed in its own thread.

    may_run: whether processes of it may run there.
    """

    def __init__(
        self,
        host: Host,
        words: Sequence[str],
        *,
        open_connection: Callable[[Host], NodeConnection],
        sink: Sink,
    ) -> None:
        self.host = host
        self.may_run = False
        self._words = words
        self._open_connection = open_connection
        self._sink = sink
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._program: NodeProgram | None = None
        self._broken: BaseException | None = None

    def follow(self) -> ExitStatus:
        """Connects, starts the command, and passes on its output until it ends. Raises the error of the sink."""
        try:
            status = self._run()
        except ClusterError as error:
            status = ExitStatus(node=self.host.name, error=error)
        if self._broken is not None:
            raise self._broken
        return status

    def stop(self) -> None:
        """Has the node end the command. Drops further output."""
        self._stopped.set()
        with self._lock:
            if self._program is not None:
                self._program.end_input()

    def _run(self) -> ExitStatus:
        connection = self._open_connection(self.host)
        with self._lock:
            if self._stopped.is_set():
                raise ConnectError(f"{self.host.name}: the command was not started")
            self._program = program = NodeProgram(connection, "exec")
            self.may_run = True
            program.send_message({"words": ["sh", "-c", ACTIVATE + RUN_WORDS, "sh", *self._words]})
        with closing(program):
            for message in program.messages():
                piece = program.read(message, _Piece)
                streams: tuple[tuple[Stream, str], ...] = (("stdout", piece.out), ("stderr", piece.err))
                for stream, text in streams:
                    if text or piece.exit is not None:
                        self._pass_on(stream, text.encode(OUTPUT_ENCODING, "replace"))
                if piece.exit is not None:
                    self.may_run = bool(piece.left)
                    return ExitStatus(
                        node=self.host.name, exit_code=piece.exit, signal=piece.signal, ended_at=time.monotonic()
                    )
        raise AssertionError  # messages never ends by itself

    def _pass_on(self, stream: Stream, data: bytes) -> None:
        if self._stopped.is_set():
            return
        try:
            self._sink.take(self.host.name, stream, data)
        except BaseException as error:  # noqa: BLE001 - `follow` raises it; the rest is read to get the result
            self._broken = error
            self.stop()


class _Piece(Struct, frozen=True):
    """A message of node/setup/exec_command.py: output, or the result."""

    out: str = ""
    err: str = ""
    exit: Annotated[int, Meta(ge=0, le=255)] | None = None
    signal: Annotated[int, Meta(ge=0, le=127)] | None = None
    left: tuple[int, ...] = ()
