"""S3 for programs on the nodes, against moto's S3 over HTTP."""

import base64
import hashlib
import os
import ssl
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

import pytest
import trustme

from node.staging import s3
from s3_server import REGION, S3Server, server, shared_server

__all__ = ["server", "shared_server"]
BUCKET = "results"
KEYS = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing", "S3_REGION": REGION}


@pytest.fixture(autouse=True)
def bucket(server: S3Server) -> None:
    server.put(BUCKET, {})


def put(store: s3.Store, data: bytes, url: str) -> None:
    with tempfile.NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        store.put_file(file.name, url)


def store_at(url: str, **env: str) -> Any:
    return s3.Store({**KEYS, "AWS_ENDPOINT_URL": url, **env})


def read(store: s3.Store, url: str) -> bytes:
    entry: Any = store.find(url)
    content = bytearray(entry.size_bytes)

    def take(at: int, piece: memoryview) -> None:
        content[at : at + len(piece)] = piece

    store.read_range(entry, 0, entry.size_bytes, take)
    return bytes(content)


# -- the endpoint ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("env", "bucket", "place"),
    [
        ({}, "results", "https://results.s3.eu-west-1.amazonaws.com"),
        ({}, "with.dots", "https://s3.eu-west-1.amazonaws.com/with.dots"),
        ({"S3_ENDPOINT": "s3.eu-west-1.amazonaws.com"}, "results", "https://results.s3.eu-west-1.amazonaws.com"),
        ({"S3_ENDPOINT": "10.0.0.1:5000"}, "results", "https://10.0.0.1:5000/results"),
        ({"AWS_ENDPOINT_URL": "https://s3.amazonaws.com.x.example"}, "b-b", "https://s3.amazonaws.com.x.example/b-b"),
    ],
)
def test_endpoint_of_the_environment(env: dict[str, str], bucket: str, place: str) -> None:
    signed = s3.Store({**KEYS, **env}).sign_head(f"s3://{bucket}/a b")
    assert signed.partition("?")[0] == f"{place}/a%20b"


def test_missing_credentials_are_an_error() -> None:
    with pytest.raises(s3.StoreError, match="no AWS credentials"):
        s3.Store({"S3_REGION": REGION})


# -- objects -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["a b+c%20&=?#~é/日本", "%2B"])
def test_file_round_trip(server: S3Server, tmp_path: Path, key: str) -> None:
    content = os.urandom(3_000_001)
    (tmp_path / "there").write_bytes(content)
    store = store_at(server.url)
    store.put_file(str(tmp_path / "there"), f"s3://results/{key}")
    assert server.read(BUCKET) == {key: content}
    assert [entry.url for entry in store.list("s3://results/")] == [f"s3://results/{key}"]
    assert read(store, f"s3://results/{key}") == content


def test_missing_objects(server: S3Server) -> None:
    store = store_at(server.url)
    gone = s3.Entry(url="s3://results/none", size_bytes=1, etag="")
    with pytest.raises(s3.NotFound, match="s3://results/none: S3 refuses: 404 NoSuchKey") as caught:
        store.read_range(gone, 0, 1, lambda *_: None)
    assert caught.value.code == "NoSuchKey"
    assert store.find("s3://results/none") is None
    with pytest.raises(s3.NotFound, match=r"NoSuchBucket.*cluster data ls"):
        list(store.list("s3://no-such-bucket/a"))
    assert list(store.list("s3://results/")) == []


@pytest.mark.parametrize("url", ["s3://results", "s3://results/a//b", "s3://results/../b"])
def test_urls_that_are_not_an_objects(url: str) -> None:
    with pytest.raises(ValueError, match=url):
        put(s3.Store(KEYS), b"", url)


def test_uploads_have_a_sha256() -> None:
    with Answers((200, {"ETag": '"1"'}, b"")) as answers:
        put(store_at(answers.url), b"content", "s3://results/a")
        digest = base64.b64encode(hashlib.sha256(b"content").digest()).decode()
        assert answers.headers["x-amz-checksum-sha256"] == digest


# -- errors ------------------------------------------------------------------------------------------------------------


class Answers:
    """A server that gives these answers (status, headers, body) in turn, and then repeats the last one."""

    def __init__(self, *answers: tuple[int, dict[str, str], bytes]) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []
        self.headers: dict[str, str] = {}
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                outer.asked.append(self.path)
                outer.headers = {name.lower(): value for name, value in self.headers.items()}
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                status, headers, body = outer.answers[0] if len(outer.answers) == 1 else outer.answers.pop(0)
                self.send_response(status)
                for name, value in {"Content-Length": str(len(body)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            do_GET = do_PUT = answer  # noqa: N815 - http.server's names

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def __enter__(self) -> Self:
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()


def refusal(code: str, more: str = "") -> bytes:
    return f"<Error><Code>{code}</Code><Message>AWS's words.</Message>{more}</Error>".encode()


@pytest.mark.parametrize(
    ("status", "headers", "body", "message"),
    [
        (403, {}, refusal("AccessDenied"), "403 AccessDenied.*what the job's credentials allow"),
        (301, {"x-amz-bucket-region": "eu-central-1"}, b"", "in another region than eu-west-1"),
        (301, {}, refusal("PermanentRedirect"), "in another region than eu-west-1"),
        (400, {}, refusal("AuthorizationHeaderMalformed", "<Region>us-west-2</Region>"), "in us-west-2"),
        (403, {}, refusal("RequestTimeTooSkewed"), "the node's clock is wrong"),
        (400, {}, refusal("ExpiredToken"), "credentials have expired"),
    ],
)
def test_refusals_are_explained(status: int, headers: dict[str, str], body: bytes, message: str) -> None:
    with Answers((status, headers, body)) as answers:
        with pytest.raises(s3.StoreError, match=f"s3://results/a.*{message}"):
            store_at(answers.url).put_file(__file__, "s3://results/a")
        assert len(answers.asked) == 1


def test_no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3, "RETRIES", 1)
    with pytest.raises(s3.StoreError, match=r"s3://results/a: 127\.0\.0\.1:9 cannot be used: .*refused"):
        store_at("http://127.0.0.1:9").put_file(__file__, "s3://results/a")


def test_untrusted_certificate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = trustme.CA()
    answers = Answers((200, {"ETag": '"1"'}, b""))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    answers.server.socket = context.wrap_socket(answers.server.socket, server_side=True)
    endpoint = f"127.0.0.1:{answers.server.server_port}"
    with answers:
        with pytest.raises(s3.StoreError, match="its certificate is not trusted"):
            s3.Store({**KEYS, "S3_ENDPOINT": endpoint}).put_file(__file__, "s3://results/a")
        store = s3.Store({**KEYS, "S3_ENDPOINT": endpoint, "S3_VERIFY_SSL": "0"})
        store.put_file(__file__, "s3://results/a")
        authority.cert_pem.write_to_path(tmp_path / "ca.pem")
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
        s3.Store({**KEYS, "S3_ENDPOINT": endpoint}).put_file(__file__, "s3://results/a")
        assert len(answers.asked) == 2  # the untrusted server got no request
