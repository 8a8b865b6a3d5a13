"""A node for tests of the first contact."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import paramiko
import pytest
from paramiko.common import AUTH_SUCCESSFUL

import bootstrap.ssh.connection
import bootstrap.ssh.keys
from bootstrap.ssh.connection import InstanceAccess, NodeConnection, wait_for_connection
from bootstrap.ssh.host import Host
from bootstrap.ssh.keys import Console, HostKeyPins
from foundation.errors import ConnectError

OTHER = frozenset({"SHA256:" + "x" * 43})
HOST = Host(name="node-1", instance_id="i-1", address="192.0.2.7", private_ip="10.0.0.5", user="ubuntu", is_head=False)


@dataclass
class Node:
    """An ssh server with the key `key`, and its instance's console.

    `shown`: the keys that each look at the console finds; the last entry repeats. `happened`: each look and each
    attempt to authenticate, in order.
    """

    key: paramiko.PKey
    pins: HostKeyPins
    private_key: Path
    shown: list[frozenset[str]] = field(default_factory=list)
    lines: tuple[str, ...] = ()
    happened: list[str] = field(default_factory=list)

    @property
    def own(self) -> frozenset[str]:
        return frozenset({self.key.fingerprint, *OTHER})

    def look(self, instance_id: str) -> frozenset[str]:
        assert instance_id == HOST.instance_id
        self.happened.append("look")
        return self.shown.pop(0) if len(self.shown) > 1 else self.shown[0]

    def access(self, console: Console | None = None) -> InstanceAccess:
        own = Console(find_fingerprints=self.look, find_lines=lambda _: self.lines)
        return InstanceAccess(private_key=self.private_key, pins=self.pins, console=console or own)

    @contextmanager
    def reached(self, *, timeout_s: float = 20, console: Console | None = None) -> Iterator[NodeConnection]:
        connection = wait_for_connection(HOST, self.access(console), timeout_s=timeout_s)
        try:
            yield connection
        finally:
            connection.close()

    def refused(self, *, timeout_s: float = 20) -> ConnectError:
        with pytest.raises(ConnectError) as caught, self.reached(timeout_s=timeout_s):
            pass
        return caught.value


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    private_key = tmp_path / "id"
    paramiko.ECDSAKey.generate().write_private_key_file(str(private_key))
    made = Node(
        key=paramiko.ECDSAKey.generate(), pins=HostKeyPins(tmp_path / "it's" / "known_hosts"), private_key=private_key
    )
    listener = socket.create_server(("127.0.0.1", 0))
    # Only root may listen on port 22, so connections go to another port.
    monkeypatch.setattr(
        paramiko.SSHClient, "_families_and_addresses", lambda *_: [(socket.AF_INET, listener.getsockname())]
    )
    monkeypatch.setattr(bootstrap.ssh.keys, "FIRST_PAUSE_S", 0.02)
    monkeypatch.setattr(bootstrap.ssh.keys, "RECHECK_S", 0.2)
    server = threading.Thread(target=serve, args=(listener, made))
    server.start()
    yield made
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    server.join(timeout=10)


class Account(paramiko.ServerInterface):  # type: ignore[misc]
    """Accepts every user and key, and records each request."""

    def __init__(self, happened: list[str]) -> None:
        self.happened = happened

    def get_allowed_auths(self, _username: str) -> str:
        self.happened.append("auth")
        return "publickey"

    def check_auth_publickey(self, _username: str, _key: paramiko.PKey) -> int:
        self.happened.append("auth")
        return int(AUTH_SUCCESSFUL)


def serve(listener: socket.socket, node: Node) -> None:
    """Accepts connections until the listener is closed."""
    while True:
        try:
            client, _ = listener.accept()
        except OSError:
            return
        transport = paramiko.Transport(client)
        transport.add_server_key(node.key)
        try:
            transport.start_server(event=threading.Event(), server=Account(node.happened))
        except (paramiko.SSHException, EOFError):
            transport.close()
