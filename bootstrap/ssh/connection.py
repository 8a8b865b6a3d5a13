"""ssh to the nodes, with Fabric. It accepts only pinned host keys, and logs in only with the cluster's key.

It does not use the user's own ssh configuration: no ~/.ssh/config, no agent, no default keys.
"""

import logging
import math
import socket
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import fabric
import paramiko
from msgspec import Struct

from bootstrap.ssh.explain import (
    CONNECT_TIMEOUT_S,
    NO_EXIT_CODE,
    command_error,
    explain,
    explain_console,
    explain_refused_key,
    is_refused_key,
    may_be_booting,
)
from bootstrap.ssh.host import Host, Output
from bootstrap.ssh.keys import (
    REPIN_HINT,
    Console,
    FirstContact,
    HostKeyPins,
    UnverifiedHostKey,
    load_private_key,
    parse_host_key,
)
from foundation.errors import ClusterError, ConnectError
from foundation.remote_command import RemoteCommand

if TYPE_CHECKING:
    from bootstrap.environment.facts import NodeFacts

MAX_OUTPUT_BYTES = 16 << 20
MAX_FILE_BYTES = 16 << 30
FILE_SILENCE_S = 60.0
KEY_TIMEOUT_S = 20.0
KEY_PAUSE_S = 0.5  # sshd may block clients that fail too often (PerSourcePenalties, since OpenSSH 9.8)
END_EVERY_S = 10.0  # how often to check whether an instance that does not answer has ended
BOOTED_S = 300.0  # an instance that has booted, by its console, answers within this time, or never
EXIT_TIMEOUT_S = 20.0  # from the end of a command's output to its exit
DEAD_AFTER_S = 20  # four keepalives without an answer


def wait_for_exit(channel: Any, *, timeout_s: float) -> int:
    """Waits for a command's exit code. Returns NO_EXIT_CODE if a signal ended it, the connection broke or time ran out.

    channel: a paramiko channel, whose own recv_exit_status has no timeout.
    """
    if not channel.status_event.wait(timeout_s):
        return NO_EXIT_CODE
    return int(channel.recv_exit_status())


def drain(channel: Any, *, timeout_s: float | None) -> tuple[str, str]:
    """Reads a command's stdout and stderr, each to its end; timeout_s: how long that may take, in seconds.

    stdout is read first; meanwhile, stderr must fit paramiko's window. Raises TimeoutError with the reason, also for
    too much output.
    """
    deadline = math.inf if timeout_s is None else time.monotonic() + timeout_s
    parts = []
    for receive in (channel.recv, channel.recv_stderr):
        data = bytearray()
        while True:
            left_s = deadline - time.monotonic()
            channel.settimeout(None if left_s == math.inf else max(left_s, 0.01))
            try:
                piece = receive(1 << 16)
            except TimeoutError:
                piece = None
            if piece is None or time.monotonic() > deadline:
                raise TimeoutError(f"it did not end within {timeout_s:.0f} s")
            if not piece:
                break
            data += piece
            if len(data) > MAX_OUTPUT_BYTES:
                raise TimeoutError(f"it printed more than {MAX_OUTPUT_BYTES >> 20} MiB")
        parts.append(data.decode("utf-8", "replace"))
    return parts[0], parts[1]


def _copy(remote: Any, file: IO[bytes]) -> None:
    """Copies a paramiko SFTPFile of the size that the node states. Raises OSError."""
    left = remote.stat().st_size or 0
    if left > MAX_FILE_BYTES:
        raise OSError(f"a file is larger than {MAX_FILE_BYTES >> 30} GiB")
    remote.prefetch(left)
    while left and (data := remote.read(min(left, 1 << 16))):
        file.write(data)
        left -= len(data)
    if left:
        raise OSError(f"a file has {left} bytes less than at the start of the copy")


# paramiko also logs tracebacks of the errors that it raises.
logging.getLogger("paramiko").setLevel(logging.CRITICAL)


