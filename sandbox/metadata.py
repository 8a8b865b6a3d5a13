"""The instance metadata service: what a host finds at http://169.254.169.254, in both versions.

It listens in the router's namespace, where only the hosts are, so the peer's address says which instance asks: the
router takes no packet with another host's address. Security groups do not stand in its way, as on EC2.

Source: EC2 user guide, "Use the Instance Metadata Service to access instance metadata".
"""

import base64
import binascii
import hashlib
import hmac
import logging
import secrets
import socket
import threading
import time
import traceback
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from socketserver import TCPServer, ThreadingMixIn
from typing import Any, NamedTuple

from sandbox import ec2
from sandbox.fleet import read_user_data
from sandbox.instances import SandboxInstance
from sandbox.metadata_tree import META, RoleCredentials, Tree, list_folder, read_tree

TOKEN_PATH = "/latest/api/token"  # noqa: S105 -- a path
TOKEN_HEADER = "X-aws-ec2-metadata-token"  # noqa: S105 -- a header's name
TTL_HEADER = "X-aws-ec2-metadata-token-ttl-seconds"
MAX_TTL_S = 21600
MAC_BYTES = 20
IDLE_TIMEOUT_S = 60.0
USUAL_HOPS = 64
ROOTS = ("dynamic", META, "user-data")

log = logging.getLogger("sandbox.metadata")


class Answer(NamedTuple):
    """What is sent back. `hops`: over how many hops it may go."""

    status: HTTPStatus
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()
    hops: int = USUAL_HOPS


class Tokens:
    """IMDSv2's session tokens. They carry their own end and hold for one instance, so none has to be remembered."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._key = secrets.token_bytes(32)
        self._clock = clock

    def issue(self, instance_id: str, ttl_s: int) -> str:
        """A token that is good for that long."""
        ends = f"{self._clock() + ttl_s:.3f}".encode()
        return base64.urlsafe_b64encode(self._sign(instance_id, ends) + ends).decode()

    def is_good(self, instance_id: str, token: str) -> bool:
        """Whether it was issued to this instance and has not ended."""
        try:
            raw = base64.urlsafe_b64decode(token.encode())
        except (binascii.Error, UnicodeEncodeError, ValueError):
            return False
        mac, ends = raw[:MAC_BYTES], raw[MAC_BYTES:]
        return hmac.compare_digest(mac, self._sign(instance_id, ends)) and self._clock() < float(ends)

    def _sign(self, instance_id: str, ends: bytes) -> bytes:
        return hmac.digest(self._key, instance_id.encode() + b" " + ends, hashlib.sha256)[:MAC_BYTES]


class MetadataService:
    """Answers requests. Any thread may call it."""

    def __init__(self, backend: ec2.SandboxEC2Backend) -> None:
        self._backend = backend
        self._tokens = Tokens()
        self._credentials = RoleCredentials()

    def answer(self, peer: str, method: str, path: str, headers: Any) -> Answer:
        """The answer to a request of the host with the address `peer`. headers: its header fields, by name."""
        with ec2.lock:
            instance = self._find(peer)
            if instance is None:
                return Answer(HTTPStatus.NOT_FOUND)
            options = instance.metadata_options
            if options.http_endpoint == "disabled":
                return Answer(HTTPStatus.FORBIDDEN)
            if method == "PUT":
                return self._issue_token(instance, path, headers)
            if method not in ("GET", "HEAD"):
                return Answer(HTTPStatus.METHOD_NOT_ALLOWED)
            if not self._is_admitted(instance, headers.get(TOKEN_HEADER)):
                return Answer(HTTPStatus.UNAUTHORIZED)
            return self._look_up(instance, path)

    def _is_admitted(self, instance: SandboxInstance, token: str | None) -> bool:
        """IMDSv2 with a good token; without one, IMDSv1, as long as the instance allows that."""
        if token is None:
            return bool(instance.metadata_options.http_tokens != "required")
        return self._tokens.is_good(instance.id, token)

    def _find(self, peer: str) -> SandboxInstance | None:
        for instance in self._backend.sandbox_instances():
            if instance.state != "terminated" and str(instance.private_ip) == peer:
                return instance
        return None

    def _issue_token(self, instance: SandboxInstance, path: str, headers: Any) -> Answer:
        if path != TOKEN_PATH:
            return Answer(HTTPStatus.METHOD_NOT_ALLOWED)
        if "X-Forwarded-For" in headers:  # an open proxy in the host must not be a way in
            return Answer(HTTPStatus.FORBIDDEN)
        ttl = headers.get(TTL_HEADER, "")
        if not ttl.isdecimal() or not 1 <= int(ttl) <= MAX_TTL_S:
            return Answer(HTTPStatus.BAD_REQUEST)
        token = self._tokens.issue(instance.id, int(ttl)).encode()
        hops = instance.metadata_options.http_put_response_hop_limit
        return Answer(HTTPStatus.OK, token, ((TTL_HEADER, ttl),), hops=hops)

    def _look_up(self, instance: SandboxInstance, path: str) -> Answer:
        version, _, below = path.strip("/").partition("/")
        if not version:
            return Answer(HTTPStatus.OK, b"latest")
        if version != "latest" and not version[:4].isdecimal():
            return Answer(HTTPStatus.NOT_FOUND)
        below = below.strip("/")
        if below == "user-data":
            user_data = read_user_data(instance)
            return Answer(HTTPStatus.OK if user_data else HTTPStatus.NOT_FOUND, user_data)
        text = self._read(read_tree(self._backend, instance, self._credentials), below, instance.key_name)
        return Answer(HTTPStatus.NOT_FOUND) if text is None else Answer(HTTPStatus.OK, text.encode())

    def _read(self, tree: Tree, path: str, key_name: str | None) -> str | None:
        if not path:
            return "\n".join(ROOTS)
        return tree.get(path) or list_folder(tree, path, key_name)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "EC2ws"
    sys_version = ""
    timeout = IDLE_TIMEOUT_S
    disable_nagle_algorithm = True

    def _serve(self) -> None:
        assert isinstance(self.server, MetadataServer)  # noqa: S101 -- nobody else serves with it
        if length := int(self.headers.get("Content-Length") or 0):
            self.rfile.read(length)
        path = self.path.partition("?")[0]
        answer = self.server.service.answer(self.client_address[0], self.command, path, self.headers)
        self.connection.setsockopt(socket.IPPROTO_IP, socket.IP_TTL, answer.hops)
        self.send_response(answer.status)
        for name, value in answer.headers:
            self.send_header(name, value)
        self.send_header("Content-Type", "text/plain")
        self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _serve  # noqa: N815 -- the base class looks for these names

    def log_message(self, *_: Any) -> None:
        """Nothing: hosts ask all the time."""


class MetadataServer(ThreadingMixIn, TCPServer):
    """A thread for each connection."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, listening: socket.socket, service: MetadataService) -> None:
        super().__init__(listening.getsockname(), _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listening
        self.service = service

    def start(self) -> None:
        """Serves from a thread of its own."""
        threading.Thread(target=self.serve_forever, name="metadata", daemon=True).start()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """An error in a connection's thread: to the log, and the others go on."""
        del request
        log.error("%s: %s", client_address[0], traceback.format_exc())
