"""Runs one command on all nodes in parallel: passes on its output, collects the results, and leaves no process behind.

node/setup/exec_command.py runs the command on a node, and describes the protocol.
"""

import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Literal, Protocol

import paramiko
from msgspec import Meta, Struct

from bootstrap.ssh.connection import NodeConnection
from bootstrap.ssh.host import Host
from bootstrap.ssh.node_program import runtime_command
from foundation.decode import decode
from foundation.errors import ClusterError, ConnectError

BEGIN = b"\0cluster exec\0"
SHELL_BYTES = 1 << 16  # the limit for the login shell's output
MAX_FRAME_BYTES = 1 << 20  # the node's program sends 64 KiB at most
SILENCE_S = 30.0  # the node's program sends signs of life every few seconds
STOP_TIMEOUT_S = 20.0
"""More than the node's program takes at most: twice its ROOT_TIMEOUT_S and TERM_GRACE_S, 14 s in all."""

Stream = Literal["stdout", "stderr"]


class Sink(Protocol):
    """Receives the output; called from one thread for each node."""

    def take(self, node: str, stream: Stream, data: bytes) -> None:
        """Takes a piece of a node's output; b"" means that the stream has ended. An error ends the command."""

    def drop(self) -> None:
        """Stops showing output, and releases the threads that wait in `take`."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ending:
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
    words: Sequence[str] | Mapping[str, Sequence[str]],
    *,
    open_connection: Callable[[Host], NodeConnection],
    sink: Sink,
) -> tuple[Ending, ...]:
    """Runs a command on all hosts in parallel, and waits until it has ended everywhere.

    words: the words of the command, or those of each host's command, by the host's name.
    Returns how it ended on each host, in the order of `hosts`.
    On KeyboardInterrupt, and if `sink` raises an error, ends the command everywhere, with all its children, before it
    raises the error. Raises ClusterError if the command may still run somewhere.
    """
    changed = threading.Condition()
    by_name = words if isinstance(words, Mapping) else {host.name: words for host in hosts}
    runs = [
        _Run(host, by_name[host.name], open_connection=open_connection, sink=sink, changed=changed) for host in hosts
    ]
    for run in runs:
        threading.Thread(target=run.follow, daemon=True).start()
    try:
        with changed:
            changed.wait_for(lambda: all(run.ending for run in runs) or any(run.broken for run in runs))
    except KeyboardInterrupt:
        _stop(runs, sink, changed)
        raise
    broken = next((run.broken for run in runs if run.broken), None)
    if broken is not None:
        _stop(runs, sink, changed)
        raise broken
    return tuple(run.ending for run in runs if run.ending is not None)


def choose_exit_code(endings: Sequence[Ending]) -> int:
    """1 if a node's result is unknown, else the code of the process that failed first, else 0. Pure."""
    if any(ending.exit_code is None for ending in endings):
        return 1
    failed = [ending for ending in endings if ending.exit_code]
    return min(failed, key=lambda ending: ending.ended_at).exit_code or 0 if failed else 0


def _stop(runs: Sequence["_Run"], sink: Sink, changed: threading.Condition) -> None:
    sink.drop()
    for run in runs:
        run.stop()
    with changed:
        changed.wait_for(lambda: all(run.is_over for run in runs), timeout=STOP_TIMEOUT_S)
    left = [run.host.name for run in runs if not run.is_over or run.left]
    if left:
        raise ClusterError(
            f"the command was stopped, but may still run on {', '.join(left)}",
            hint=f"cluster exec --node {left[0]} -- ps -ef",
        )


