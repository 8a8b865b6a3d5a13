"""Requests to S3 over connections that are slow, silent, cut off or more than one: what tests on one machine hide."""

import random
import select
import socket
import ssl
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from hashlib import sha256
from typing import Any

import pytest
import trustme

from s3_server import REGION
from train.s3 import exchange, lanes
from train.s3.access import S3Endpoint
from train.s3.exchange import Exchange, UnsureError, _send, _when_ready
from train.s3.lanes import Lanes, Talk, Task, Wait, finish
from train.s3.url import S3Url

URL = S3Url(bucket="puts", key="x")
YES = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
CLOSING_YES = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
ALL = 10**9
LITTLE = 4096
RESET = struct.pack("ii", 1, 0)  # SO_LINGER: closed at once, and the other side is told


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def tls(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    return context


@pytest.fixture
def endpoint(authority: trustme.CA, monkeypatch: pytest.MonkeyPatch) -> S3Endpoint:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    keys: Any = {"access_key_id": "a", "secret_access_key": "b", "token": None, "expires_at": None}
    return S3Endpoint(url=None, authorities=authority.cert_pem.bytes().decode(), credentials=lambda: keys, session=None)


class Server:
    """Answers every connection in a thread of its own. Where it is has to be told by `url`."""

    def __init__(self, answer: bytes, *, tls: ssl.SSLContext | None = None, pause_s: float = 0) -> None:
        self.bodies: list[tuple[str, str]] = []  # (path, SHA-256)
        self.addresses: list[str] = []  # that were connected to
        self._answer = answer
        self._tls = tls
        self._pause_s = pause_s
        self._listener = socket.socket()
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, LITTLE)
        self._listener.bind(("0.0.0.0", 0))
        self._listener.listen(64)
        self.port = self._listener.getsockname()[1]
        self.url = f"{'https' if tls else 'http'}://127.0.0.1:{self.port}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self.addresses.append(client.getsockname()[0])
            threading.Thread(target=self.serve, args=(client,), daemon=True).start()

    def serve(self, client: socket.socket) -> None:
        try:
            with client if self._tls is None else self._tls.wrap_socket(client, server_side=True) as connection:
                while self._read_request(connection):
                    connection.sendall(self._answer)
        except OSError:
            pass

    def _read_request(self, connection: socket.socket) -> bool:
        time.sleep(self._pause_s)
        data = b""
        while b"\r\n\r\n" not in data:
            if not (piece := connection.recv(65536)):
                return False
            data += piece
        head, _, body = data.partition(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        length = next(int(value) for name, _, value in (line.partition(": ") for line in lines) if "-Length" in name)
        digest = sha256(body)
        left = length - len(body)
        while left:
            piece = connection.recv(65536)
            digest.update(piece)
            left -= len(piece)
        self.bodies.append((first.split(" ")[1], digest.hexdigest()))
        return True


class CuttingServer(Server):
    """Resets a connection in the middle of what comes."""

    def serve(self, client: socket.socket) -> None:
        connection = client if self._tls is None else self._tls.wrap_socket(client, server_side=True)
        connection.recv(20_000)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        connection.close()


@contextmanager
def slow_reader(theirs: socket.socket, tls: ssl.SSLContext | None) -> Iterator[bytearray]:
    """What came, when the block has ended."""
    came = bytearray()

    def read() -> None:
        with theirs if tls is None else tls.wrap_socket(theirs, server_side=True) as connection:
            while piece := connection.recv(100_000):
                came.extend(piece)
                time.sleep(0.0005)

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    yield came
    thread.join(timeout=60)


@pytest.mark.parametrize("head_bytes", [100, 500_000], ids=["head", "large head"])
@pytest.mark.parametrize("over_tls", [False, True], ids=["plain", "tls"])
def test_what_does_not_fit_at_once_arrives_whole(
    authority: trustme.CA, tls: ssl.SSLContext, head_bytes: int, *, over_tls: bool
) -> None:
    head, content = (random.Random(number).randbytes(size) for number, size in enumerate((head_bytes, 5_000_000)))
    ours, theirs = socket.socketpair()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, LITTLE)
    ours.settimeout(0)
    waits: list[Wait] = []

    def send(connection: socket.socket) -> Talk[None]:
        for wait in _send(connection, head, content, is_plain=not over_tls):
            waits.append(wait)
            yield wait

    with slow_reader(theirs, tls if over_tls else None) as came:
        if over_tls:
            context = ssl.create_default_context(cadata=authority.cert_pem.bytes().decode())
            ours = context.wrap_socket(ours, server_hostname="127.0.0.1", do_handshake_on_connect=False)
            assert isinstance(ours, ssl.SSLSocket)
            finish(_when_ready(ours.do_handshake, ours, select.POLLIN))
        with ours:
            finish(send(ours))
    assert len(came) == len(head) + len(content)
    assert came == head + content
    assert len(waits) > 10
    assert {wait.events for wait in waits} == {select.POLLOUT}


