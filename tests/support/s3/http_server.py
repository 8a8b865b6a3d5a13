"""A small HTTP server in this process, and a proxy that looks at each request to an S3 server.

The proxy sees who has signed it, for where, how much it carries. What its judge refuses does not get to the server.
"""

import http.client
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import MappingProxyType
from urllib.parse import SplitResult, urlsplit

import pytest


@contextmanager
def serve_http(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """The URL of a server whose requests this handles, each in a thread, until the block ends."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


_CREDENTIAL = re.compile(r"Credential=([^/]+)/\d+/([a-z0-9-]+)/")
_DROPPED = ("connection", "content-length", "date", "server", "transfer-encoding")


@dataclass(frozen=True, kw_only=True, slots=True)
class Asked:
    """A request. key_id, region: of its signature; size_bytes: of its body."""

    method: str
    path: str
    query: str
    key_id: str
    region: str
    size_bytes: int
    refused: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Refusal:
    """An answer in the server's place. To HEAD it has no body, as S3's have none."""

    status: int
    code: str
    message: str
    more: str = ""
    of_s3: bool = True
    headers: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def body(self) -> bytes:
        """As S3 words it, or as AWS's older services do."""
        words = f"<Error><Code>{self.code}</Code><Message>{self.message}</Message>{self.more}</Error>"
        return (words if self.of_s3 else f"<ErrorResponse>{words}</ErrorResponse>").encode()


Judge = Callable[[Asked], Refusal | None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Proxy:
    """asked: what was asked so far, refused or not."""

    url: str
    asked: list[Asked]

    def refused(self) -> list[Asked]:
        """What was not let through."""
        return [asked for asked in self.asked if asked.refused]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    target: SplitResult
    judge: tuple[Judge]  # in a tuple: a function in a class would be its method
    asked: list[Asked]
    of_listings: Mapping[str, str]

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"] or 0))
        refusal = self._judge(len(body))
        if refusal is None:
            self._pass_on(body)
        else:
            self._answer(refusal.status, {"Content-Type": "application/xml", **refusal.headers}, refusal.body)

    do_HEAD = do_PUT = do_POST = do_DELETE = do_GET  # noqa: N815 - http.server calls them so

    def _judge(self, size_bytes: int) -> Refusal | None:
        url = urlsplit(self.path)
        found = _CREDENTIAL.search(self.headers["Authorization"] or "")
        key_id, region = found.groups() if found else ("", "")

        def render(*, refused: bool) -> Asked:
            return Asked(method=self.command, path=url.path, query=url.query, key_id=key_id, region=region,
                         size_bytes=size_bytes, refused=refused)  # fmt: skip

        refusal = self.judge[0](render(refused=False))
        self.asked.append(render(refused=refusal is not None))
        return refusal

    def _pass_on(self, body: bytes) -> None:
        upstream = http.client.HTTPConnection(str(self.target.hostname), self.target.port)
        upstream.request(self.command, self.path, body=body, headers=dict(self.headers.items()))
        answer = upstream.getresponse()
        content, length = answer.read(), answer.getheader("Content-Length")
        upstream.close()
        told = {name: value for name, value in answer.getheaders() if name.lower() not in _DROPPED}
        if "list-type=2" in self.path and answer.status == 200:
            told |= self.of_listings
        self._answer(answer.status, told, content, length=length)

    def _answer(self, status: int, headers: Mapping[str, str], body: bytes, *, length: str | None = None) -> None:
        self.send_response(status)
        # Closed: nobody has to wait for a client that keeps its connections.
        for name, value in {**headers, "Content-Length": length or str(len(body)), "Connection": "close"}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def let_through(_: Asked) -> None:
    """A Judge who refuses nothing."""


@contextmanager
def judging_proxy(
    target_url: str, judge: Judge = let_through, *, of_listings: Mapping[str, str] | None = None
) -> Iterator[Proxy]:
    """A proxy to a server, which AWS_ENDPOINT_URL names until the block ends.

    judge: called by several threads at once. of_listings: additional headers for answers to ListObjectsV2.
    """
    asked: list[Asked] = []
    known = {"target": urlsplit(target_url), "judge": (judge,), "asked": asked, "of_listings": of_listings or {}}
    handler = type("Handler", (_Handler,), known)
    with serve_http(handler) as url, pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", url)
        yield Proxy(url=url, asked=asked)
