"""The sandbox's HTTPS server: moto's application behind TLS, with connections that stay open.

moto's own server, from Werkzeug, closes every connection after one request. It also does TLS handshakes in the thread
that accepts connections, so one silent client blocks all others.
"""

import importlib
import io
import json
import logging
import ssl
import threading
from collections.abc import Callable, Iterable
from dataclasses import replace
from socketserver import TCPServer, ThreadingMixIn
from typing import Any
from urllib.parse import parse_qs
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

import trustme
from moto.backend_index import backend_url_patterns
from moto.backends import get_backend
from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.core.request import (
    PRESERVED_HEADER_NAMES_ENVIRON_KEY,
    Request,
    environ_key_for_header,
    should_preserve_original_header_name,
)
from werkzeug.exceptions import ClientDisconnected, HTTPException
from werkzeug.routing import BaseConverter, Map, Rule
from werkzeug.serving import BaseWSGIServer, WSGIRequestHandler
from werkzeug.wrappers import Response
from werkzeug.wsgi import LimitedStream

from ec2_sandbox.api.log import CALL_KEY
from ec2_sandbox.api.prices import get_products
from ec2_sandbox.api.refusals import SANDBOX_BROKEN, UNSUPPORTED, RefusedError, refuse
from ec2_sandbox.iam.signatures import read_body
from ec2_sandbox.paths import CHECKIP_PATH, SandboxPaths

IDLE_TIMEOUT_S = 120.0
# The modules that change a service of moto's. They are imported with it, at its first call.
ADDITIONS = {"s3": "ec2_sandbox.api.objects", "ssm": "ec2_sandbox.api.on_hosts.ssm"}

log = logging.getLogger("ec2_sandbox.server")


def make_tls_context(paths: SandboxPaths, gateway: str) -> ssl.SSLContext:
    """Creates a new certificate authority, and returns a server's TLS context for `gateway`.

    Writes the authority's certificate into the sandbox's folder.
    """
    authority = trustme.CA(organization_name="ec2-sandbox", organization_unit_name=paths.id)
    authority.cert_pem.write_to_path(str(paths.ca_file))
    paths.ca_file.chmod(0o644)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(gateway, "localhost", "127.0.0.1").configure_cert(context)
    return context


class KeepAliveHandler(WSGIRequestHandler):
    """A request handler with HTTP/1.1's persistent connections."""

    protocol_version = "HTTP/1.1"
    sys_version = ""
    timeout = IDLE_TIMEOUT_S
    disable_nagle_algorithm = True
    wbufsize = -1

    def make_environ(self) -> WSGIEnvironment:
        """Adds the headers of S3's metadata whose names have underscores, which Werkzeug drops."""
        environ = super().make_environ()
        named = {environ_key_for_header(name): name for name in self.headers
                 if should_preserve_original_header_name(name)}  # fmt: skip
        added = {key: name for key, name in named.items() if key not in environ}
        return {**environ, **{key: self.headers[name] for key, name in added.items()},
                PRESERVED_HEADER_NAMES_ENVIRON_KEY: added}  # fmt: skip

    def run_wsgi(self) -> None:
        """Answers one request, and reads its body to the end so that the next request can follow."""
        self.environ = environ = self.make_environ()
        status, headers = "", list[tuple[str, str]]()

        def start(line: str, fields: list[tuple[str, str]], _exc_info: Any = None, /) -> Callable[[bytes], object]:
            nonlocal status, headers
            status, headers = line, fields
            return lambda _: None

        try:
            if "wsgi.input_terminated" in environ:  # chunked: only this reader detects the end
                body: io.BufferedIOBase = io.BytesIO(environ["wsgi.input"].read())
            else:
                limited: Any = LimitedStream(environ["wsgi.input"], int(environ.get("CONTENT_LENGTH") or 0))
                body = io.BufferedReader(limited)
            environ["wsgi.input"] = body
            answer = self.server.app(environ, start)
            self._reply(status, headers, answer)
            while body.read(1 << 16):  # the rest of the request
                pass
        except (OSError, ClientDisconnected):  # the client has closed the connection, or is too slow
            self.close_connection = True

    def _reply(self, status: str, headers: list[tuple[str, str]], body: Iterable[bytes]) -> None:
        if not any(name.lower() == "content-length" for name, _ in headers) and status[:3] != "204":
            body = [b"".join(body)]
            headers = [*headers, ("Content-Length", str(len(body[0])))]
        self.send_response(int(status[:3]), status[4:])
        for name, value in headers:
            self.send_header(name, value)
        self.end_headers()
        for data in body:
            if self.command != "HEAD":
                self.wfile.write(data)
        self.wfile.flush()

    def handle_expect_100(self) -> bool:
        """Sends `100 Continue` without buffering, because the client waits for it."""
        super().handle_expect_100()
        self.wfile.flush()
        return True

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Logs nothing, because the API log has each request."""

    def log(self, type: str, message: str, *args: Any) -> None:  # noqa: A002 -- the name in the base class
        """Writes to the daemon's log."""
        log.log(logging.ERROR if type == "error" else logging.INFO, message.rstrip(), *args)


