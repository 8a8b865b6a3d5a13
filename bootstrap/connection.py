"""ssh to the nodes, by Fabric: pinned host keys, the cluster's key only, and errors that say what is wrong.

Nothing of the user's own ssh set-up takes part: no ~/.ssh/config, no agent, no default keys.
"""

import logging
import shlex
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import fabric
import paramiko

from bootstrap.channel import drain, wait_for_exit
from bootstrap.explain import (
    CONNECT_TIMEOUT_S,
    NO_ANSWER,
    NO_EXIT_CODE,
    command_error,
    explain,
    explain_console,
    explain_refused_key,
    is_unanswered,
    may_be_booting,
    next_step,
)
from bootstrap.first_contact import Console, FirstContact, UnverifiedHostKey
from bootstrap.host import Host, Output
from bootstrap.host_keys import HostKeyPins
from bootstrap.image_users import find_accepted_user
from bootstrap.private_key import load_private_key
from provision.errors import ClusterError, ConnectError

__all__ = [
    "Host",
    "NodeConnection",
    "Output",
    "command_error",
    "connect",
    "explain",
    "may_be_booting",
    "quote_command",
    "wait_for_connection",
]

FIRST_CONTACT_TIMEOUT_S = 300.0
KEY_TIMEOUT_S = 20.0
KEY_PAUSE_S = 0.5  # sshd may shut out those who fail too often (PerSourcePenalties, from OpenSSH 9.8 on)
EXIT_TIMEOUT_S = 20.0  # from the end of a command's output to its own
DEAD_AFTER_S = 20  # four keepalives without an answer
# Through a channel's stdin these took 309 MB/s, and paramiko's own first choice (aes128-ctr, hmac-sha2-256) 219; in
# calls of 32 to 256 KiB, for `sendall` copies what is left of its argument at every packet.
FASTEST_CIPHERS = ("aes128-gcm@openssh.com", "aes256-gcm@openssh.com")

# paramiko logs whole tracebacks of what is raised as well; the error says it better.
logging.getLogger("paramiko").setLevel(logging.CRITICAL)


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
        timeout_s: how long it may take, in seconds. Raises NodeCommandError when it fails and `check` is set,
        ConnectError when the connection breaks, it takes too long or it prints more than channel.MAX_OUTPUT_BYTES.
        """
        with self._explained():
            channel = self.open_channel(command)
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

    @property
    def host_key(self) -> tuple[str, str]:
        """The host key that the other side has shown, as (type, base64)."""
        key = self._connection.transport.get_remote_server_key()
        return key.get_name(), key.get_base64()

    def get(self, source: str, destination: Path) -> None:
        """Copy one file from the node; `source` is relative to the home of the user there."""
        # Fabric's own keeps its session until the end, when there is no connection any more to end it by.
        with self._explained():
            self._check_alive()
            with destination.open("wb") as file, closing(self._connection.client.open_sftp()) as session:
                session.getfo(source, file)

    def close(self) -> None:
        """Hang up."""
        transport = self._connection.transport
        if transport is not None and hasattr(transport.sock, "shutdown"):  # a ProxyCommand is a process
            with suppress(OSError):  # it is broken already
                transport.sock.shutdown(socket.SHUT_RDWR)  # paramiko's thread looks up only every 0.1 s otherwise
        self._connection.close()

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except (OSError, EOFError, paramiko.SSHException) as error:
            raise ConnectError(explain(self.host, error), hint="cluster status") from error


def connect(host: Host, *, private_key: Path, contact: FirstContact) -> NodeConnection:
    """Open a connection to a host whose key is pinned, or which `contact` verifies and pins.

    Raises ConnectError, with the reason in words, ClusterError when the private key cannot be used, and what `contact`
    raises.
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
            "banner_timeout": CONNECT_TIMEOUT_S,
            "auth_timeout": CONNECT_TIMEOUT_S,
            "transport_factory": make_transport,
        },
    )
    # Fabric 3 makes its client with AutoAddPolicy, whatever it is told: so replace the policy before it connects.
    connection.client.set_missing_host_key_policy(contact)
    pinned = contact.pins.find(host.instance_id)
    if pinned is not None:
        connection.client.get_host_keys().add(host.address, pinned[0], _parse_pinned(host, pinned, contact.pins.path))
    connection.connect_kwargs["pkey"] = load_private_key(private_key)
    try:
        connection.open()
    except (OSError, EOFError, paramiko.SSHException) as error:
        raise ConnectError(explain(host, error), hint=next_step(host, error)) from error
    finally:
        if not connection.is_connected:
            connection.client.close()  # Fabric's own close() leaves one alone that was not opened to the end
    notice_death(connection.transport)
    return NodeConnection(host, connection)


def notice_death(transport: paramiko.Transport) -> None:
    """Have a connection break soon after its other side has gone without a word."""
    transport.set_keepalive(5)
    # Linux; else a host that is gone is noticed after a quarter of an hour.
    if hasattr(socket, "TCP_USER_TIMEOUT") and isinstance(transport.sock, socket.socket):
        transport.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, DEAD_AFTER_S * 1000)


