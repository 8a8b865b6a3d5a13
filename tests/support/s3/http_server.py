"""A small HTTP server in this process, and a proxy that records each request to an S3 server.

It records the signature's key and region, and the size. Requests that its judge refuses do not reach the server.
"""

import dataclasses
import http.client
import json
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import MappingProxyType
from typing import Any
from urllib.parse import SplitResult, urlsplit

import pytest


class QuietServer(ThreadingHTTPServer):
    def process_request(self, request: Any, client_address: Any) -> None:
        """Starts a thread that S3Server.reset does not wait for: an idle client may keep its connection."""
        words = (request, client_address)
        threading.Thread(target=self.process_request_thread, args=words, name="request", daemon=True).start()

    def handle_error(self, *_words: object) -> None:
        """Ignores errors, because clients may disconnect."""


@contextmanager
def serve_http(handler: type[BaseHTTPRequestHandler], *, address: str = "127.0.0.1") -> Iterator[str]:
    """Runs a server with this handler, with a thread for each request, until the block ends; yields its URL."""
    quiet = type(handler.__name__, (handler,), {"log_message": lambda *_: None})
    with QuietServer((address, 0), quiet) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield f"http://{address}:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def serve_metadata(answer: Callable[[str, str, str | None], tuple[int, str]]) -> Iterator[str]:
    """Runs an instance metadata service, as `serve_http` does. answer(method, path, token): a status and a body."""

    class Metadata(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = answer(self.command, self.path, self.headers["X-aws-ec2-metadata-token"])
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body.encode())

        do_PUT = do_GET  # noqa: N815 - http.server's names

    with serve_http(Metadata) as url:
        yield url


Answer = Callable[[BaseHTTPRequestHandler, int], None]
"""Answers a request, which has this number among all."""


