"""Proxies before an S3 server that do to requests and answers what networks and S3 do to them now and then."""

import http.client
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from urllib.parse import urlsplit

from http_server import serve_http

BUSY = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"


@dataclass(slots=True)
class Faults:
    """How many more GETs of objects are refused, cut off or flipped; asked: what was, by method and key."""

    refuse: int = 0
    cut: int = 0
    flip: int = 0
    pause_s: float = 0.0
    asked: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def next(self) -> str | None:
        """The fault of this answer."""
        with self.lock:
            for name in ("refuse", "cut", "flip"):
                left = getattr(self, name)
                if left:
                    setattr(self, name, left - 1)
                    return name
        return None


@contextmanager
def faulty_proxy(target_url: str, faults: Faults) -> Iterator[str]:
    """The URL of a proxy to a server, with faults, which may change meanwhile."""
    target = urlsplit(target_url)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            upstream = http.client.HTTPConnection(str(target.hostname), target.port)
            upstream.request(self.command, self.path, headers=dict(self.headers.items()))
            answer = upstream.getresponse()
            body = answer.read()
            with faults.lock:
                faults.asked.append(f"{self.command} {urlsplit(self.path).path}")
            status, fault = answer.status, faults.next() if "Range" in self.headers else None
            if fault == "refuse":
                status, body = 503, BUSY
            if fault == "flip":
                body = body[:-1] + bytes([body[-1] ^ 1])
            self.send_response(status)
            for name, value in answer.getheaders():
                if name.lower() not in ("connection", "date", "server", "transfer-encoding") and status != 503:
                    self.send_header(name, value)
            if status == 503 or answer.getheader("Content-Length") is None:
                self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.close_connection = True
            threading.Event().wait(faults.pause_s)
            self.wfile.write(body[: len(body) // 2] if fault == "cut" else body)

        do_HEAD = do_GET  # noqa: N815 - http.server calls it so

        def log_message(self, *_: object) -> None:
            pass

    with serve_http(Handler) as url:
        yield url
