"""The caller's identity, from STS, and address, from a service like checkip.amazonaws.com."""

import socketserver
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import pytest
import trustme

from foundation.errors import ClusterError
from provision.preflight.caller import describe_caller, find_caller_address
from provision_world import World, make_config


class TlsServer(socketserver.ThreadingMixIn, HTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignores errors: a client that refuses the certificate is expected here."""


@contextmanager
def checkip(answer: bytes, tmp_path: Path, *, trusted: bool = True) -> Iterator[tuple[str, Path]]:
    """Serves like checkip.amazonaws.com, over TLS; yields the URL, and the file of the authority to trust."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            pass

    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    bundle = tmp_path / "ca.pem"
    (authority if trusted else trustme.CA()).cert_pem.write_to_path(bundle)
    with TlsServer(("127.0.0.1", 0), Handler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield f"https://127.0.0.1:{server.server_port}/", bundle
        finally:
            server.shutdown()
            thread.join()


def ask(monkeypatch: pytest.MonkeyPatch, url: str, bundle: Path | None) -> IPv4Address:
    monkeypatch.setenv("CLUSTER_CHECKIP_URL", url)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    if bundle:
        monkeypatch.setenv("AWS_CA_BUNDLE", str(bundle))
    return find_caller_address()


def test_auto_opens_ssh_to_the_callers_address_alone(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with checkip(b"198.51.100.9\n", tmp_path) as (url, bundle):
        ask(monkeypatch, url, bundle)
        assert describe_caller(world.clients, make_config(ssh_from="auto")).ssh_from == "198.51.100.9/32"


@pytest.mark.parametrize(
    ("answer", "trusted", "words"),
    [(b"<html>log in</html>", True, "which is not an IPv4 address"), (b"203.0.113.7", False, "verify failed")],
)
def test_answers_that_are_not_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, answer: bytes, trusted: bool, words: str
) -> None:
    with checkip(answer, tmp_path, trusted=trusted) as (url, bundle), pytest.raises(ClusterError, match=words):
        ask(monkeypatch, url, bundle)


@pytest.mark.parametrize(
    ("url", "words"),
    [("http://127.0.0.1:9/", "must be https://"), ("https://127.0.0.1:9/", "cannot find the address .* refused")],
)
def test_no_answer(url: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ClusterError, match=words) as caught:
        ask(monkeypatch, url, None)
    assert "ssh_from" in str(caught.value.hint)