@pytest.mark.parametrize("over_tls", [False, True], ids=["plain", "tls"])
def test_many_side_by_side(
    endpoint: S3Endpoint, tls: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch, *, over_tls: bool
) -> None:
    """Bodies that do not fit, to a server that takes its time with each of many connections."""
    monkeypatch.setattr(lanes, "HELD_UP", 2.0)
    contents = {f"/puts/{number}": random.Random(number).randbytes(700_000 + number) for number in range(40)}
    told, partial_sends = [], []
    with closing(Server(YES, tls=tls if over_tls else None, pause_s=0.02)) as server:
        there = Exchange(replace(endpoint, url=server.url), region=REGION)

        def put(path: str, content: bytes) -> Talk[None]:
            talk = there.talk("PUT", replace(URL, key=path.removeprefix("/puts/")), {}, content)
            told.append((yield from noting_partial_sends(talk, partial_sends)))

        tasks = (Task(0, put(path, content)) for path, content in contents.items())
        Lanes(first=16, most=16, bytes_at_once=ALL).run(tasks)
        assert sorted(server.bodies) == sorted(
            (path, sha256(content).hexdigest()) for path, content in contents.items()
        )
        assert 1 < len(server.addresses) <= 16
    assert len(told) == len(contents)
    assert partial_sends


def noting_partial_sends(talk: Talk[Any], noted: list[Wait]) -> Talk[Any]:
    try:
        while True:
            wait = next(talk)
            if wait.events == select.POLLOUT and is_connected(wait.connection):
                noted.append(wait)
            yield wait
    except StopIteration as end:
        return end.value


def is_connected(connection: socket.socket) -> bool:
    try:
        connection.getpeername()
    except OSError:
        return False
    return True


@pytest.mark.parametrize("over_tls", [False, True], ids=["plain", "tls"])
def test_a_silent_server_is_no_yes(endpoint: S3Endpoint, monkeypatch: pytest.MonkeyPatch, *, over_tls: bool) -> None:
    monkeypatch.setattr(exchange, "_TIMEOUT_S", 0.2)
    for content in (b"", bytes(20_000_000)):  # the second one's sender is the one that waits
        with socket.create_server(("127.0.0.1", 0)) as silent:
            url = f"{'https' if over_tls else 'http'}://127.0.0.1:{silent.getsockname()[1]}"
            began = time.monotonic()
            with pytest.raises(UnsureError) as caught:
                Exchange(replace(endpoint, url=url), region=REGION).ask("PUT", URL, {}, content)
            assert isinstance(caught.value.__cause__, TimeoutError)
            assert time.monotonic() - began >= 0.2


