"""Runs a program of the node's runtime over ssh, and exchanges lines of JSON with it: the one way to talk to a node.

A program prints its messages, and {"alive": true} while it has none. Its shell may print other lines before them.
"""

import json
import math
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator
from functools import cache
from importlib.resources import files
from typing import Any, TypeVar

import paramiko
from msgspec import to_builtins

from bootstrap.runtime.code import FOLDER, runtime_digest
from bootstrap.ssh.connection import NodeConnection, wait_for_exit
from bootstrap.ssh.explain import command_error
from bootstrap.ssh.host import Output
from foundation.decode import convert, decode, shorten
from foundation.errors import ClusterError, ConnectError
from foundation.remote_command import Quoted, RemoteCommand
from node.programs import PYTHON_OPTIONS
from node.protocol import MAX_LINE_BYTES, find_first_key

SILENCE_S = 20.0
"""These programs send a message every second or two: after this long a silence, the program or its host is dead."""
STILL_TALKS_S = 5.0  # a connection that was active within this time is not lost
CHECK_EVERY_S = 0.1
END_TIMEOUT_S = 10.0  # from the end of its output to its exit
MAX_STDERR_BYTES = 1 << 20
FIRST_SIGNAL_CODE = 129  # shells report signals as 128 + their number
HINT = "cluster status; when the node runs, run the command again"
T = TypeVar("T")
Check = Callable[[], None]
FIND_RUNTIME = """
runtimes=$HOME/.cluster/{folder}
runtime=$runtimes/$1/.complete
[ -f "$runtime" ] || runtime=$(ls -tc "$runtimes"/*/.complete 2>/dev/null | grep -Ev '[.](new|old)/' | head -n 1)
runtime=${{runtime%/.complete}}
shift
[ -n "$runtime" ] && [ -x "$runtime/bin/python" ] || {missing}
echo
exec $as_root "$runtime/bin/python" {options}$more "$runtime/node" "$@"
"""
"""Runs a program in the runtime of this version of `cluster`, $1, or else in the newest that the node has.

An interrupted command may leave one half made, without its mark, or half removed, as *.old. The empty line ends what a
login shell printed.
"""
# As root, Python writes no files: the node's user could not remove them.
_AS_ROOT = 'more=B; [ "$(id -u)" = 0 ] || as_root="sudo -n"; '
_FAIL = '{ echo "this node was never set up: cluster up" >&2; exit 127; }'
# Loads the modules that arrive on its stdin, and runs the last one as the program. They share this buffered stdin.
LOADER = """
import json, sys, types
for name, source in json.loads(sys.stdin.buffer.readline().decode("utf-8")):
    module = sys.modules[name] = types.ModuleType(name)
    exec(compile(source, name + ".py", "exec"), module.__dict__)
module.main()
"""


@cache
def read_program(name: str) -> str:
    """The text of a file in node/setup/; name: its path in that folder."""
    return files("node").joinpath("setup", name).read_text(encoding="utf-8")


@cache
def read_modules(names: tuple[str, ...]) -> bytes:
    """Modules of node/setup/ in the form that LOADER reads. They import each other by name, without the folder."""
    return json.dumps([(name, read_program(f"{name}.py")) for name in names]).encode() + b"\n"


def runtime_command(name: str, *words: str, as_root: bool = False, must_exist: bool = True) -> RemoteCommand:
    """The command that becomes a program of node/__main__.py in a node's runtime. Pure, but reads our code.

    must_exist: without a runtime, the command fails; otherwise it prints nothing and succeeds.
    """
    setting = f"as_root= more=; {_AS_ROOT if as_root else ''}set -- "
    missing = _FAIL if must_exist else "exit 0"
    run = FIND_RUNTIME.format(folder=FOLDER, missing=missing, options=PYTHON_OPTIONS)
    return RemoteCommand(setting, Quoted(runtime_digest(), name, *words), run)


def never() -> None:
    """A Check that does nothing."""


class AnswerError(ClusterError):
    """A node's program sent an invalid answer, or none. Another request will not help."""


