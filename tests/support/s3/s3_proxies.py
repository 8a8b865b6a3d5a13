"""Proxies before a test's S3 that break what goes through them."""

import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import pytest

# Given a chunk and where in its stream it begins, what is passed on; None: the connection is cut.
Change = Callable[[bytes, int], bytes | None]


@dataclass(slots=True)
class Cuts:
    """How many more responses are cut off, and after how many bytes."""

    left: int
    after_bytes: int
    done: int = field(default=0)


@contextmanager
def cutting_proxy(target_url: str, cuts: Cuts) -> Iterator[str]:
    """The URL of a proxy that closes connections in the middle of long responses, `cuts.left` times."""

    def cut(chunk: bytes, begin: int) -> bytes | None:
        if cuts.left and begin + len(chunk) > cuts.after_bytes:
            cuts.left -= 1
            cuts.done += 1
            return None
        return chunk

    with _serve(target_url, sent=_unchanged, received=cut) as url:
        yield url


@dataclass(slots=True)
class Faults:
    """What a proxy still does to connections: so many of each kind.

    busy: the next connections are answered with 503 SlowDown and closed. sent, received: one bit of what the client
    sends or receives is turned, `at_byte` bytes after the beginning of a connection's stream.
    """

    busy: int = 0
    sent: int = 0
    received: int = 0
    at_byte: int = 100_000
    done: int = 0


@contextmanager
def faulty_proxy(target_url: str, faults: Faults) -> Iterator[str]:
    """The URL of a proxy that does these things."""
    lock = threading.Lock()

    def take(kind: str) -> bool:
        with lock:
            left: int = getattr(faults, kind)
            setattr(faults, kind, max(left - 1, 0))
            faults.done += left > 0
            return left > 0

    def turning(kind: str) -> Change:
        def turn(chunk: bytes, begin: int) -> bytes:
            if not (begin <= faults.at_byte < begin + len(chunk) and take(kind)):
                return chunk
            turned = bytearray(chunk)
            turned[faults.at_byte - begin] ^= 0x10
            return bytes(turned)

        return turn

    with _serve(target_url, sent=turning("sent"), received=turning("received"), busy=lambda: take("busy")) as url:
        yield url


@contextmanager
def holding_proxy(target_url: str, first: int) -> Iterator[tuple[str, threading.Event]]:
    """(the URL of a proxy that holds requests for ranges from this byte on, what lets them go when it is set).

    Of an object that is got in ranges, those before it arrive.
    """
    release = threading.Event()

    def hold(chunk: bytes, _begin: int) -> bytes:
        found = re.search(rb"(?i)\r\nrange: *bytes=(\d+)-", chunk)
        if found and int(found[1]) >= first:
            release.wait()
        return chunk

    with _serve(target_url, sent=hold, received=_unchanged) as url:
        try:
            yield url, release
        finally:
            release.set()


@contextmanager
def _serve(
    target_url: str, *, sent: Change, received: Change, busy: Callable[[], bool] = lambda: False
) -> Iterator[str]:
    """The URL of a proxy, also in AWS_ENDPOINT_URL. busy: whether to refuse the connection that has just come."""
    target = urlsplit(target_url)
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return  # the listener was closed: the test is over
            if busy():
                threading.Thread(target=_refuse, args=(client,), daemon=True).start()
                continue
            upstream = socket.create_connection((str(target.hostname), int(target.port or 80)))
            threading.Thread(target=_pump, args=(client, upstream, sent), daemon=True).start()
            threading.Thread(target=_pump, args=(upstream, client, received), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("AWS_ENDPOINT_URL", url)
            yield url
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def _unchanged(chunk: bytes, _begin: int) -> bytes:
    return chunk


def _refuse(client: socket.socket) -> None:
    body = (
        b"<?xml version='1.0'?><Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
    )
    head = b"HTTP/1.1 503 Slow Down\r\nConnection: close\r\nContent-Type: application/xml\r\nContent-Length: %d\r\n\r\n"
    with client:
        try:
            client.recv(65536)
            client.sendall(head % len(body) + body)
            client.shutdown(socket.SHUT_WR)
            while client.recv(65536):
                pass  # the rest of what it sends: closing before would reset the connection, answer and all
        except OSError:
            pass  # it left


def _pump(source: socket.socket, sink: socket.socket, change: Change) -> None:
    begin = 0
    try:
        while chunk := source.recv(65536):
            passed_on = change(chunk, begin)
            if passed_on is None:
                break
            begin += len(chunk)
            sink.sendall(passed_on)
    except OSError:
        pass  # the other side is gone: so is this one
    for end in (source, sink):
        try:
            end.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # it was closed already
