"""Proxies for a test's S3 that damage the traffic."""

import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import pytest

# Takes a chunk and its position in the stream; returns what to pass on, or None to cut the connection.
Change = Callable[[bytes, int], bytes | None]


@dataclass(slots=True)
class Cuts:
    """How many more responses to cut off, and after how many bytes."""

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
    """How many faults of each kind a proxy still has.

    busy: answers connections with 503 SlowDown and closes them. sent, received: flips one bit of what the client sends
    or receives, `at_byte` bytes after the beginning of a connection's stream.
    """

    busy: int = 0
    sent: int = 0
    received: int = 0
    at_byte: int = 100_000
    done: int = 0


@contextmanager
def faulty_proxy(target_url: str, faults: Faults) -> Iterator[str]:
    """The URL of a proxy with these faults."""
    lock = threading.Lock()

    def take(kind: str) -> bool:
        with lock:
            left: int = getattr(faults, kind)
            setattr(faults, kind, max(left - 1, 0))
            faults.done += left > 0
            return left > 0

    def flipping(kind: str) -> Change:
        def flip(chunk: bytes, begin: int) -> bytes:
            if not (begin <= faults.at_byte < begin + len(chunk) and take(kind)):
                return chunk
            flipped = bytearray(chunk)
            flipped[faults.at_byte - begin] ^= 0x10
            return bytes(flipped)

        return flip

    with _serve(target_url, sent=flipping("sent"), received=flipping("received"), busy=lambda: take("busy")) as url:
        yield url


@contextmanager
def holding_proxy(target_url: str, first: int) -> Iterator[tuple[str, threading.Event]]:
    """(the URL of a proxy that holds requests for ranges from this byte on, an event that releases them)."""
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
    """The URL of a proxy, also in AWS_ENDPOINT_URL. busy: whether to refuse the connection just accepted."""
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
                pass  # read the rest: closing earlier would reset the connection and lose the answer
        except OSError:
            pass  # the client closed the connection


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
        pass  # the other side is closed: close this one too
    for end in (source, sink):
        try:
            end.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # it was closed already