class NodeProgram:
    """A program on a node, from its start to its end. Not safe to use from several threads.

    name: in node/__main__.py. command: runs it; by default, in the node's runtime, which has been placed.
    """

    silence_s: float = SILENCE_S  # how long it may send nothing

    def __init__(
        self,
        connection: NodeConnection,
        name: str,
        *,
        command: RemoteCommand | None = None,
        as_root: bool = False,
    ) -> None:
        self.connection = connection
        self._name = f"{name}.py"
        self._channel = connection.open_channel(command or runtime_command(name, as_root=as_root))
        self._lines: deque[bytes] = deque()
        self._rest = bytearray()
        self._has_begun = False

    def send_message(self, message: Any) -> None:
        """Sends a message. Raises ConnectError."""
        self.send(json.dumps(to_builtins(message)).encode() + b"\n")

    def send(self, data: bytes) -> None:
        """Sends bytes. Raises ConnectError if the program does not read them."""
        self._channel.settimeout(self.silence_s)
        try:
            self._channel.sendall(data)
        except TimeoutError:
            raise self._silent() from None
        except (OSError, EOFError, paramiko.SSHException):
            return  # the other side has closed the channel; `lines` yields its messages from before that

    def end_input(self) -> None:
        """Ends the program's stdin."""
        try:
            self._channel.shutdown_write()
        except (OSError, EOFError, paramiko.SSHException):
            return  # as in `send`

    def call(
        self, message: Any, kind: type[T], *, timeout_s: float = math.inf, what: str = "", hint: str | None = None
    ) -> T:
        """Sends a message, and returns the answer, of this type.

        what, hint: for an error that the program reports. Raises as `messages`, and ClusterError for such an error.
        """
        self.send_message(message)
        answer = next(self.messages(time.monotonic() + timeout_s))
        if answer.get("error") is not None:
            raise ClusterError(
                ": ".join(part for part in (self.connection.host.name, what, shorten(str(answer["error"]))) if part),
                hint=hint,
            )
        return self.read(answer, kind)

    def messages(self, deadline: float = math.inf) -> Iterator[dict[str, Any]]:
        """Yields the program's messages, without its signs of life. Raises as `lines`, and ConnectError at its end."""
        for line in self.lines(deadline):
            message = parse_message(line)
            if message and "alive" not in message:
                yield message
        raise self._lost()

    def answer(self, *, timeout_s: float) -> bytes:
        """The next line that is no sign of life; b"" if the program ends without one. Raises as `lines`."""
        for line in self.lines(time.monotonic() + timeout_s):
            if find_first_key(line) != "alive":
                return line
        return b""

    def lines(self, deadline: float = math.inf, *, check: Check = never) -> Generator[bytes]:
        """Yields the program's lines from its first message on, without newlines, until it ends.

        check: called several times a second, and may raise. deadline: by time.monotonic(). Raises ConnectError if the
        connection is lost, AnswerError if the program sends other lines until the deadline, or one that is too long,
        and NodeCommandError if it fails.
        """
        received_at = time.monotonic()
        while True:
            check()
            # Stored in self, not in this generator: the caller may stop here and continue with another one.
            while self._lines:
                line = self._lines.popleft()
                self._has_begun = self._has_begun or bool(find_first_key(line))
                if self._has_begun:
                    yield line
            data = self._receive_lines()
            now = time.monotonic()
            if data == b"":
                self._check_end()
                return
            received_at = now if data else received_at
            if now - received_at > self.silence_s:
                raise self._silent()
            if now > deadline:
                raise self._late() if now - received_at < STILL_TALKS_S else self._silent()

    def read_bytes(self, count: int) -> bytes:
        """The next bytes of the program's output, after the last line. Raises ConnectError, NodeCommandError."""
        received_at = time.monotonic()
        while len(self._rest) < count:
            data = self._receive()
            if data == b"":
                self._check_end()
                raise self._lost()
            if data:
                self._rest += data
                received_at = time.monotonic()
            elif time.monotonic() - received_at > self.silence_s:
                raise self._silent()
        found = bytes(self._rest[:count])
        del self._rest[:count]
        return found

    def read(self, message: Any, kind: type[T]) -> T:
        """Converts a message to a type. Raises AnswerError for an invalid message."""
        try:
            return convert(message, kind)
        except ValueError as error:
            raise self.invalid(error) from None

    def close(self) -> None:
        """Closes the program's stdin and output, which ends it."""
        self._channel.close()

    @property
    def _where(self) -> str:
        host = self.connection.host
        return f"{host.name} ({host.address})"

    def _receive(self) -> bytes | None:
        """Receives bytes; b"" at the end of the stream, None if there are none yet."""
        self._channel.settimeout(CHECK_EVERY_S)
        try:
            data: bytes = self._channel.recv(1 << 16)
        except TimeoutError:
            return None
        except (OSError, EOFError, paramiko.SSHException) as error:
            raise ConnectError(f"{self._where}: the connection is lost: {error}", hint=HINT) from error
        return data

    def _receive_lines(self) -> bytes | None:
        """As _receive, and adds the bytes to the lines."""
        data = self._receive()
        first, newline, data_after = (data or b"").partition(b"\n")
        self._rest += first
        if len(self._rest) > MAX_LINE_BYTES:
            raise AnswerError(
                f"{self._where}: {self._name} has sent a line of more than {MAX_LINE_BYTES >> 20} MiB", hint=HINT
            )
        if newline:
            *lines, rest = data_after.split(b"\n")
            self._lines += [bytes(self._rest), *lines]
            self._rest = bytearray(rest)
        return data

    def _silent(self) -> ConnectError:
        return ConnectError(f"{self._where}: no message for {self.silence_s:g} s", hint=HINT)

    def invalid(self, why: object) -> AnswerError:
        """The error for an invalid message."""
        return AnswerError(f"{self._where}: {self._name} sent an invalid message: {why}", hint=HINT)

    def _late(self) -> AnswerError:
        return AnswerError(f"{self._where}: {self._name} did not end in time", hint=HINT)

    def _lost(self) -> ConnectError:
        return ConnectError(f"{self._where}: the connection is lost, or {self._name} was killed", hint=HINT)

    def _check_end(self) -> None:
        code = wait_for_exit(self._channel, timeout_s=END_TIMEOUT_S)
        if code == 0:
            return
        text = b""
        while len(text) < MAX_STDERR_BYTES and self._channel.recv_stderr_ready():
            text += self._channel.recv_stderr(1 << 16)
        if not text or code < 0 or code >= FIRST_SIGNAL_CODE:
            raise self._lost()
        raise self._failed(text.decode("utf-8", "replace"), exit_code=code)

    def _failed(self, text: str, *, exit_code: int) -> ClusterError:
        if "Traceback (most recent call last):" in text:
            text = text.strip().splitlines()[-1]
        return command_error(self.connection.host, self._name, Output(stdout="", stderr=text, exit_code=exit_code))


def parse_message(line: bytes) -> dict[str, Any] | None:
    """The message in a line of output; None for other lines, which a user's .bashrc may print. Pure."""
    if not line.lstrip().startswith(b"{"):
        return None
    try:
        return decode(line, dict[str, Any])
    except ValueError:
        return None
