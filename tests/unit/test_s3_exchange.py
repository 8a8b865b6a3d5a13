"""Requests to S3 without botocore: what is a plain yes, and that nothing else is taken for one."""

import socket
import ssl
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import trustme

from s3_server import REGION, S3Server, serve_s3_alone
from train.s3.access import S3Endpoint, find_endpoint
from train.s3.exchange import Exchange, UnsureError
from train.s3.lanes import Lanes, Talk, Task
from train.s3.transfer import open_wire
from train.s3.url import S3Url

KEY = "a folder/ü+%20 ~.rec"
URL = S3Url(bucket="heads", key=KEY)
YES = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nX-Of: S3\r\n\r\n"


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with serve_s3_alone() as server:
        server.put(URL.bucket, {})
        server.put("puts", {})
        server.client.put_object(Bucket=URL.bucket, Key=KEY, Body=b"content", ChecksumAlgorithm="CRC32")
        yield server


@pytest.fixture
def endpoint(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3Endpoint:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    return replace(find_endpoint(region=REGION), url=server.url)


@dataclass(slots=True)
class Script:
    """A server that says what it is told to; connections: how many there were; heads: what they asked."""

    url: str
    connections: int = 0
    heads: list[str] = field(default_factory=list)


@contextmanager
def serve_answers(answers: Sequence[bytes], tls: ssl.SSLContext | None = None) -> Iterator[Script]:
    """One answer for each request; a connection ends after an empty one."""
    listener = socket.create_server(("127.0.0.1", 0))
    scheme = "http" if tls is None else "https"
    script = Script(url=f"{scheme}://127.0.0.1:{listener.getsockname()[1]}")
    left = iter(answers)

    def serve() -> None:
        while True:
            try:
                client, _ = listener.accept()
                script.connections += 1
                with client if tls is None else tls.wrap_socket(client, server_side=True) as connection:
                    while head := read_request(connection):
                        script.heads.append(head)
                        connection.sendall(answer := next(left))
                        if not answer or b"Connection: close" in answer:
                            break
            except (OSError, StopIteration):
                if listener.fileno() < 0:
                    return

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield script
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def read_request(connection: socket.socket) -> str:
    data = b""
    while b"\r\n\r\n" not in data:
        piece = connection.recv(65536)
        if not piece:
            return ""
        data += piece
    head, _, body = data.partition(b"\r\n\r\n")
    lines = (line.partition(": ") for line in head.decode().split("\r\n"))
    length = next((int(value) for name, _, value in lines if name == "Content-Length"), 0)
    while len(body) < length:
        body += connection.recv(65536)
    return head.decode()


def find_etag(server: S3Server) -> str:
    return str(server.client.head_object(Bucket=URL.bucket, Key=KEY)["ETag"])


def head(endpoint: S3Endpoint, url: S3Url = URL, *, etag: str = '"0"') -> object:
    asked = {"x-amz-checksum-mode": "ENABLED", "If-Match": etag}
    return Exchange(endpoint, region=REGION).ask("HEAD", url, asked)


def test_it_is_told_what_botocore_is_told(server: S3Server, endpoint: S3Endpoint) -> None:
    told = head(endpoint, etag=find_etag(server))
    other = open_wire(region=REGION).find_headers(URL)
    assert isinstance(told, dict)
    assert told["x-amz-checksum-crc32"]
    for name in ("content-length", "etag", "x-amz-checksum-crc32"):
        assert told[name] == other[name]


@pytest.mark.parametrize("key", [KEY, "a//b", "../up", "=%&?#", "ünï/ 日本"])
@pytest.mark.parametrize("content", [b"", b"content" * 50_000])
def test_put(server: S3Server, endpoint: S3Endpoint, key: str, content: bytes) -> None:
    exchange = Exchange(endpoint, region=REGION)
    for _ in range(2):
        exchange.ask("PUT", S3Url(bucket="puts", key=key), {}, content)
    assert server.client.get_object(Bucket="puts", Key=key)["Body"].read() == content


def test_what_is_not_plain_is_left_to_botocore(
    server: S3Server, endpoint: S3Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    etag = find_etag(server)

    def is_unsure(endpoint: S3Endpoint, url: S3Url = URL, etag: str = etag) -> bool:
        try:
            head(endpoint, url, etag=etag)
        except UnsureError:
            return True
        return False

    assert is_unsure(endpoint, etag='"0"')
    assert is_unsure(endpoint, etag='"0"\r\nX-Amz-Acl: public-read')
    assert is_unsure(endpoint, etag='"ü"')
    assert is_unsure(endpoint, replace(URL, key="nothing"))
    host = server.url.removeprefix("http://")
    for url in (
        f"{server.url}/below",
        "http://127.0.0.1:9",
        f"https://{host}",
        f"http://me@{host}",
        "ftp://s3",
        "http:",
    ):
        assert is_unsure(replace(endpoint, url=url))
    assert is_unsure(replace(endpoint, url="http://[::1"))
    assert is_unsure(replace(endpoint, url=f"https://{host}", authorities="no certificate"))
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    assert not is_unsure(endpoint)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    assert is_unsure(endpoint)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    assert not is_unsure(endpoint)


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 301 Moved Permanently\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n",
        b"HTTP/1.1 2000 OK\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.0 200 OK\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 200_000,
        b"",
    ],
    ids=lambda answer: answer[:12].decode(),
)
def test_nothing_else_is_a_yes(endpoint: S3Endpoint, answer: bytes) -> None:
    with serve_answers([answer, YES]) as script:
        exchange = Exchange(replace(endpoint, url=script.url), region=REGION)
        with pytest.raises(UnsureError):
            exchange.ask("PUT", URL, {}, b"content")
        # Nothing that is left of it is taken for the answer to another question.
        assert exchange.ask("PUT", URL, {}, b"content")["x-of"] == "S3"
        assert script.connections == 2


