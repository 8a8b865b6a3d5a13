"""The sandbox's HTTPS server: moto's application behind TLS, with connections that stay open.

Moto's own server (Werkzeug's) closes every connection after one request and does each TLS handshake in the thread that
accepts, where one silent client holds up everybody.
"""

import io
import json
import logging
import ssl
import sys
import traceback
from collections.abc import Callable, Iterable
from socketserver import ThreadingMixIn
from typing import Any
from urllib.parse import parse_qs
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from moto.moto_server.werkzeug_app import MotoRequestHandler
from werkzeug.serving import BaseWSGIServer

from sandbox.settings import CHECKIP_PATH

IDLE_TIMEOUT_S = 120.0
# What a client may still be sending when the answer is out, before its connection is closed instead of drained.
DRAIN_BYTES = 64 << 20

log = logging.getLogger("sandbox.server")


class _CountedInput(io.RawIOBase):
    """A request's body of known length: ends where the body ends, so that the next request stays unread."""

    def __init__(self, stream: Any, length: int) -> None:
        super().__init__()
        self._stream = stream
        self.left = length

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        wanted = min(len(buffer), self.left)
        if wanted == 0:
            return 0
        data: bytes = self._stream.read1(wanted)
        if not data:
            raise ConnectionResetError("the client closed the connection within a request")
        buffer[: len(data)] = data
        self.left -= len(data)
        return len(data)


class KeepAliveHandler(MotoRequestHandler):
    """Moto's request handler with HTTP/1.1's persistent connections."""

    protocol_version = "HTTP/1.1"
    timeout = IDLE_TIMEOUT_S
    disable_nagle_algorithm = True
    wbufsize = -1

    def run_wsgi(self) -> None:
        """One request: gives it to the application, sends its answer, leaves the connection at the next request."""
        self.environ = environ = self.make_environ()
        chunked = "wsgi.input_terminated" in environ
        counted = _CountedInput(self.rfile, int(environ.get("CONTENT_LENGTH") or 0))
        if not chunked:
            environ["wsgi.input"] = io.BufferedReader(counted)
        answer = _Answer(self)
        try:
            body = self.server.app(environ, answer.start)
            try:
                for data in body:
                    answer.send(data)
            finally:
                if hasattr(body, "close"):
                    body.close()
            answer.finish()
        except OSError:  # the client is gone, or took longer than the timeout: nobody is left to answer to
            self.close_connection = True
            return
        self._drain(environ, counted, chunked=chunked)

    def handle_expect_100(self) -> bool:
        """Sends `100 Continue` at once: the client waits for it."""
        super().handle_expect_100()
        self.wfile.flush()
        return True

    def _drain(self, environ: WSGIEnvironment, counted: _CountedInput, *, chunked: bool) -> None:
        """Reads what the application left of the request, or gives the connection up."""
        if chunked or counted.left > DRAIN_BYTES:
            # Where a chunked body ends is known to its reader alone.
            self.close_connection = not (chunked and _read_to_end(environ["wsgi.input"])) or self.close_connection
            return
        try:
            while counted.read(1 << 16):
                pass
        except OSError:
            self.close_connection = True

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Nothing: the API log has it."""

    def log(self, type: str, message: str, *args: Any) -> None:  # noqa: A002 -- the base class names it so
        """To the daemon's log."""
        log.log(logging.ERROR if type == "error" else logging.INFO, message.rstrip(), *args)


def _read_to_end(stream: Any) -> bool:
    """Reads the rest of a body, so that its client gets to read the answer; False when it is too long or cut off."""
    try:
        return any(not stream.read(1 << 16) for _ in range(DRAIN_BYTES >> 16))
    except OSError:
        return False


