"""A local ssh server whose logins fail: it never answers for a key, closes the connection, or refuses the key."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import paramiko
import pytest

Login = Literal["silent", "hangs up", "refuses", "hangs up after two"]
HOST_KEY = paramiko.ECDSAKey.generate()


class _Logins(paramiko.ServerInterface):  # type: ignore[misc] # paramiko has no types
    def __init__(self, login: Login, transport: paramiko.Transport, over: threading.Event) -> None:
        self._login = login
        self._transport = transport
        self._over = over
        self._seen = 0

    def get_allowed_auths(self, username: str) -> str:
        del username
        return "publickey"

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        del username, key
        self._seen += 1
        if self._login == "silent":
            self._over.wait(20)
        elif self._login == "hangs up" or (self._login == "hangs up after two" and self._seen > 2):
            self._transport.sock.shutdown(socket.SHUT_RDWR)
        return int(paramiko.AUTH_FAILED)


@contextmanager
def silent_sshd(login: Login) -> Iterator[int]:
    """Runs the server until the block ends; yields its port on 127.0.0.1."""
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    sock, _ = server.accept()
                except OSError:  # it is closed
                    return
                transport = paramiko.Transport(sock)
                transport.add_server_key(HOST_KEY)
                transport.start_server(event=threading.Event(), server=_Logins(login, transport, over))

        threading.Thread(target=serve, daemon=True).start()
        try:
            yield server.getsockname()[1]
        finally:
            over.set()
            server.shutdown(socket.SHUT_RDWR)


def be_impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shortens the wait for the answer to a login; other timeouts stay the same."""
    monkeypatch.setattr(paramiko.Transport, "auth_timeout", property(lambda _: 0.3, lambda *_: None), raising=False)
