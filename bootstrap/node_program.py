"""A program of node/ as this machine talks with it: sent over the stdin of one ssh command, then lines of JSON."""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

import paramiko

from bootstrap.connection import NodeConnection, Output, command_error, quote_command
from provision.errors import ConnectError

SILENCE_S = 20.0
"""These programs speak every second or two. What is silent for so long is dead, or its host is."""
HINT = "cluster status; when the node runs, the same command again"
# Runs the modules that come on its stdin, the last one as the program; they share that stdin, buffer and all.
LOADER = """
import json, sys, types
for name, source in json.loads(sys.stdin.buffer.readline().decode("utf-8")):
    module = sys.modules[name] = types.ModuleType(name)
    exec(compile(source, name + ".py", "exec"), module.__dict__)
module.main()
"""


@cache
def read_modules(names: tuple[str, ...]) -> bytes:
    """Modules of node/ as LOADER takes them."""
    folder = files("bootstrap").joinpath("node")
    sources = [(name, folder.joinpath(f"{name}.py").read_text(encoding="utf-8")) for name in names]
    return json.dumps(sources).encode() + b"\n"


class NodeProgram:
    """The last of `modules`, run with those before it, from its start to its end. Not for several threads."""

    def __init__(self, connection: NodeConnection, *, python: str, modules: Sequence[str]) -> None:
        self.connection = connection
        self._name = f"{modules[-1]}.py"
        self._channel = connection.open_channel(quote_command([python, "-c", LOADER]))
        self._channel.settimeout(SILENCE_S)
        self._rest = b""
        self._send(read_modules(tuple(modules)))

    def tell(self, message: Mapping[str, Any]) -> None:
        """Send a message. Raises ConnectError."""
        self._send(json.dumps(message).encode() + b"\n")

    def messages(self, deadline: float = float("inf")) -> Iterator[dict[str, Any]]:
        """What the program says, without its signs of life, for as long as it runs.

        deadline: of the monotonic clock. Raises ConnectError when it is lost or the deadline over, NodeCommandError
        when it fails.
        """
        while time.monotonic() < deadline:
            # Whoever sends may receive as well, between two messages.
            while b"\n" in self._rest:
                line, _, self._rest = self._rest.partition(b"\n")
                message = parse_message(line)
                if message and "alive" not in message:
                    yield message
            if not self._receive():
                self._raise_ended()
        raise ConnectError(f"{self._where}: {self._name} did not come to an end", hint=HINT)

    def close(self) -> None:
        """Let it end."""
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
            return  # it has hung up: `messages` has what it said before

    def _receive(self) -> bool:
        try:
            data = self._channel.recv(1 << 16)
        except TimeoutError:
            raise self._silent() from None
        except (OSError, EOFError, paramiko.SSHException) as error:
            raise ConnectError(f"{self._where}: the connection is lost: {error}", hint=HINT) from error
        self._rest += data
        return bool(data)

    def _silent(self) -> ConnectError:
        return ConnectError(f"{self._where}: nothing was heard for {SILENCE_S:g} s", hint=HINT)

    def _raise_ended(self) -> None:
        code = self._channel.recv_exit_status()
        said = b""
        while self._channel.recv_stderr_ready():
            said += self._channel.recv_stderr(1 << 16)
        if code == -1 or not said:
            raise ConnectError(f"{self._where}: the connection is lost, or {self._name} was killed", hint=HINT)
        raise self._failed(said.decode("utf-8", "replace"), exit_code=code)

    def _failed(self, said: str, *, exit_code: int) -> Exception:
        return command_error(self.connection.host, self._name, Output(stdout="", stderr=said, exit_code=exit_code))


def parse_message(line: bytes) -> dict[str, Any] | None:
    """A message in a line of output, or None: a user's .bashrc may print something of its own. Pure."""
    try:
        message = json.loads(line)
    except ValueError:
        return None
    return message if isinstance(message, dict) else None