@pytest.mark.parametrize("over_tls", [False, True], ids=["plain", "tls"])
def test_a_reset_in_the_middle_is_no_yes(endpoint: S3Endpoint, tls: ssl.SSLContext, *, over_tls: bool) -> None:
    with closing(CuttingServer(YES, tls=tls if over_tls else None)) as server:
        there = Exchange(replace(endpoint, url=server.url), region=REGION)
        for _ in range(2):
            with pytest.raises(UnsureError) as caught:
                there.ask("PUT", URL, {}, bytes(5_000_000))
            assert isinstance(caught.value.__cause__, OSError)
        assert len(server.addresses) == 2


def told_addresses(monkeypatch: pytest.MonkeyPatch, *addresses: tuple[str, int]) -> list[str]:
    """Have look-ups answered so; returns which of them are connected to, in turn."""
    begun: list[str] = []
    reach = Exchange._reach

    def find(_host: str, _port: int, **_: Any) -> list[Any]:
        families = (socket.AF_INET6 if ":" in address else socket.AF_INET for address, _ in addresses)
        kind = (socket.SOCK_STREAM, socket.IPPROTO_TCP, "")
        return [(family, *kind, address) for family, address in zip(families, addresses, strict=True)]

    def note(there: Exchange, address: tuple[Any, ...], host: str) -> Talk[socket.socket]:
        begun.append(address[4][0])
        return reach(there, address, host)

    monkeypatch.setattr(socket, "getaddrinfo", find)
    monkeypatch.setattr(Exchange, "_reach", note)
    return begun


def test_connections_are_spread(endpoint: S3Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(Server(CLOSING_YES)) as server:
        told_addresses(monkeypatch, *((f"127.0.0.{number}", server.port) for number in range(1, 5)))
        there = Exchange(replace(endpoint, url=server.url), region=REGION)
        for _ in range(12):
            there.ask("PUT", URL, {}, b"content")
        assert sorted(server.addresses) == [f"127.0.0.{number}" for number in range(1, 5) for _ in range(3)]
        assert len(set(server.addresses[-4:])) == 4


def test_addresses_that_cannot_be_reached_are_not_begun_with_again(
    endpoint: S3Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange, "_CONNECT_TIMEOUT_S", 0.5)
    with closing(Server(CLOSING_YES)) as server:
        nowhere = [(f"2001:db8::{number}", server.port) for number in range(1, 9)]  # RFC 3849: nobody's
        begun = told_addresses(monkeypatch, *nowhere, ("127.0.0.1", server.port), ("127.0.0.2", server.port))
        there = Exchange(replace(endpoint, url=server.url), region=REGION)
        for _ in range(12):
            there.ask("PUT", URL, {}, b"content")
    assert len([address for address in begun if ":" in address]) == 1
    assert len(server.addresses) == 12
    assert set(server.addresses) == {"127.0.0.1", "127.0.0.2"}


def test_a_silent_address_costs_few_connections(endpoint: S3Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "_CONNECT_TIMEOUT_S", 0.5)
    monkeypatch.setattr(lanes, "HELD_UP", 2.0)
    done = []
    with closing(Server(CLOSING_YES)) as server, silent_port() as port:
        begun = told_addresses(monkeypatch, ("127.0.0.7", port), ("127.0.0.1", server.port))
        there = Exchange(replace(endpoint, url=server.url), region=REGION)

        def put() -> Talk[None]:
            done.append((yield from there.talk("PUT", URL, {}, b"content")))

        Lanes(first=4, most=4, bytes_at_once=ALL).run(Task(0, put()) for _ in range(40))
    assert len(done) == 40
    assert 1 <= begun.count("127.0.0.7") <= 2


@contextmanager
def silent_port() -> Iterator[int]:
    """Of 127.0.0.7, where a connection is neither made nor refused: more of them wait already than may."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.7", 0))
        listener.listen(0)
        waiting = [socket.socket() for _ in range(4)]
        for connection in waiting:
            connection.settimeout(0)
            connection.connect_ex(listener.getsockname())
        try:
            yield listener.getsockname()[1]
        finally:
            for connection in waiting:
                connection.close()
