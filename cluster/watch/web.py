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
    "Content-Type": "text/html; charset=utf-8",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


def make_server(render: Callable[[], tuple[str, bool]]) -> tuple[ThreadingHTTPServer, str]:
    """Returns a server on a free port of the loopback address, and the page's URL. Raises OSError.

    render: returns the page, and whether it is final. It is called at most every REFRESH_S; its error is the page.
    """
    path, lock = f"/{secrets.token_urlsafe(24)}/", threading.Lock()
    page, is_final, due_at = "", False, 0.0

    def read() -> tuple[str, bool]:
        nonlocal page, is_final, due_at
        with lock:
            if not is_final and time.monotonic() >= due_at:
                try:
                    page, is_final = render()
                except ClusterError as error:
                    page = f"<!doctype html><meta charset=utf-8><title>cluster</title><pre>{html.escape(str(error))}"
                due_at = time.monotonic() + REFRESH_S
            return page, is_final

    class Handler(BaseHTTPRequestHandler):
        server_version, sys_version = "cluster", ""

        def handle(self) -> None:
            with suppress(ConnectionError):  # the browser has left
                super().handle()

        def do_GET(self) -> None:
            if not secrets.compare_digest(self.path.encode(), path.encode()):
                self.send_error(404)
                return
            text, is_last = read()
            body = text.encode("utf-8", "replace")
            self.send_response(200)
            refresh = {} if is_last else {"Refresh": str(REFRESH_S)}
            for name, value in (HEADERS | refresh | {"Content-Length": str(len(body))}).items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    return server, f"http://127.0.0.1:{server.server_port}{path}"
