"""Runs a program of the node's runtime over ssh, and exchanges lines of JSON with it."""

import json
import time
from collections import deque
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files
from typing import Any, TypeVar

import paramiko

from bootstrap.runtime.code import FOLDER, runtime_digest
from bootstrap.ssh.connection import NodeConnection, wait_for_exit
from bootstrap.ssh.explain import command_error
from bootstrap.ssh.host import Output
from foundation.decode import convert, decode
from foundation.errors import ConnectError
from foundation.remote_command import Quoted, RemoteCommand
from node.programs import PYTHON_OPTIONS

SILENCE_S = 20.0
"""These programs send a message every second or two: after this long a silence, the program or its host is dead."""
MAX_LINE_BYTES = 1 << 20
MAX_STDERR_BYTES = 1 << 20
HINT = "cluster status; when the node runs, run the command again"
T = TypeVar("T")
FIND_RUNTIME = f"""
runtimes=$HOME/.cluster/{FOLDER}
runtime=$runtimes/$1/.complete
[ -f "$runtime" ] || runtime=$(ls -tc "$runtimes"/*/.complete 2>/dev/null | grep -Ev '[.](new|old)/' | head -n 1)
runtime=${{runtime%/.complete}}
shift
[ -n "$runtime" ] && [ -x "$runtime/bin/python" ] ||"""
"""Sets `runtime` to that of this version of `cluster`, $1, or else to the newest that the node has; a command for a
node without one follows.

An interrupted command may leave one half made, without its mark, or half removed, as *.old.
"""
# As root, Python writes no files: the node's user could not remove them.
_RUN = f"""{FIND_RUNTIME} {{ echo "this node was never set up: cluster up" >&2; exit 127; }}
exec $as_root "$runtime/bin/python" {PYTHON_OPTIONS}$more "$runtime/node" "$@"
"""
_AS_ROOT = 'more=B; [ "$(id -u)" = 0 ] || as_root="sudo -n"; '
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


def runtime_command(name: str, *words: str, as_root: bool = False) -> RemoteCommand:
    """The command that becomes a program of node/__main__.py in a node's runtime. Pure, but reads our code."""
    setting = f"as_root= more=; {_AS_ROOT if as_root else ''}set -- "
    return RemoteCommand(setting, Quoted(runtime_digest(), name, *words), _RUN)


class NodeProgram:
    """A program on a node, from its start to its end. Not safe to use from several threads.

    name: in node/__main__.py. command: runs it; by default, in the node's runtime, which has been placed.
    """

    def __init__(
        self, connection: NodeConnection, name: str, *, command: RemoteCommand | None = None, as_root: bool = False
    ) -> None:
        self.connection = connection
        self._name = f"{name}.py"
        self._channel = connection.open_channel(command or runtime_command(name, as_root=as_root))
        self._channel.settimeout(SILENCE_S)
        self._lines: deque[bytes] = deque()
        self._rest = bytearray()

    def tell(self, message: Mapping[str, Any]) -> None:
        """Sends a message. Raises ConnectError."""
        self._send(json.dumps(message).encode() + b"\n")

    def messages(self, deadline: float = float("inf")) -> Iterator[dict[str, Any]]:
        """Yields the program's messages, without its signs of life, until it ends.

        deadline: by time.monotonic(). Raises ConnectError if the connection is lost or the deadline passes, and
        NodeCommandError if the program fails.
        """
        while time.monotonic() < deadline:
            # Between two messages, the caller may send, which may also receive lines.
            while self._lines:
                message = parse_message(self._lines.popleft())
                if message and "alive" not in message:
                    yield message
            if not self._receive():
                self._raise_ended()
        raise ConnectError(f"{self._where}: {self._name} did not end in time", hint=HINT)

    def read(self, message: Mapping[str, Any], kind: type[T]) -> T:
        """Converts a message to a type. Raises ConnectError for an invalid message."""
        try:
            return convert(message, kind)
        except ValueError as error:
            raise ConnectError(f"{self._where}: {self._name} sent an invalid message: {error}", hint=HINT) from None

    def close(self) -> None:
        """Closes the program's stdin and output, which ends it."""
        self._channel.close()

    @property
    def _where(self) -> str:
        host = self.connection.host
        return f"{host.name} ({host.address})"

    def _send(self, data: bytes) -> None:
        try:
            self._channel.sendall(data)
        except TimeoutError:
            raise self._silent() from None
        except (OSError, EOFError, paramiko.SSHException):
            return  # the other side has closed the channel; `messages` yields its messages from before that

    def _receive(self) -> bool:
        try:
            data = self._channel.recv(1 << 16)
        except TimeoutError:
            raise self._silent() from None
        except (OSError, EOFError, paramiko.SSHException) as error:
            raise ConnectError(f"{self._where}: the connection is lost: {error}", hint=HINT) from error
        first, newline, data_after = data.partition(b"\n")
        self._rest += first
        if len(self._rest) > MAX_LINE_BYTES:
            raise ConnectError(
                f"{self._where}: {self._name} has sent a line of more than {MAX_LINE_BYTES >> 20} MiB", hint=HINT
            )
        if newline:
            *lines, rest = data_after.split(b"\n")
            self._lines += [bytes(self._rest), *lines]
            self._rest = bytearray(rest)
        return bool(data)

    def _silent(self) -> ConnectError:
        return ConnectError(f"{self._where}: no message for {SILENCE_S:g} s", hint=HINT)

    def _raise_ended(self) -> None:
        code = wait_for_exit(self._channel, timeout_s=SILENCE_S)
        said = b""
        while len(said) < MAX_STDERR_BYTES and self._channel.recv_stderr_ready():
            said += self._channel.recv_stderr(1 << 16)
        if code == -1 or not said:
            raise ConnectError(f"{self._where}: the connection is lost, or {self._name} was killed", hint=HINT)
        raise self._failed(said.decode("utf-8", "replace"), exit_code=code)

    def _failed(self, said: str, *, exit_code: int) -> Exception:
        return command_error(self.connection.host, self._name, Output(stdout="", stderr=said, exit_code=exit_code))


def parse_message(line: bytes) -> dict[str, Any] | None:
    """The message in a line of output; None for other lines, which a user's .bashrc may print. Pure."""
    if not line.lstrip().startswith(b"{"):
        return None
    try:
        return decode(line, dict[str, Any])
    except ValueError:
        return None