@pytest.mark.parametrize(
    ("answer", "connections"),
    [
        (YES, 1),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n", 2),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nyes", 2),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", 2),
    ],
    ids=["kept", "closed", "body", "chunked"],
)
def test_a_connection_is_kept_where_nothing_else_comes(endpoint: S3Endpoint, answer: bytes, connections: int) -> None:
    with serve_answers([answer, YES]) as script:
        exchange = Exchange(replace(endpoint, url=script.url), region=REGION)
        for _ in range(2):
            exchange.ask("PUT", URL, {}, b"content")
        assert script.connections == connections


def test_a_connection_that_was_closed_meanwhile_is_no_yes(endpoint: S3Endpoint) -> None:
    with serve_answers([YES, b"", YES]) as script:
        exchange = Exchange(replace(endpoint, url=script.url), region=REGION)
        exchange.ask("PUT", URL, {}, b"content")
        with pytest.raises(UnsureError):
            exchange.ask("PUT", URL, {}, b"content")
        exchange.ask("PUT", URL, {}, b"content")
        assert script.connections == 2


def test_tls(endpoint: S3Endpoint) -> None:
    authority = trustme.CA()
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(tls)
    content = b"content" * 100_000
    with serve_answers([YES, YES], tls) as script:
        there = replace(endpoint, url=script.url)
        with pytest.raises(UnsureError):  # a certificate that nobody knows
            Exchange(there, region=REGION).ask("PUT", URL, {}, content)
        assert not script.heads
        known = replace(there, authorities=authority.cert_pem.bytes().decode())
        exchange = Exchange(known, region=REGION)
        for _ in range(2):
            exchange.ask("PUT", URL, {"x-amz-checksum-crc32": "AAAAAA=="}, content)
        assert script.connections == 2
    for asked in script.heads:
        assert "X-Amz-Content-SHA256: UNSIGNED-PAYLOAD" in asked
        assert "SignedHeaders=host;x-amz-checksum-crc32;x-amz-content-sha256;x-amz-date," in asked


def test_many_side_by_side_over_tls(endpoint: S3Endpoint) -> None:
    """What does not fit at once, in both directions of a handshake, by the thread that does all of it."""
    authority = trustme.CA()
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(tls)
    told = []
    with serve_answers([YES] * 30, tls) as script:
        known = replace(endpoint, url=script.url, authorities=authority.cert_pem.bytes().decode())
        exchange = Exchange(known, region=REGION)

        def put(number: int) -> Talk[None]:
            told.append((yield from exchange.talk("PUT", replace(URL, key=f"{number}"), {}, bytes(300_000))))

        Lanes(first=1, most=1, bytes_at_once=10**9).run(Task(0, put(number)) for number in range(30))
    assert len(told) == len(script.heads) == 30
    assert script.connections == 1


def test_an_address_that_does_not_answer_is_not_the_only_one(
    endpoint: S3Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = socket.getaddrinfo
    with socket.create_server(("127.0.0.1", 0)) as closed:
        nobodys = closed.getsockname()

    def find(host: str, port: int, **more: Any) -> list[Any]:
        return found(host, nobodys[1], **more) + found(host, port, **more)

    monkeypatch.setattr(socket, "getaddrinfo", find)
    with serve_answers([YES]) as script:
        Exchange(replace(endpoint, url=script.url), region=REGION).ask("PUT", URL, {}, b"content")
        assert script.connections == 1


def test_aws_is_where_no_endpoint_is_named(monkeypatch: pytest.MonkeyPatch, endpoint: S3Endpoint) -> None:
    asked = []

    def find_none(host: str, port: int, **_: Any) -> list[Any]:
        asked.append((host, port))
        raise socket.gaierror

    monkeypatch.setattr(socket, "getaddrinfo", find_none)
    for region in ("eu-west-1", "cn-north-1"):
        with pytest.raises(UnsureError):
            Exchange(replace(endpoint, url=None), region=region).ask("PUT", URL, {}, b"")
    assert asked == [("s3.eu-west-1.amazonaws.com", 443), ("s3.cn-north-1.amazonaws.com.cn", 443)]
