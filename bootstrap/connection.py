"""ssh to the nodes, by Fabric: pinned host keys, the cluster's key only, and errors that say what is wrong.

Nothing of the user's own ssh set-up takes part: no ~/.ssh/config, no agent, no default keys.
"""

import errno
import logging
import shlex
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import fabric
import paramiko
from paramiko.client import MissingHostKeyPolicy, SSHClient

from bootstrap.host_keys import HostKeyPins
from provision.errors import ClusterError, ConnectError, NodeCommandError

CONNECT_TIMEOUT_S = 10
FIRST_CONTACT_TIMEOUT_S = 300.0
KEY_TIMEOUT_S = 20.0
DEAD_AFTER_S = 20  # four keepalives without an answer
LAST_LINES = 10
NO_EXIT_CODE = -1  # paramiko's, for a command that a signal ended, and for one whose connection was lost

# paramiko logs whole tracebacks of what is raised as well; the error says it better.
logging.getLogger("paramiko").setLevel(logging.CRITICAL)


@dataclass(frozen=True, kw_only=True, slots=True)
class Host:
    """A node as ssh sees it. `address` is where the user's machine reaches it, `private_ip` where the others do."""

    name: str
    instance_id: str
    address: str
    private_ip: str
    user: str
    is_head: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Output:
    """What a finished command printed."""

    stdout: str
    stderr: str
    exit_code: int


class _PinAtFirstContact(MissingHostKeyPolicy):  # type: ignore[misc] # paramiko has no types
    """Called by paramiko when no key is known for the host: the first contact."""

    def __init__(self, pins: HostKeyPins, instance_id: str) -> None:
        self.pins = pins
        self.instance_id = instance_id

    def missing_host_key(self, client: SSHClient, hostname: str, key: paramiko.PKey) -> None:
        del client, hostname
        self.pins.pin(self.instance_id, key.get_name(), key.get_base64())


class NodeConnection:
    """An open connection to one node. Make it with `connect`."""

    def __init__(self, host: Host, connection: fabric.Connection) -> None:
        self.host = host
        self._connection = connection

    def run(
        self, command: str, *, check: bool = True, timeout_s: float | None = None, what: str | None = None
    ) -> Output:
        """Run a shell command, without a terminal and without input.

        what: a few words that errors show instead of the command, for what is a whole script.
        timeout_s: how long it may say nothing, in seconds. Raises NodeCommandError when it fails and `check` is set,
        ConnectError when the connection breaks or nothing is said for so long.
        """
        with self._explained():
            channel = self.open_channel(command)
            channel.shutdown_write()
            channel.settimeout(timeout_s)
            try:
                stdout, stderr = _drain(channel)
            except TimeoutError:
                raise ConnectError(
                    f"{self.host.name} ({self.host.address}): nothing was heard for {timeout_s:.0f} s "
                    f"from: {what or command}",
                    hint="cluster status",
                ) from None
            output = Output(stdout=stdout, stderr=stderr, exit_code=channel.recv_exit_status())
        if output.exit_code == NO_EXIT_CODE:
            self._check_alive()
        if check and output.exit_code != 0:
            raise command_error(self.host, what or command, output)
        return output

    def open_channel(self, command: str) -> paramiko.Channel:
        """Start a command and return its channel, for those who talk with it."""
        with self._explained():
            self._check_alive()
            channel = self._connection.transport.open_session()
            channel.exec_command(command)
            return channel

    def _check_alive(self) -> None:
        transport = self._connection.transport
        if transport is None or not transport.is_active():
            raise ConnectError(f"{self.host.name} ({self.host.address}): the connection is lost", hint="cluster status")

    def put(self, source: Path | BinaryIO, destination: str) -> None:
        """Copy one file to the node; `destination` is relative to the home of the user there."""
        with self._explained():
            self._connection.put(str(source) if isinstance(source, Path) else source, destination)

    def close(self) -> None:
        """Hang up."""
        self._connection.close()

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except (OSError, EOFError, paramiko.SSHException) as error:
            raise ConnectError(explain(self.host, error), hint="cluster status") from error


def connect(host: Host, *, private_key: Path, pins: HostKeyPins) -> NodeConnection:
    """Open a connection. Raises ConnectError, with the reason in words."""
    connection = fabric.Connection(
        host.address,
        user=host.user,
        port=22,
        # An explicit ssh_config, though empty, keeps Fabric from reading the user's.
        config=fabric.Config(lazy=True, ssh_config=paramiko.SSHConfig()),
        connect_timeout=CONNECT_TIMEOUT_S,
        connect_kwargs={
            "key_filename": str(private_key),
            "look_for_keys": False,
            "allow_agent": False,
            "banner_timeout": CONNECT_TIMEOUT_S,
            "auth_timeout": CONNECT_TIMEOUT_S,
        },
    )
    # Fabric 3 makes its client with AutoAddPolicy, whatever it is told: so replace the policy before it connects.
    connection.client.set_missing_host_key_policy(_PinAtFirstContact(pins, host.instance_id))
    pinned = pins.find(host.instance_id)
    if pinned is not None:
        connection.client.get_host_keys().add(host.address, pinned[0], _parse_pinned(host, pinned, pins.path))
    try:
        connection.open()
    except (OSError, EOFError, paramiko.SSHException) as error:
        connection.close()
        raise ConnectError(explain(host, error), hint=_next_step(error)) from error
    connection.transport.set_keepalive(5)
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux; else a host that is gone is noticed after a quarter of an hour
        connection.transport.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, DEAD_AFTER_S * 1000)
    return NodeConnection(host, connection)