@contextmanager
def serve_webhook(
    answer: Answer, path: str, *, address: str = "127.0.0.1"
) -> Iterator[tuple[str, list[tuple[str, Any]]]]:
    """Runs a webhook, as `serve_http` does; yields its URL and a list with (path, body) of each request so far."""
    asked: list[tuple[str, Any]] = []

    class Webhook(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append((self.path, json.loads(self.rfile.read(int(self.headers["Content-Length"])))))
            answer(self, len(asked))

        def do_GET(self) -> None:
            asked.append((self.path, None))
            answer(self, len(asked))

    with serve_http(Webhook, address=address) as url:
        yield url + path, asked


def answer_status(code: int, **headers: str) -> Answer:
    """Answers with a status whose reason repeats the request's path."""

    def answer(request: BaseHTTPRequestHandler, _: int) -> None:
        request.send_response(code, f"for {request.path}")
        for name, value in {"Content-Length": "0", **headers}.items():
            request.send_header(name, value)
        request.end_headers()

    return answer


_CREDENTIAL = re.compile(r"Credential=([^/]+)/\d+/([a-z0-9-]+)/")
_DROPPED = ("connection", "content-length", "date", "server", "transfer-encoding")


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """A request. key_id, region: of its signature; size_bytes: of its body; from_byte: of its range, if any."""

    method: str
    path: str
    query: str
    key_id: str
    region: str
    size_bytes: int
    from_byte: int | None = None
    refused: bool = False

    @property
    def of_range(self) -> bool:
        return self.from_byte is not None


@dataclass(frozen=True, kw_only=True, slots=True)
class Refusal:
    """An answer instead of the server's. Like S3's, it has no body for HEAD."""

    status: int
    code: str
    message: str
    more: str = ""
    of_s3: bool = True
    headers: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def body(self) -> bytes:
        """The answer in S3's format, or in that of AWS's older services."""
        words = f"<Error><Code>{self.code}</Code><Message>{self.message}</Message>{self.more}</Error>"
        return (words if self.of_s3 else f"<ErrorResponse>{words}</ErrorResponse>").encode()


Judge = Callable[[Asked], Refusal | None]
# Returns the body to send instead of the server's; if it is shorter, the connection is cut after it.
Change = Callable[[Asked, bytes], bytes]


@dataclass(frozen=True, kw_only=True, slots=True)
class Proxy:
    """A running proxy. asked: all requests so far, including refused ones."""

    url: str
    asked: list[Asked]

    def refused(self) -> list[Asked]:
        """The refused requests."""
        return [asked for asked in self.asked if asked.refused]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    target: SplitResult
    judge: tuple[Judge, Change, Change]  # in a tuple, because a function in a class would become its method
    asked: list[Asked]
    of_listings: Mapping[str, str]

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"] or 0))
        asked = self._describe(len(body))
        refusal = self.judge[0](asked)
        self.asked.append(dataclasses.replace(asked, refused=refusal is not None))
        if refusal is None:
            self._pass_on(asked, self.judge[2](asked, body))
        else:
            self._answer(refusal.status, {"Content-Type": "application/xml", **refusal.headers}, refusal.body)

    do_HEAD = do_PUT = do_POST = do_DELETE = do_GET  # noqa: N815 - http.server uses these names

    def _describe(self, size_bytes: int) -> Asked:
        url = urlsplit(self.path)
        found = _CREDENTIAL.search(self.headers["Authorization"] or "")
        key_id, region = found.groups() if found else ("", "")
        wanted = re.match(r"bytes=(\d*)-", self.headers["Range"] or "")
        return Asked(method=self.command, path=url.path, query=url.query, key_id=key_id, region=region,
                     size_bytes=size_bytes, from_byte=int(wanted[1] or 0) if wanted else None)  # fmt: skip

    def _pass_on(self, asked: Asked, body: bytes) -> None:
        upstream = http.client.HTTPConnection(str(self.target.hostname), self.target.port)
        upstream.request(self.command, self.path, body=body, headers=dict(self.headers.items()))
        answer = upstream.getresponse()
        content, length = answer.read(), answer.getheader("Content-Length")
        upstream.close()
        headers = {name: value for name, value in answer.getheaders() if name.lower() not in _DROPPED}
        if "list-type=2" in self.path and answer.status == 200:
            headers |= self.of_listings
        self._answer(answer.status, headers, self.judge[1](asked, content), length=length)

    def _answer(self, status: int, headers: Mapping[str, str], body: bytes, *, length: str | None = None) -> None:
        self.send_response(status)
        # Closed, so that no test waits for a client that keeps its connections open.
        for name, value in {**headers, "Content-Length": length or str(len(body)), "Connection": "close"}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def unchanged(_: Asked, body: bytes) -> bytes:
    """A Change that changes nothing."""
    return body


@contextmanager
def judging_proxy(
    target_url: str,
    judge: Judge = lambda _: None,
    change: Change = unchanged,
    change_sent: Change = unchanged,
    *,
    of_listings: Mapping[str, str] | None = None,
) -> Iterator[Proxy]:
    """Runs a proxy to a server until the block ends; AWS_ENDPOINT_URL names the proxy.

    judge, change, change_sent: called by several threads at once; change_sent returns the body that the server gets.
    of_listings: additional headers for answers to ListObjectsV2.
    """
    asked: list[Asked] = []
    known = {
        "target": urlsplit(target_url),
        "judge": (judge, change, change_sent),
        "asked": asked,
        "of_listings": of_listings or {},
    }
    handler = type("Handler", (_Handler,), known)
    with serve_http(handler) as url, pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", url)
        yield Proxy(url=url, asked=asked)


class Faults:
    """How many faults of each kind a proxy still has, and how many it has had."""

    def __init__(self, **left: int) -> None:
        self.left = Counter(left)
        self.done = 0
        self._lock = threading.Lock()

    def take(self, kind: str) -> bool:
        """Whether the next fault of a kind happens now."""
        with self._lock:
            happens = self.left[kind] > 0
            self.left[kind] -= happens
            self.done += happens
            return happens


@contextmanager
def cutting_proxy(target_url: str, faults: Faults, *, after_bytes: int) -> Iterator[str]:
    """The URL of a proxy that closes connections in the middle of longer responses, once for each fault "cut"."""

    def cut(_: Asked, body: bytes) -> bytes:
        return body[:after_bytes] if len(body) > after_bytes and faults.take("cut") else body

    with judging_proxy(target_url, change=cut) as proxy:
        yield proxy.url