class Server(ThreadingMixIn, BaseWSGIServer):
    """An HTTP server that handles each connection in its own thread."""

    multithread = True
    daemon_threads = True
    block_on_close = False
    request_queue_size = 512

    def __init__(self, address: str, port: int, app: WSGIApplication) -> None:
        super().__init__(address, port, app, KeepAliveHandler)

    def server_bind(self) -> None:
        """Binds the address without asking a name server for its name."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]


class TlsServer(Server):
    """An HTTPS server that makes each TLS handshake in the connection's thread."""

    def __init__(self, address: str, app: WSGIApplication, tls: ssl.SSLContext) -> None:
        super().__init__(address, 0, app)
        self.ssl_context = tls

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Wraps the connection in TLS and serves its requests."""
        assert self.ssl_context is not None  # noqa: S101 -- set in __init__
        request.settimeout(IDLE_TIMEOUT_S)
        try:
            connection = self.ssl_context.wrap_socket(request, server_side=True)
        except OSError as error:  # includes ssl.SSLError
            log.info("no TLS connection with %s: %s", client_address[0], error)
            return
        with connection:
            super().finish_request(connection, client_address)


def catch_errors(app: WSGIApplication) -> WSGIApplication:
    """Sends the errors that the application raises: refusals, and 500, as AWS does, if it fails.

    The traceback then goes to the daemon's log. Calls that moto does not implement get an error that clients do not
    retry.
    """

    def guarded(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        try:
            return list(app(environ, start_response))
        except RefusedError as error:
            return refuse(environ, start_response, environ[CALL_KEY]["service"], error.refusal)
        except (NotImplementedError, ModuleNotFoundError) as error:  # some parts of moto need extra packages
            unsupported = replace(UNSUPPORTED, message=f"{UNSUPPORTED.message}: {error}")
            return refuse(environ, start_response, environ[CALL_KEY]["service"], unsupported)
        except Exception:  # the client must always get a response
            log.exception("%s %s", environ["REQUEST_METHOD"], environ["PATH_INFO"])
            return refuse(environ, start_response, environ[CALL_KEY]["service"], SANDBOX_BROKEN)

    return guarded


def answer_checkip(app: WSGIApplication) -> WSGIApplication:
    """Adds a page with the caller's address, like https://checkip.amazonaws.com."""

    def checked(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        if environ["PATH_INFO"] != CHECKIP_PATH:
            return app(environ, start_response)
        return Response(f"{environ['REMOTE_ADDR']}\n", mimetype="text/plain")(environ, start_response)

    return checked


class ServerRequest(Request):
    """A request as moto's services take it."""

    from_wsgi_server = True


class Pattern(BaseConverter):
    """A part of a path that matches a regular expression, as in moto's lists of paths."""

    part_isolating = False

    def __init__(self, url_map: Map, regex: str) -> None:
        super().__init__(url_map)
        self.regex = regex


class Services:
    """moto's services, below ApiLog, which describes each call. A service is imported at its first call.

    moto's own application needs Flask, which takes 0.2 s of a start and 7 MB.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._paths: dict[str, Map] = {}

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Answers a call. Raises NotImplementedError for a service that moto lacks."""
        call = environ[CALL_KEY]
        if call["service"] == "pricing" and call["action"] == "GetProducts":  # moto lacks it
            body = json.dumps(get_products(json.loads(read_body(environ) or b"{}")))
            return Response(body, mimetype="application/x-amz-json-1.1")(environ, start_response)
        # S3 ignores the type of an upload's POST. MXNet's writer (libcurl) completes uploads with that of a form, as
        # which moto would read the list of parts.
        if parse_qs(environ.get("QUERY_STRING", ""), keep_blank_values=True).keys() & {"uploadId", "uploads"}:
            environ["CONTENT_TYPE"] = "application/octet-stream"
        paths, request = self._find_paths(call["service"] or "s3"), ServerRequest(environ)
        try:
            handler, _ = paths.bind_to_environ(environ).match()
            answer = handler(request, request.raw_url, dict(request.headers))
        except HTTPException as error:
            return error.get_response(environ)(environ, start_response)
        status, headers, body = answer if len(answer) == 3 else (200, {}, answer)
        response = Response(body, status, headers)
        if request.method == "HEAD" and "content-length" in headers:
            response.headers["Content-Length"] = headers["content-length"]
        return response(environ, start_response)

    def _find_paths(self, service: str) -> Map:
        """Returns the handlers of a service's calls, by their paths. service: its name in signatures."""
        with self._lock:
            if service not in self._paths:
                address = f"https://{service}.us-east-1.amazonaws.com"
                name = next((name for name, pattern in backend_url_patterns if pattern.match(address)), None)
                if name is None:
                    raise NotImplementedError(f"it does not have the service {service}")
                if name in ADDITIONS:
                    importlib.import_module(ADDITIONS[name])
                regions = get_backend(name)[DEFAULT_ACCOUNT_ID]  # type: ignore[call-overload]  # any of its names
                paths = regions["us-east-1" if "us-east-1" in regions else "aws"].flask_paths
                rules = [Rule(path, endpoint=paths[path], strict_slashes=False) for path in paths if path]
                self._paths[service] = Map(rules, converters={"regex": Pattern}, merge_slashes=False)
            return self._paths[service]