class _Transport(paramiko.Transport):  # type: ignore[misc] # paramiko has no types
    """One whose AuthenticationException means that a key was refused; paramiko's own may mean no answer at all."""

    _told: paramiko.SSHException | None = None

    def auth_publickey(self, *args: Any, **options: Any) -> list[str]:
        """As paramiko's. Raises SSHException where the other side says nothing in time, or hangs up."""
        try:
            return list(super().auth_publickey(*args, **options))
        except paramiko.SSHException as error:
            # A connection that has ended says nothing of the keys after that: sshd hangs up after too many of them.
            if self._told is None or self.is_active():
                self._told = paramiko.SSHException(NO_ANSWER) if is_unanswered(error) else error
            if self._told is error:
                raise
            raise self._told from error


def make_transport(sock: socket.socket, **options: Any) -> paramiko.Transport:
    """A transport of paramiko's, with the ciphers that it is fastest with, and packets that leave at once.

    Otherwise what follows upon another packet waits for the other side's ACK, which may take its time (Nagle's
    algorithm, RFC 896): 40 ms, several times until a command runs. OpenSSH sends at once, too.
    """
    if isinstance(sock, socket.socket):  # and no channel of another connection, through which it may lead
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    transport = _Transport(sock, **options)
    security = transport.get_security_options()
    security.ciphers = [*FASTEST_CIPHERS, *(cipher for cipher in security.ciphers if cipher not in FASTEST_CIPHERS)]
    return transport


def _parse_pinned(host: Host, pinned: tuple[str, str], path: Path) -> paramiko.PKey:
    try:
        entry = paramiko.hostkeys.HostKeyEntry.from_line(f"{host.address} {pinned[0]} {pinned[1]}")
    except (ValueError, paramiko.SSHException, paramiko.hostkeys.InvalidHostKey):
        entry = None
    if entry is None:
        raise ClusterError(
            f"{path}: the host key of {host.instance_id} ({host.name}) is damaged",
            hint=f"rm '{path}'; the nodes' keys are then verified by their consoles, and pinned anew",
        )
    return entry.key


def wait_for_connection(
    host: Host, *, private_key: Path, pins: HostKeyPins, console: Console, timeout_s: float = FIRST_CONTACT_TIMEOUT_S
) -> NodeConnection:
    """Connect, and go on trying while the node may still be booting, for about timeout_s seconds.

    Raises ConnectError, AwsError (the console may not be read), ClusterError (the private key cannot be used).
    """
    deadline = time.monotonic() + timeout_s
    pause_s = 0.1
    contact = FirstContact(host.instance_id, pins=pins, console=console)
    refused: ConnectError | None = None
    while True:
        try:
            return connect(host, private_key=private_key, contact=contact)
        except ConnectError as error:
            cause = error.__cause__
            if not may_be_booting(cause):
                raise
            if isinstance(cause, paramiko.AuthenticationException):
                # cloud-init adds the key a little after sshd has begun to answer; later it will not come any more.
                deadline = min(deadline, time.monotonic() + KEY_TIMEOUT_S)
                pause_s = max(pause_s, KEY_PAUSE_S)
                refused = error
            if time.monotonic() > deadline:
                # One that is hung up on after its key was refused has failed too often: the key is the cause.
                told = refused if refused is not None and isinstance(cause, paramiko.SSHException | EOFError) else error
                given_up = _give_up(host, told, private_key=private_key, contact=contact, console=console)
                raise given_up from told.__cause__
            rest_s = max(pause_s, contact.pause_s) if isinstance(cause, UnverifiedHostKey) else pause_s
        time.sleep(rest_s)
        pause_s = min(pause_s * 1.5, 2.0)


def _give_up(
    host: Host, error: ConnectError, *, private_key: Path, contact: FirstContact, console: Console
) -> ConnectError:
    """The error for a node that was waited for in vain: what is known by now of why."""
    cause = error.__cause__
    told, hint = error.message, error.hint
    refused = isinstance(cause, paramiko.AuthenticationException)
    if refused and not isinstance(cause, paramiko.BadAuthenticationType):
        probe = find_accepted_user(host.user, lambda user: _try_user(host, user, private_key, contact))
        told, hint = explain_refused_key(host, probe, key=load_private_key(private_key), path=private_key)
        if probe.accepted is not None:
            return ConnectError(told, hint=hint)
    try:
        said, booted = explain_console(console.find_last_lines(host.instance_id))
    except ClusterError as unreadable:  # the node that does not answer is what matters
        return ConnectError(f"{told}\n  its console cannot be read: {unreadable.message}", hint=hint)
    if not booted and not refused and not isinstance(cause, UnverifiedHostKey):
        hint = f"the same command in a minute; then {hint}"
    return ConnectError(f"{told}\n{said}", hint=hint)


def _try_user(host: Host, user: str, private_key: Path, contact: FirstContact) -> Output:
    with closing(connect(replace(host, user=user), private_key=private_key, contact=contact)) as connection:
        return connection.run("true", check=False, timeout_s=CONNECT_TIMEOUT_S)


def quote_command(words: Sequence[str], env: Mapping[str, str] | None = None) -> str:
    """A command line for a POSIX shell in which every word means itself. Pure."""
    assignments = [f"{key}={shlex.quote(value)}" for key, value in (env or {}).items()]
    return " ".join([*assignments, *(shlex.quote(word) for word in words)])