class _Run:
    """The command on one node, followed in its own thread."""

    def __init__(
        self,
        host: Host,
        words: Sequence[str],
        *,
        open_connection: Callable[[Host], NodeConnection],
        sink: Sink,
        changed: threading.Condition,
    ) -> None:
        self.host = host
        self.ending: Ending | None = None
        self.broken: BaseException | None = None
        self.left: Sequence[int] = ()
        self._words = words
        self._open_connection = open_connection
        self._sink = sink
        self._changed = changed
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._channel: paramiko.Channel | None = None

    @property
    def is_over(self) -> bool:
        """Whether the command is known to have ended, or was never started."""
        return self._channel is None or (self.ending is not None and self.ending.error is None)

    def follow(self) -> None:
        """Connects, starts the command, and passes on its output until it ends."""
        try:
            self._end(self._run())
        except ClusterError as error:
            self._end(Ending(node=self.host.name, error=error))
        except BaseException as error:  # noqa: BLE001 - passed to the caller's thread, which raises it
            self._break(error)

    def stop(self) -> None:
        """Has the node end the command. Drops further output."""
        self._stopped.set()
        with self._lock, suppress(OSError, EOFError, paramiko.SSHException):
            if self._channel is not None:
                self._channel.shutdown_write()

    def _end(self, ending: Ending) -> None:
        with self._changed:
            self.ending = ending
            self._changed.notify_all()

    def _break(self, error: BaseException) -> None:
        with self._changed:
            self.broken = error
            self._changed.notify_all()

    def _run(self) -> Ending:
        connection = self._open_connection(self.host)
        order = json.dumps({"words": list(self._words)}).encode("ascii") + b"\n"
        with self._lock:
            if self._stopped.is_set():
                raise ConnectError(f"{self.host.name}: the command was not started")
            self._channel = channel = connection.open_channel(runtime_command("exec"))
            channel.settimeout(SILENCE_S)
            try:
                channel.sendall(order)
            except OSError as error:
                raise self._lost(str(error)) from error
        try:
            return self._follow_frames(_Frames(channel))
        finally:
            channel.close()

    def _follow_frames(self, frames: "_Frames") -> Ending:
        if not frames.find_beginning():
            raise self._lost(frames.find_cause())
        while (frame := frames.read()) is not None:
            letter, data = frame
            if letter in {b"o", b"e"}:
                self._pass_on("stdout" if letter == b"o" else "stderr", data)
            elif letter == b"x":
                try:
                    result = decode(data, _Result)
                except ValueError as error:
                    raise self._lost(f"cannot parse its result: {error}") from None
                self.left = result.left
                ended_at = time.monotonic()
                self._pass_on("stdout", b"")
                self._pass_on("stderr", b"")
                return Ending(node=self.host.name, exit_code=result.exit, signal=result.signal, ended_at=ended_at)
        raise self._lost(frames.find_cause())

    def _pass_on(self, stream: Stream, data: bytes) -> None:
        if self._stopped.is_set():
            return
        try:
            self._sink.take(self.host.name, stream, data)
        except BaseException as error:  # noqa: BLE001 - as in `follow`; the rest is read to get the result
            self._stopped.set()
            self._break(error)

    def _lost(self, why: str) -> ConnectError:
        return ConnectError(
            f"{self.host.name} ({self.host.address}): the command was lost: {why or 'the connection ended'}",
            hint="cluster status; a node that loses the connection ends the command",
        )


class _Result(Struct, frozen=True):
    """The content of the last frame."""

    exit: Annotated[int, Meta(ge=0, le=255)]
    signal: Annotated[int, Meta(ge=0, le=127)] | None
    left: tuple[int, ...]


class _Frames:
    """The frames that node/exec_command.py sends over a channel."""

    def __init__(self, channel: paramiko.Channel) -> None:
        self._channel = channel
        self._rest = bytearray()
        self._silent = False
        self._damage: str | None = None

    def find_beginning(self) -> bool:
        """Skips the output of the login shell. Returns False if the channel has nothing else."""
        while BEGIN not in self._rest:
            if len(self._rest) > SHELL_BYTES or not self._fill():
                return False
        del self._rest[: self._rest.index(BEGIN) + len(BEGIN)]
        return True

    def read(self) -> tuple[bytes, bytes] | None:
        """The next frame, its letter and its data; None at the end."""
        while len(self._rest) < 5 or len(self._rest) < 5 + self._size():
            if len(self._rest) >= 5 and self._size() > MAX_FRAME_BYTES:
                self._damage = f"it sent a frame of more than {MAX_FRAME_BYTES >> 20} MiB"
                return None
            if not self._fill():
                return None
        size = self._size()
        frame = bytes(self._rest[:1]), bytes(self._rest[5 : 5 + size])
        del self._rest[: 5 + size]
        return frame

    def _size(self) -> int:
        return int.from_bytes(self._rest[1:5], "big")

    def _fill(self) -> bool:
        try:
            data = self._channel.recv(1 << 16)
        except TimeoutError:
            self._silent = True
            return False
        self._rest += data
        return bool(data)

    def find_cause(self) -> str:
        """The reason why the frames ended too early: the cause, or the errors of the node's shell or Python."""
        if self._damage is not None:
            return self._damage
        if self._silent:
            return f"no message for {SILENCE_S:.0f} s"
        said = b""
        while self._channel.recv_stderr_ready() and len(said) < SHELL_BYTES:
            said += self._channel.recv_stderr(SHELL_BYTES)
        return said.decode("utf-8", "replace").strip()
