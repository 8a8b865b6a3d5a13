"""`cluster watch --web`: a page that is served to this machine alone, to whoever knows the token in its address."""

import html
import secrets
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from foundation.errors import ClusterError

REFRESH_S = 5
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class LivePage:
    """A page that is rendered at most every REFRESH_S. render: returns it, and whether it is final; may raise."""

    def __init__(self, render: Callable[[], tuple[str, bool]]) -> None:
        self._render = render
        self._lock = threading.Lock()
        self._page, self._is_final, self._at = "", False, 0.0

    def read(self) -> tuple[str, bool]:
        """Returns the page, and whether it is final. An error is shown on the page."""
        with self._lock:
            if not self._is_final and time.monotonic() >= self._at:
                try:
                    self._page, self._is_final = self._render()
                except ClusterError as error:
                    self._page = (
                        f"<!doctype html><meta charset=utf-8><title>cluster</title><pre>{html.escape(str(error))}"
                    )
                self._at = time.monotonic() + REFRESH_S
            return self._page, self._is_final


def make_server(page: LivePage) -> tuple[ThreadingHTTPServer, str]:
    """Returns a server on a free port of the loopback address, and the page's URL. Raises OSError."""
    token = secrets.token_urlsafe(24)

    class Handler(BaseHTTPRequestHandler):
        server_version, sys_version = "cluster", ""

        def handle(self) -> None:
            with suppress(ConnectionError):  # the browser has left
                super().handle()

        def do_GET(self) -> None:
            if not secrets.compare_digest(self.path.encode(), f"/{token}/".encode()):
                self.send_error(404)
                return
            text, is_final = page.read()
            body = text.encode("utf-8", "replace")
            self.send_response(200)
            refresh = {} if is_final else {"Refresh": str(REFRESH_S)}
            sizes = {"Content-Type": "text/html; charset=utf-8", "Content-Length": str(len(body))}
            for name, value in (HEADERS | refresh | sizes).items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    return server, f"http://127.0.0.1:{server.server_port}/{token}/"
