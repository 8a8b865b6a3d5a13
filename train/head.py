"""jobs.py on the head: what it is asked, over ssh that may break and be made anew."""

import collections
import json
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from typing import Any, Protocol

from bootstrap.connection import quote_command
from provision.errors import ClusterError, ConnectError
from train.payload import NODE_DIR

SILENCE_S = 15.0  # jobs.py speaks every 2 s
ANSWER_TIMEOUT_S = 30.0
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


class Talk:
    """One run of jobs.py, as its channel has it."""

    def __init__(self, channel: Any, *, where: str) -> None:
        self._channel = channel
        self._where = where
        self._rest = b""
        self._waiting: collections.deque[bytes] = collections.deque()
        self._begun = False
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

    def lines(self, look: Look, *, silence_s: float = SILENCE_S) -> Iterator[bytes]:
        """Its lines as they come, without their ends, until it has ended; what a login shell prints first is left out.

        look: is called several times a second, and may raise. silence_s: for how long it may say nothing.
        Raises ConnectError when the connection breaks, ClusterError when the program failed.
        """
        heard_at = time.monotonic()
        while True:
            look()
            # Not in a variable of this generator: who has read enough goes on with another one later.
            while self._waiting:
                line = self._waiting.popleft()
                self._begun = self._begun or is_message(line)
                if self._begun:
                    yield line
            try:
                data = self._channel.recv(1 << 16)
            except TimeoutError:
                if time.monotonic() - heard_at > silence_s:
                    raise self._lost(f"nothing was heard for {silence_s:.0f} s") from None
                continue
            except OSError as error:
                raise self._lost(str(error)) from error
            if not data:
                self._check_end()
                return
            heard_at = time.monotonic()
            *lines, self._rest = (self._rest + data).split(b"\n")
            self._waiting.extend(lines)

    def close(self) -> None:
        """Let go of it."""
        with suppress(OSError, EOFError):
            self._channel.close()

    def _check_end(self) -> None:
        """Whether it ended by itself, and well. A signal, and a broken connection, leave no exit code."""
        code = self._channel.recv_exit_status()
        said = self._read_stderr()
        if code == 0:
            return
        if code < 0 or code > 128:  # as shells tell of signals
            raise self._lost("the connection broke, or jobs.py was killed")
        last = "\n".join(f"  {line}" for line in said.splitlines()[-LAST_LINES:])
        raise ClusterError(f"{self._where}: jobs.py failed with exit code {code}:\n{last}", hint="cluster up")

    def _read_stderr(self) -> str:
        said = b""
        while self._channel.recv_stderr_ready() and (data := self._channel.recv_stderr(1 << 16)):
            said += data
        return said.decode("utf-8", "replace")

    def _lost(self, why: str) -> ConnectError:
        return ConnectError(f"the connection to {self._where} was lost: {why}", hint="cluster status")


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

    def ask(self, *words: str, look: Look = never, timeout_s: float = ANSWER_TIMEOUT_S) -> Mapping[str, Any]:
        """What jobs.py answers, in one line; nothing where no job has ever run. Raises ClusterError's kinds.

        timeout_s: for how long it may say nothing.
        """
        with closing(self.open(*words, look=look)) as talk:
            talk.send(b"")
            for line in talk.lines(look, silence_s=timeout_s):
                message = parse_message(line)
                if "error" in message and "t" not in message:
                    raise ClusterError(f"{self.name}: {message['error']}", hint="cluster jobs")
                if "alive" not in message:
                    return message
        return {}


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


def is_message(line: bytes) -> bool:
    """Whether a line is a JSON object. Pure."""
    return bool(parse_message(line))


def parse_message(line: bytes) -> dict[str, Any]:
    """A line's JSON object, empty when it is none. Pure."""
    if not line.startswith(b"{"):
        return {}
    try:
        message = json.loads(line)
    except ValueError:
        return {}
    return message if isinstance(message, dict) else {}