def _parse_pinned(host: Host, pinned: tuple[str, str], path: Path) -> paramiko.PKey:
    try:
        entry = paramiko.hostkeys.HostKeyEntry.from_line(f"{host.address} {pinned[0]} {pinned[1]}")
    except (ValueError, paramiko.SSHException, paramiko.hostkeys.InvalidHostKey):
        entry = None
    if entry is None:
        raise ClusterError(
            f"{path}: the host key of {host.instance_id} ({host.name}) is damaged",
            hint=f"rm '{path}', if you trust the nodes; their keys are then pinned anew",
        )
    return entry.key


def wait_for_connection(
    host: Host, *, private_key: Path, pins: HostKeyPins, timeout_s: float = FIRST_CONTACT_TIMEOUT_S
) -> NodeConnection:
    """Connect, and go on trying while the node may still be booting. Raises ConnectError."""
    deadline = time.monotonic() + timeout_s
    pause_s = 0.1
    while True:
        try:
            return connect(host, private_key=private_key, pins=pins)
        except ConnectError as error:
            if isinstance(error.__cause__, paramiko.AuthenticationException):
                # cloud-init adds the key a little after sshd has begun to answer; later it will not come any more.
                deadline = min(deadline, time.monotonic() + KEY_TIMEOUT_S)
            if time.monotonic() + pause_s > deadline or not may_be_booting(error.__cause__):
                raise
        time.sleep(pause_s)
        pause_s = min(pause_s * 1.5, 2.0)


def may_be_booting(error: BaseException | None) -> bool:
    """Whether a connection failed in a way that a node's boot explains. Pure."""
    if isinstance(error, paramiko.BadHostKeyException):
        return False
    return isinstance(error, OSError | EOFError | paramiko.SSHException)


def explain(host: Host, error: BaseException) -> str:  # noqa: PLR0911 - a sentence for each cause
    """Say in words why a connection failed. Pure."""
    where = f"{host.name} ({host.instance_id}, {host.user}@{host.address})"
    if isinstance(error, paramiko.BadHostKeyException):
        return (
            f"{where}: its host key has changed, so this may not be the machine that was launched.\n"
            f"  pinned:    {error.expected_key.get_name()} {error.expected_key.fingerprint}\n"
            f"  presented: {error.key.get_name()} {error.key.fingerprint}"
        )
    if isinstance(error, paramiko.AuthenticationException):
        return f"{where}: ssh answers, but does not accept the cluster's key for user {host.user}"
    if isinstance(error, paramiko.ssh_exception.NoValidConnectionsError):
        causes = list(error.errors.values())
        return explain(host, causes[0]) if causes else f"{where}: {error}"
    if isinstance(error, TimeoutError | socket.timeout):
        return f"{where}: no answer on port 22 within {CONNECT_TIMEOUT_S} s; does the security group let you in?"
    number = getattr(error, "errno", None)
    if number == errno.ECONNREFUSED:
        return f"{where}: connection refused on port 22: the host is there, but its sshd is not"
    if number in {errno.EHOSTUNREACH, errno.ENETUNREACH}:
        return f"{where}: there is no route to that address"
    return f"{where}: ssh failed: {str(error) or type(error).__name__}"


def _next_step(error: BaseException) -> str:
    if isinstance(error, paramiko.BadHostKeyException):
        return "cluster down, then cluster up, unless you know why the key changed"
    return "cluster status"


def command_error(host: Host, command: str, output: Output) -> NodeCommandError:
    """The error for a failed command: host, command, code and the last lines. Pure."""
    lines = (output.stdout + output.stderr).strip().splitlines()[-LAST_LINES:]
    shown = command if len(command) <= 200 else command[:197] + "..."
    ending = "killed by a signal:" if output.exit_code == NO_EXIT_CODE else f"exit code {output.exit_code} from:"
    said = "".join(f"\n  | {line}" for line in lines) or "\n  | (it printed nothing)"
    return NodeCommandError(f"{host.name}: {ending} {shown}{said}")


def quote_command(words: Sequence[str], env: Mapping[str, str] | None = None) -> str:
    """A command line for a POSIX shell in which every word means itself. Pure."""
    assignments = [f"{key}={shlex.quote(value)}" for key, value in (env or {}).items()]
    return " ".join([*assignments, *(shlex.quote(word) for word in words)])


def _drain(channel: paramiko.Channel) -> tuple[str, str]:
    """Read both streams to their ends; they are small, and stderr fits paramiko's window while stdout is read."""
    stdout = channel.makefile("rb").read()
    stderr = channel.makefile_stderr("rb").read()
    return stdout.decode("utf-8", "replace"), stderr.decode("utf-8", "replace")