class NodeConnection:
    """An open connection to one node. Create it with `connect`.

    facts, answer: what was found out over it in advance (connections.py) and not used yet; None without it.
    """

    def __init__(self, host: Host, connection: fabric.Connection) -> None:
        self.host = host
        self.facts: NodeFacts | None = None
        self.answer: object = None
        self._connection = connection

    def run(
        self,
        command: RemoteCommand,
        *,
        check: bool = True,
        timeout_s: float | None = None,
        what: str | None = None,
        stdin: bytes = b"",
    ) -> Output:
        """Runs a command, without a terminal. stdin: its input, which it must read before it prints much.

        what: a short description that errors show instead of the command, for long scripts.
        timeout_s: how long it may take, in seconds. Raises NodeCommandError if it fails and `check` is set, and
        ConnectError if the connection breaks, or if it takes too long or prints more than MAX_OUTPUT_BYTES.
        """
        with self._explained():
            channel = self.open_channel(command)
            if stdin:
                channel.settimeout(timeout_s)
                channel.sendall(stdin)
            channel.shutdown_write()
            try:
                stdout, stderr = drain(channel, timeout_s=timeout_s)
            except TimeoutError as error:
                channel.close()
                raise ConnectError(
                    f"{self.host.name} ({self.host.address}): {error}: {what or command}", hint="cluster status"
                ) from None
            output = Output(stdout=stdout, stderr=stderr, exit_code=wait_for_exit(channel, timeout_s=EXIT_TIMEOUT_S))
        if output.exit_code == NO_EXIT_CODE:
            self._check_alive()
        if check and output.exit_code != 0:
            raise command_error(self.host, what or str(command), output)
        return output

    def ask(self, command: RemoteCommand, words: Collection[str], *, timeout_s: float, what: str) -> str:
        """Runs a command that says how it ended by a word on its last line, one of `words`, and returns the word.

        A login shell's own configuration may print lines before it, and may end with 0 without running the command.
        Raises NodeCommandError for another last line and for an exit code, and ConnectError as `run` does.
        """
        output = self.run(command, timeout_s=timeout_s, what=what)
        if output.last_line not in words:
            raise command_error(self.host, what, output)
        return output.last_line

    def open_channel(self, command: RemoteCommand) -> paramiko.Channel:
        """Starts a command and returns its channel. Raises ConnectError."""
        with self._explained():
            self._check_alive()
            channel = self._connection.transport.open_session()
            channel.exec_command(command.line())
            return channel

    def _check_alive(self) -> None:
        transport = self._connection.transport
        if transport is None or not transport.is_active():
            raise ConnectError(f"{self.host.name} ({self.host.address}): the connection is lost", hint="cluster status")

    @property
    def host_key(self) -> tuple[str, str]:
        """The host key of the other side, as (type, base64)."""
        key = self._connection.transport.get_remote_server_key()
        return key.get_name(), key.get_base64()

    def get(self, source: str, destination: Path) -> None:
        """Copies one file from the node; `source` is relative to the home folder of the node's user.

        Raises ConnectError, also for a file of more than MAX_FILE_BYTES, or that becomes shorter.
        """
        # Fabric's own get() keeps its session open until the connection is closed, and then cannot close it. paramiko's
        # believes any size, and reads on for as long as the node sends.
        with self._explained():
            self._check_alive()
            with destination.open("wb") as file, closing(self._connection.client.open_sftp()) as session:
                session.get_channel().settimeout(FILE_SILENCE_S)
                try:
                    with session.open(source, "rb") as remote:
                        _copy(remote, file)
                except TimeoutError:  # not one of the connection, for which the firewall may be the reason
                    raise OSError(f"nothing of ~/{source} has arrived for {FILE_SILENCE_S:.0f} s") from None

    def close(self) -> None:
        """Closes the connection."""
        transport = self._connection.transport
        if transport is not None and hasattr(transport.sock, "shutdown"):  # a ProxyCommand is a process, not a socket
            with suppress(OSError):  # it may be broken already
                transport.sock.shutdown(socket.SHUT_RDWR)  # otherwise paramiko's thread notices up to 0.1 s later
        self._connection.close()

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except (OSError, EOFError, paramiko.SSHException) as error:
            reason, _ = explain(self.host, error)
            raise ConnectError(reason, hint="cluster status") from error


def connect(host: Host, *, private_key: Path, contact: FirstContact) -> NodeConnection:
    """Opens a connection to a host whose key is pinned, or whose key `contact` verifies and pins.

    Raises ConnectError with the reason, ClusterError if the private key cannot be used, and the errors of `contact`.
    """
    connection = fabric.Connection(
        host.address,
        user=host.user,
        port=22,
        # An explicit ssh_config, though empty, keeps Fabric from reading the user's.
        config=fabric.Config(lazy=True, ssh_config=paramiko.SSHConfig()),
        connect_timeout=CONNECT_TIMEOUT_S,
        connect_kwargs={
            "look_for_keys": False,
            "allow_agent": False,
            "pkey": load_private_key(private_key),
            **LOGIN_OPTIONS,
        },
    )
    # Fabric 3 always creates its client with AutoAddPolicy, so the policy is replaced before it connects.
    connection.client.set_missing_host_key_policy(contact)
    pinned = contact.pins.find(host.instance_id)
    if pinned is not None:
        key, path = parse_host_key(*pinned), contact.pins.path
        if key is None:
            raise ClusterError(
                f"{path}: the host key of {host.instance_id} ({host.name}) is damaged",
                hint=REPIN_HINT.format(path=path),
            )
        connection.client.get_host_keys().add(host.address, pinned[0], key)
    return open_connection(host, connection, partial(explain, host))


def open_connection(
    host: Host, connection: fabric.Connection, explain_error: Callable[[BaseException], tuple[str, str]]
) -> NodeConnection:
    """Opens a prepared connection. Raises ConnectError with the reason and the next command, as explained."""
    try:
        connection.open()
    except (OSError, EOFError, paramiko.SSHException) as error:
        reason, hint = explain_error(error)
        raise ConnectError(reason, hint=hint) from error
    finally:
        if not connection.is_connected:
            for hop in find_hops(connection):
                hop.client.close()  # Fabric's own close() skips a connection that was not fully opened
    notice_death(connection.transport)
    return NodeConnection(host, connection)


