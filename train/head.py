"""jobs.py on the head: what it is asked, over ssh that may break and be made anew."""

import collections
import math
import queue
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing, suppress
from typing import Any, Protocol

from bootstrap.channel import wait_for_exit
from bootstrap.connection import quote_command
from provision.errors import ClusterError, ConnectError
from train.payload import NODE_DIR
from train.protocol import MAX_LINE_BYTES, find_first_key, parse_failure, shorten

SILENCE_S = 15.0  # jobs.py speaks every 2 s
ANSWER_TIMEOUT_S = 25.0
WITHOUT_ANSWER_S = 10.0  # for a head that says that it is alive, but not what it is asked
LINE_TIMEOUT_S = 15.0  # from a line's first byte to its end
STILL_TALKS_S = 5.0  # who was heard within this time has not been lost
END_TIMEOUT_S = 10.0  # from the end of its output to its own
SHELL_BYTES = 1 << 16  # that a login shell may print before the answer
LOOK_EVERY_S = 0.1
LAST_LINES = 10
# -S: no site-packages, which the programs do not use; -E: nothing from PYTHON...'s variables.
PYTHON_OPTIONS = "-ES"
# The program of this very version of `cluster` where the head has it, else the newest that was put there.
_FIND_PROGRAM = """
cd "$HOME/.cluster" 2>/dev/null || exit 0
program=tree/$1/node/$2
[ -e "$program" ] || program=$(ls -tcd tree/*/node/"$2" 2>/dev/null | head -n 1)
python=$(ls -tcd env/*/bin/python 2>/dev/null | head -n 1)
[ -n "$program" ] && [ -n "$python" ] || exit 0
program=$PWD/$program python=$PWD/$python
shift 2
cd && exec "$python" -ES "$program" "$@"
"""


Look = Callable[[], None]


def never() -> None:
    """A `look` that sees nothing."""


class Connection(Protocol):
    """What is used of bootstrap's NodeConnection."""

    def open_channel(self, command: str) -> Any:
        """Start a command; its paramiko channel. Raises ConnectError."""

    def close(self) -> None:
        """Hang up."""


class HeadGoneError(ClusterError):
    """The head does not run any more, and with it nothing of its jobs does. Connecting again will not help."""


def program_command(name: str, words: Sequence[str], *, python: str, code_dir: str) -> str:
    """The command line that runs a node-side program which is known to be there. Pure."""
    return "exec " + quote_command([python, PYTHON_OPTIONS, f"{code_dir}/{NODE_DIR}/{name}", *words])


def found_program_command(name: str, words: Sequence[str], *, digest: str) -> str:
    """The command line that looks for a node-side program first; it prints nothing where there is none. Pure.

    digest: that of this version's code tree.
    """
    return quote_command(["sh", "-c", _FIND_PROGRAM, "sh", digest, name, *words])


class AnswerError(ClusterError):
    """The head can be reached, and what it says is not an answer. Asking again will not help."""


