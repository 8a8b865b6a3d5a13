"""Proxies for a test's S3 that damage the traffic."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

import pytest

# Takes a chunk and its position in the stream; returns what to pass on, or None to cut the connection.
Change = Callable[[bytes, int], bytes | None]


@dataclass(slots=True)
class Cuts:
    """How many more responses to cut off, and after how many bytes."""

    left: int
    after_bytes: int
    done: int = 0


@contextmanager
def cutting_proxy(target_url: str, cuts: Cuts) -> Iterator[str]:
    """The URL of a proxy that closes connections in the middle of long responses, `cuts.left` times."""

    def cut(chunk: bytes, begin: int) -> bytes | None:
        if cuts.left and begin + len(chunk) > cuts.after_bytes:
            cuts.left -= 1
            cuts.done += 1
            return None
        return chunk

    with damaging_proxy(target_url, sent=unchanged, received=cut) as url:
        yield url


@contextmanager
def damaging_proxy(
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


def unchanged(chunk: bytes, _begin: int) -> bytes:
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