class _Answer:
    """The application's answer on its way to the client."""

    def __init__(self, handler: KeepAliveHandler) -> None:
        self._handler = handler
        self._status = ""
        self._headers: list[tuple[str, str]] = []
        self._begun = False
        self._chunked = False

    def start(self, status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Callable[[bytes], object]:
        """WSGI's start_response."""
        if exc_info is not None and self._begun:
            raise exc_info[1].with_traceback(exc_info[2])
        self._status, self._headers = status, headers
        return self.send

    def _begin(self) -> None:
        self._begun = True
        handler = self._handler
        code, _, reason = self._status.partition(" ")
        handler.send_response(int(code), reason)
        names = {name.lower() for name, _ in self._headers}
        for name, value in self._headers:
            handler.send_header(name, value)
        bodyless = handler.command == "HEAD" or code in ("204", "304") or code.startswith("1")
        if "content-length" not in names and not bodyless:
            self._chunked = handler.request_version == "HTTP/1.1"
            if self._chunked:
                handler.send_header("Transfer-Encoding", "chunked")
            else:
                handler.close_connection = True
        if handler.close_connection:
            handler.send_header("Connection", "close")
        handler.end_headers()

    def send(self, data: bytes) -> None:
        """A piece of the body."""
        if not self._begun:
            self._begin()
        if not data or self._handler.command == "HEAD":
            return
        if self._chunked:
            self._handler.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))
        else:
            self._handler.wfile.write(data)

    def finish(self) -> None:
        """The end of the body."""
        if not self._begun:
            self._begin()
        if self._chunked:
            self._handler.wfile.write(b"0\r\n\r\n")
        self._handler.wfile.flush()


class TlsServer(ThreadingMixIn, BaseWSGIServer):
    """A thread for each connection; the TLS handshake is made there."""

    multithread = True
    daemon_threads = True
    block_on_close = False
    request_queue_size = 512

    def __init__(self, address: str, app: WSGIApplication, tls: ssl.SSLContext) -> None:
        super().__init__(address, 0, app, KeepAliveHandler)
        self.ssl_context = tls

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Wraps the connection in TLS and serves its requests."""
        assert self.ssl_context is not None  # noqa: S101 -- set in __init__
        request.settimeout(IDLE_TIMEOUT_S)
        try:
            connection = self.ssl_context.wrap_socket(request, server_side=True)
        except OSError as error:  # ssl.SSLError is one
            log.info("no TLS connection with %s: %s", client_address[0], error)
            return
        with connection:
            super().finish_request(connection, client_address)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """An error in a connection's thread: to the log, and the other connections go on."""
        del request
        log.error("connection of %s: %s", client_address, traceback.format_exc())


BROKEN = "The sandbox broke here; see its daemon.log"


def catch_errors(app: WSGIApplication) -> WSGIApplication:
    """Answers 500 in AWS's words when the application breaks, with the traceback in the daemon's log."""

    def guarded(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        try:
            return list(app(environ, start_response))
        except Exception:  # the boundary of a server's thread: whatever broke, the client gets an answer
            log.exception("%s %s", environ["REQUEST_METHOD"], environ["PATH_INFO"])
            content_type, body = _render_broken(environ)
            headers = [("Content-Type", content_type), ("Content-Length", str(len(body)))]
            start_response("500 Internal Server Error", headers, sys.exc_info())
            return [body]

    return guarded


def _render_broken(environ: WSGIEnvironment) -> tuple[str, bytes]:
    if "HTTP_X_AMZ_TARGET" in environ:
        return "application/x-amz-json-1.1", json.dumps({"__type": "InternalFailure", "message": BROKEN}).encode()
    error = f"<Error><Code>InternalError</Code><Message>{BROKEN}</Message></Error>"
    is_s3 = "/s3/aws4_request" in environ.get("HTTP_AUTHORIZATION", "")
    return "text/xml", (error if is_s3 else f"<Response><Errors>{error}</Errors></Response>").encode()


def take_bodies_as_they_are(app: WSGIApplication) -> WSGIApplication:
    """Hides the Content-Type of an S3 upload's POST, as S3 does not care for it.

    MXNet's writer (libcurl) completes its multipart uploads with `application/x-www-form-urlencoded`; moto would take
    the list of parts for a form, and be left without it.
    """

    def hidden(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        asked = parse_qs(environ.get("QUERY_STRING", ""), keep_blank_values=True)
        if environ["REQUEST_METHOD"] == "POST" and asked.keys() & {"uploadId", "uploads"}:
            environ["CONTENT_TYPE"] = "application/octet-stream"
        return app(environ, start_response)

    return hidden


def answer_checkip(app: WSGIApplication) -> WSGIApplication:
    """Adds the page that tells callers their address, as https://checkip.amazonaws.com does."""

    def checked(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        if environ["PATH_INFO"] != CHECKIP_PATH:
            return app(environ, start_response)
        body = f"{environ['REMOTE_ADDR']}\n".encode()
        start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", str(len(body)))])
        return [body]

    return checked