class Talk:
    """One run of jobs.py, as its channel has it. What it says is bounded in length, and an answer in time."""

    def __init__(self, channel: Any, *, where: str) -> None:
        self._channel = channel
        self._where = where
        self._rest = bytearray()
        self._rest_since = 0.0
        self._waiting: collections.deque[bytes] = collections.deque()
        self._begun = False
        self._before_bytes = 0  # of what a login shell has printed
        channel.settimeout(LOOK_EVERY_S)

    def send(self, data: bytes) -> None:
        """Give it all of its input. Raises ConnectError."""
        try:
            self._channel.settimeout(SILENCE_S)
            self._channel.sendall(data)
            self._channel.shutdown_write()
            self._channel.settimeout(LOOK_EVERY_S)
        except OSError as error:
            raise self._lost(str(error) or "it broke") from error

    def answer(self, look: Look, *, timeout_s: float) -> bytes:
        """The line that answers, b"" where the program ended without one.

        timeout_s: how long that may take. Raises ConnectError where nothing is heard for so long or the connection
        breaks, AnswerError where something is heard and no answer, ClusterError when the program failed.
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
                    raise self._no_answer(f"has been saying for {WITHOUT_ANSWER_S:.0f} s that it is alive")
        return b""

    def lines(self, look: Look, *, silence_s: float = SILENCE_S, deadline: float = math.inf) -> Generator[bytes]:
        """Its lines as they come, without their ends, until it has ended; what a login shell prints first is left out.

        look: is called several times a second, and may raise. silence_s: for how long it may say nothing. deadline: of
        the monotonic clock. Raises ConnectError when the connection breaks, AnswerError when a line is too long or has
        no end, ClusterError when the program failed.
        """
        heard_at = time.monotonic()
        while True:
            look()
            # Not in a variable of this generator: who has read enough goes on with another one later.
            while self._waiting:
                line = self._waiting.popleft()
                if self._is_message(line):
                    yield line
            now = time.monotonic()
            if now > deadline and now - heard_at < STILL_TALKS_S:
                raise self._no_answer("goes on talking")
            try:
                data = self._channel.recv(1 << 16)
            except TimeoutError:
                if now - heard_at > silence_s or now > deadline:
                    raise self._lost(f"nothing was heard for {min(now - heard_at, silence_s):.0f} s") from None
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
        """Let go of it."""
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
            raise self._no_answer(f"has sent a line of more than {MAX_LINE_BYTES >> 20} MiB")
        is_ours = self._begun or self._rest.startswith(b"{")
        if is_ours and self._rest and now - self._rest_since > LINE_TIMEOUT_S:
            raise self._no_answer(f"has not ended a line for {LINE_TIMEOUT_S:.0f} s")

    def _is_message(self, line: bytes) -> bool:
        """Whether a line is the program's. Raises AnswerError when it prints too much else before."""
        self._begun = self._begun or bool(find_first_key(line))
        if not self._begun:
            self._before_bytes += len(line) + 1
            if self._before_bytes > SHELL_BYTES:
                raise self._no_answer(f"has printed more than {SHELL_BYTES >> 10} KiB that are no answer")
        return self._begun

    def _check_end(self) -> None:
        """Whether it ended by itself, and well. A signal, and a broken connection, leave no exit code."""
        code = wait_for_exit(self._channel, timeout_s=END_TIMEOUT_S)
        if code == 0:
            return
        if code < 0 or code > 128:  # as shells tell of signals
            raise self._lost("the connection broke, or jobs.py was killed")
        said = self._read_stderr().splitlines()
        if "Traceback (most recent call last):" in said:
            said = said[-1:]  # what went wrong; the rest is about our own program
        last = "".join(f"\n  {shorten(line)}" for line in said[-LAST_LINES:])
        raise ClusterError(f"{self._where}: jobs.py failed with exit code {code}:{last}", hint="cluster up")

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
        return AnswerError(f"{self._where} {why}, and no answer has come", hint="cluster verify looks at the nodes")


class Head:
    """The head of a cluster. `connect` makes a connection, and raises HeadGoneError when that can never be again.

    command: the command line of jobs.py for the words that it is given. connection: one that is open already, and is
    not closed here.
    """

    def __init__(
        self,
        *,
        name: str,
        connect: Callable[[], Connection],
        command: Callable[[Sequence[str]], str],
        connection: Connection | None = None,
    ) -> None:
        self.name = name
        self._connect = connect
        self._command = command
        self._connection = connection
        self._own: Connection | None = None

    def open(self, *words: str, look: Look = never) -> Talk:
        """Run jobs.py with these words, over a new connection where the last one is broken.

        look: is called several times a second while that is made, and may raise. Raises ConnectError and the like,
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
        """Use the connection no more: it is broken, or nobody answers on it."""
        self._connection = None
        self.close()

    def close(self) -> None:
        """Hang up, if the connection was made here."""
        own, self._own = self._own, None
        if own is not None:
            self._connection = None
            own.close()

    def ask(self, *words: str, look: Look = never, timeout_s: float = ANSWER_TIMEOUT_S) -> bytes:
        """The line that jobs.py answers; b"" where no job has ever run. Raises ClusterError's kinds.

        timeout_s: how long that may take.
        """
        with closing(self.open(*words, look=look)) as talk:
            talk.send(b"")
            line = talk.answer(look, timeout_s=timeout_s)
        if find_first_key(line) == "error":
            raise self.failed(line, hint="cluster jobs")
        return line

    def failed(self, line: bytes, *, hint: str) -> ClusterError:
        """The error for a line in which the head tells of one."""
        try:
            return ClusterError(f"{self.name}: {parse_failure(line)}", hint=hint)
        except ValueError as error:
            return self.not_understood(error)

    def not_understood(self, error: ValueError) -> AnswerError:
        """The error for an answer that is none."""
        return AnswerError(
            f"{self.name}: its answer cannot be understood: {error}", hint="cluster verify looks at the nodes"
        )


def _watch(connect: Callable[[], Connection], look: Look) -> Connection:
    """Connect in a thread of its own, so that `look` is called meanwhile. Raises what `connect` or `look` raises."""
    done: queue.SimpleQueue[Connection | BaseException] = queue.SimpleQueue()

    def work() -> None:
        try:
            done.put(connect())
        except BaseException as error:  # noqa: BLE001 - crosses over to the caller's thread, and is raised there
            done.put(error)

    threading.Thread(target=work, daemon=True).start()
    while True:
        with suppress(queue.Empty):
            made = done.get(timeout=LOOK_EVERY_S)
            if isinstance(made, BaseException):
                raise made
            return made
        look()