def find_hops(connection: fabric.Connection) -> Iterator[fabric.Connection]:
    """Yields the connection, and then those that lead to it."""
    hop = connection
    while isinstance(hop, fabric.connection.Connection):
        yield hop
        hop = hop.gateway


def notice_death(transport: paramiko.Transport) -> None:
    """Makes a connection break soon after the other side stops answering."""
    transport.set_keepalive(5)
    # Linux only. Without it, a dead host is noticed only after a quarter of an hour.
    if hasattr(socket, "TCP_USER_TIMEOUT") and isinstance(transport.sock, socket.socket):
        transport.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, DEAD_AFTER_S * 1000)


def make_transport(sock: socket.socket, **options: Any) -> paramiko.Transport:
    """A paramiko transport that sends packets at once.

    With Nagle's algorithm (RFC 896), a packet waits for the ACK of the one before it: 40 ms each, several times before
    a command runs. OpenSSH disables it, too.
    """
    if isinstance(sock, socket.socket):  # a ProxyJump has a channel of another connection instead
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return paramiko.Transport(sock, **options)


LOGIN_OPTIONS = {
    "banner_timeout": CONNECT_TIMEOUT_S,
    "auth_timeout": CONNECT_TIMEOUT_S,
    "transport_factory": make_transport,
}
"""Those of paramiko for every connection."""


class InstanceAccess(Struct, frozen=True, kw_only=True):
    """How to reach EC2's instances: with the cluster's key, and with host keys that the console shows."""

    private_key: Path
    pins: HostKeyPins
    console: Console

    def meet(self, host: Host) -> FirstContact:
        """The policy for an instance whose host key may not be pinned yet."""
        return FirstContact(host.instance_id, pins=self.pins, console=self.console)


def wait_for_connection(host: Host, access: InstanceAccess, *, timeout_s: float) -> NodeConnection:
    """Connects, and retries for about timeout_s seconds while the node may still be booting, and has not ended.

    After BOOTED_S, only while its console shows that it still boots. Raises ConnectError, AwsError (no permission to
    read the console), and ClusterError (the private key cannot be used).
    """
    deadline = time.monotonic() + timeout_s
    check_at = time.monotonic() + END_EVERY_S
    booted_at = time.monotonic() + BOOTED_S
    pause_s = 0.1
    contact = access.meet(host)
    refused: ConnectError | None = None
    while True:
        try:
            return connect(host, private_key=access.private_key, contact=contact)
        except ConnectError as error:
            cause = error.__cause__
            if not may_be_booting(cause):
                raise
            if is_refused_key(cause):
                # cloud-init adds the key shortly after sshd starts to answer, or never.
                deadline = min(deadline, time.monotonic() + KEY_TIMEOUT_S)
                pause_s = max(pause_s, KEY_PAUSE_S)
                refused = error
            if time.monotonic() > check_at:
                check_at = time.monotonic() + END_EVERY_S
                if (end := access.console.find_end(host.instance_id)) is not None:
                    raise ConnectError(f"{host.name} ({host.instance_id}) {end}", hint="cluster status") from cause
                if time.monotonic() > booted_at and not _may_still_boot(host, access):
                    deadline = time.monotonic()
            if time.monotonic() > deadline:
                # After a refused key, sshd closes connections because of too many failures: the key is the cause.
                if refused is not None and isinstance(cause, paramiko.SSHException | EOFError):
                    error, cause = refused, refused.__cause__
                raise _give_up(host, error, access) from cause
            delay_s = max(pause_s, contact.pause_s) if isinstance(cause, UnverifiedHostKey) else pause_s
        time.sleep(delay_s)
        pause_s = min(pause_s * 1.5, 2.0)


def _may_still_boot(host: Host, access: InstanceAccess) -> bool:
    try:
        return not explain_console(access.console.find_lines(host.instance_id))[1]
    except ClusterError:  # the error of _give_up names it
        return False


def _give_up(host: Host, error: ConnectError, access: InstanceAccess) -> ConnectError:
    """The error for a node that could not be reached in time, with the known causes."""
    cause = error.__cause__
    message, hint = error.message, error.hint
    refused = is_refused_key(cause)
    if refused:
        message, hint = explain_refused_key(host, key=load_private_key(access.private_key), path=access.private_key)
    try:
        reason, booted = explain_console(access.console.find_lines(host.instance_id))
    except ClusterError as unreadable:  # the node's own error is more important
        return ConnectError(f"{message}\n  its console cannot be read: {unreadable.message}", hint=hint)
    if not booted and not refused and not isinstance(cause, UnverifiedHostKey):
        hint = f"run the command again in a minute; then {hint}"
    return ConnectError(f"{message}\n{reason}", hint=hint)
