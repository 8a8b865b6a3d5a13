"""The nodes' own S3 client: its signature against botocore's, the rest against moto's S3 over HTTP."""

import datetime as dt
import hashlib
import os
import shutil
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self
from unittest import mock

import botocore.auth
import pytest
import trustme
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from hypothesis import example, given, settings
from hypothesis import strategies as st

from project import REPOSITORY
from s3_proxies import Cuts, cutting_proxy
from s3_server import REGION, S3Server, serve_s3_alone

sys.path.insert(0, str(REPOSITORY / "train" / "node"))  # by path, as on the nodes
import aws_signature
import object_store
import object_wire

NODE = REPOSITORY / "train" / "node"
BUCKET = "results"
KEYS = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing", "S3_REGION": REGION}
# What S3 allows in a key is any Unicode but NUL, 1024 bytes at most; moto's server has no place for ends of lines.
KEY = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=200)
MOTO_KEY = st.text(st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"]), min_size=1, max_size=200)


@pytest.fixture(scope="module")
def shared_server() -> Iterator[S3Server]:
    with serve_s3_alone() as server:
        server.put(BUCKET, {})
        yield server
        server.reset()


@pytest.fixture
def server(shared_server: S3Server) -> Iterator[S3Server]:
    yield shared_server
    shared_server.reset()
    shared_server.put(BUCKET, {})


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_store, "FIRST_PAUSE_S", 0.001)


def store_at(url: str, **env: str) -> Any:
    return object_store.Store({**KEYS, "AWS_ENDPOINT_URL": url, **env})


# -- the signature -----------------------------------------------------------------------------------------------------


def botocore_signs(request: Any, keys: Any, region: str, now: float) -> str:
    """The Authorization that botocore gives to the same request."""
    url = f"https://{request.host}{request.path}" + (f"?{request.query}" if request.query else "")
    signed = AWSRequest(method=request.method, url=url, headers={**request.headers, "Host": request.host})
    signed.headers["X-Amz-Content-SHA256"] = request.payload_sha256
    signer = botocore.auth.S3SigV4Auth(Credentials(keys.access_key, keys.secret_key, keys.token), "s3", region)
    then = dt.datetime.fromtimestamp(now, dt.UTC).replace(tzinfo=None)
    with (
        mock.patch.object(botocore.auth, "get_current_datetime", return_value=then),
        mock.patch.object(signer, "payload", return_value=request.payload_sha256),
    ):
        signer.add_auth(signed)
    authorization: str = signed.headers["Authorization"]
    return authorization


def request_for(
    path: str = "/a", *, method: str = "GET", query: dict[str, str] | None = None, headers: Any = (), body: bytes = b""
) -> Any:
    return aws_signature.Request(
        method=method,
        host="results.s3.eu-west-1.amazonaws.com",
        path=aws_signature.encode(path, safe="/"),
        query=aws_signature.encode_query(query or {}),
        headers=dict(headers),
        payload_sha256=hashlib.sha256(body).hexdigest(),
    )


@pytest.mark.parametrize(
    "request_",
    [
        request_for(),
        request_for("/"),
        request_for("/a b+c%20&=?#~é\n/日本/../x//y/."),
        request_for("/", query={"list-type": "2", "prefix": "a b/ü+", "continuation-token": "1/+=="}),
        request_for("/", query={"prefix": "", "A": "1", "a": "2", "a-": "3", "a1": "4"}),
        request_for(method="PUT", body=b"content", headers={"Content-Length": "7", "x-amz-checksum-sha256": "abc="}),
        request_for(method="DELETE", headers={"x-amz-meta": "  two   blanks "}),
    ],
)
@pytest.mark.parametrize("token", [None, "Token/+=="])
def test_the_signature_is_botocores(request_: Any, token: str | None) -> None:
    keys = aws_signature.Keys("AKIA1", "Secret/+", token)
    signed = aws_signature.sign(request_, keys, REGION, 1700000000.0)
    assert signed["Authorization"] == botocore_signs(request_, keys, REGION, 1700000000.0)


@given(
    key=KEY,
    query=st.dictionaries(st.text("abAB-_.~1", min_size=1, max_size=5), KEY, max_size=4),
    asked=st.tuples(st.sampled_from(["GET", "PUT", "DELETE"]), st.binary(max_size=50)),
    secret=st.text("abcXYZ019/+", min_size=1),
    now=st.integers(0, 4 * 10**9),
)
def test_the_signature_is_botocores_for_any_request(
    key: str, query: dict[str, str], asked: tuple[str, bytes], secret: str, now: int
) -> None:
    request = request_for("/" + key, method=asked[0], query=query, body=asked[1])
    keys = aws_signature.Keys("AKIA1", secret, None)
    signed = aws_signature.sign(request, keys, REGION, now)
    assert signed["Authorization"] == botocore_signs(request, keys, REGION, now)


# -- where S3 is -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("env", "bucket", "host", "path"),
    [
        ({}, "results", "results.s3.eu-west-1.amazonaws.com", "/a%20b"),
        ({}, "with.dots", "s3.eu-west-1.amazonaws.com", "/with.dots/a%20b"),
        ({"S3_REGION": "cn-north-1"}, "results", "results.s3.cn-north-1.amazonaws.com.cn", "/a%20b"),
        ({"S3_ENDPOINT": "s3.eu-west-1.amazonaws.com"}, "results", "results.s3.eu-west-1.amazonaws.com", "/a%20b"),
        ({"S3_ENDPOINT": "10.0.0.1:5000"}, "results", "10.0.0.1:5000", "/results/a%20b"),
        ({"AWS_ENDPOINT_URL": "https://store.example"}, "results", "store.example", "/results/a%20b"),
        ({"AWS_ENDPOINT_URL": "https://s3.amazonaws.com.evil.example"}, "b-b", "s3.amazonaws.com.evil.example", None),
    ],
)
def test_a_request_goes_where_the_environment_says(
    env: dict[str, str], bucket: str, host: str, path: str | None
) -> None:
    request = object_store.Store({**KEYS, **env})._request("GET", bucket, "a b", {}, {})
    assert (request.host, request.path) == (host, path or f"/{bucket}/a%20b")


@pytest.mark.parametrize(
    ("env", "verified"),
    [
        ({"S3_VERIFY_SSL": "0", "S3_ENDPOINT": "10.0.0.1:5000"}, False),
        ({"S3_ENDPOINT": "10.0.0.1:5000"}, True),
        ({"S3_VERIFY_SSL": "0"}, True),  # Amazon's own certificates are always looked at
    ],
)
def test_certificates_are_looked_at_but_for_a_private_endpoint(env: dict[str, str], verified: object) -> None:
    assert object_store.Store({**KEYS, **env})._verified is verified


def test_without_credentials_it_says_so() -> None:
    with pytest.raises(object_store.StoreError, match="no AWS credentials"):
        object_store.Store({"S3_REGION": REGION})


# -- objects -----------------------------------------------------------------------------------------------------------


def test_a_file_there_and_back(server: S3Server, tmp_path: Path) -> None:
    content = os.urandom(3_000_001)
    (tmp_path / "there").write_bytes(content)
    store = store_at(server.url)
    store.put_file(str(tmp_path / "there"), "s3://results/a/b")
    assert server.read(BUCKET) == {"a/b": content}
    head = server.client.head_object(Bucket=BUCKET, Key="a/b", ChecksumMode="ENABLED")
    assert "ChecksumSHA256" in head
    assert store.get_file("s3://results/a/b", str(tmp_path / "back")) == len(content)
    assert (tmp_path / "back").read_bytes() == content
    assert sorted(path.name for path in tmp_path.iterdir()) == ["back", "there"]


def test_no_proxy_is_asked(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("no_proxy", "")
    store_at(server.url).put_bytes(b"1", "s3://results/a")


def test_an_empty_file_and_bytes(server: S3Server, tmp_path: Path) -> None:
    (tmp_path / "empty").write_bytes(b"")
    store = store_at(server.url)
    store.put_file(str(tmp_path / "empty"), "s3://results/empty")
    store.put_bytes(b"{}", "s3://results/record.json")
    assert store.get_bytes("s3://results/empty") == b""
    assert store.get_bytes("s3://results/record.json") == b"{}"


def test_a_session_token_and_keys_by_their_other_names(server: S3Server) -> None:
    env = {"S3_ACCESS_KEY_ID": "a", "S3_SECRET_ACCESS_KEY": "b", "S3_SESSION_TOKEN": "c"}
    store = object_store.Store({**env, "AWS_ENDPOINT_URL": server.url})
    store.put_bytes(b"1", "s3://results/a")
    assert server.read(BUCKET) == {"a": b"1"}


@settings(max_examples=40)
@given(key=MOTO_KEY)
@example(key="a b+c%20&=?#~é/日本")
@example(key="a/../b/./c")
@example(key="+")
@example(key="%2B")
@example(key="a//b///")
def test_a_key_is_what_it_is(shared_server: S3Server, key: str) -> None:
    url = f"s3://{BUCKET}/x/{key}"
    store = store_at(shared_server.url)
    store.put_bytes(key.encode(), url)
    assert [entry.url for entry in store.list(f"s3://{BUCKET}/x/")] == [url]
    assert store.get_bytes(url) == key.encode()
    store.delete(url)
    assert list(store.list(f"s3://{BUCKET}/")) == []


def test_a_listing_of_many_pages(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MOTO_S3_DEFAULT_MAX_KEYS", "3")
    names = [f"p/{number:02d}" for number in range(8)]
    for name in names:
        server.client.put_object(Bucket=BUCKET, Key=name, Body=name.encode())
    server.client.put_object(Bucket=BUCKET, Key="q", Body=b"")
    found = list(store_at(server.url).list("s3://results/p/"))
    assert [entry.url for entry in found] == [f"s3://results/{name}" for name in names]
    assert {entry.size_bytes for entry in found} == {4}
    assert found[0].modified == int(server.client.head_object(Bucket=BUCKET, Key="p/00")["LastModified"].timestamp())


def test_what_is_not_there(server: S3Server, tmp_path: Path) -> None:
    store = store_at(server.url)
    with pytest.raises(object_store.NotFound, match="s3://results/none: S3 refuses: 404 NoSuchKey") as caught:
        store.get_file("s3://results/none", str(tmp_path / "none"))
    assert caught.value.code == "NoSuchKey"
    with pytest.raises(object_store.NotFound, match=r"NoSuchBucket.*cluster data ls"):
        list(store.list("s3://no-such-bucket/a"))
    assert list(tmp_path.iterdir()) == []
    store.delete("s3://results/none")
    assert list(store.list("s3://results/")) == []


@pytest.mark.parametrize("url", ["results/a", "https://results/a", "s3://results", "s3://results/", "s3:///a"])
def test_what_is_no_url_of_an_object(url: str) -> None:
    with pytest.raises(ValueError, match=url):
        object_store.Store(KEYS).put_bytes(b"", url)


def test_a_file_for_which_one_put_is_too_small(tmp_path: Path) -> None:
    with (tmp_path / "large").open("wb") as stream:
        stream.truncate(object_store.MAX_PUT_BYTES + 1)
    with pytest.raises(object_store.StoreError, match="larger than the 5 GiB"):
        object_store.Store(KEYS).put_file(str(tmp_path / "large"), "s3://results/a")


def test_what_is_too_large_for_memory(server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_store, "SMALL_BYTES", 10)
    store = store_at(server.url)
    store.put_bytes(b"x" * 11, "s3://results/a")
    with pytest.raises(object_store.StoreError, match="larger than 10 bytes"):
        store.get_bytes("s3://results/a")


# -- what goes wrong ---------------------------------------------------------------------------------------------------


class Answers:
    """A server that gives the same few answers in turn, the last one for ever: status, headers, body."""

    def __init__(self, *answers: tuple[int, dict[str, str], bytes], reads: bool = True) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                outer.asked.append(self.path)
                if reads:
                    self.rfile.read(int(self.headers.get("Content-Length", 0)))
                status, headers, body = outer.answers[0] if len(outer.answers) == 1 else outer.answers.pop(0)
                self.send_response(status)
                for name, value in {"Content-Length": str(len(body)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            def do_GET(self) -> None:
                self.answer()

            def do_PUT(self) -> None:
                self.answer()

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
    ("status", "body"),
    [(503, refusal("SlowDown")), (500, b""), (400, refusal("RequestTimeout")), (429, b""), (200, b"short")],
)
def test_what_passes_is_tried_again(status: int, body: bytes) -> None:
    headers = {"Content-Length": "9"} if status == 200 else {}
    with Answers((status, headers, body), (status, headers, body), (200, {}, b"content")) as answers:
        assert store_at(answers.url).get_bytes("s3://results/a") == b"content"
        assert len(answers.asked) == 3


def test_attempts_end() -> None:
    with Answers((503, {}, refusal("SlowDown"))) as answers:
        with pytest.raises(object_store.StoreError, match=r"s3://results/a: S3 refuses: 503 SlowDown, AWS's words\."):
            store_at(answers.url).put_bytes(b"1", "s3://results/a")
        assert len(answers.asked) == object_store.ATTEMPTS


@pytest.mark.parametrize(
    ("status", "headers", "body", "said"),
    [
        (403, {}, refusal("AccessDenied"), "403 AccessDenied.*what the job's credentials may do"),
        (403, {}, b"", "403 AccessDenied"),
        (301, {"x-amz-bucket-region": "eu-central-1"}, b"", r"in eu-central-1, and eu-west-1 was asked.*region in clu"),
        (301, {}, refusal("PermanentRedirect"), "in another region than eu-west-1"),
        (400, {}, refusal("AuthorizationHeaderMalformed", "<Region>us-west-2</Region>"), "in us-west-2"),
        (403, {}, refusal("RequestTimeTooSkewed"), "the node's clock is wrong"),
        (400, {}, refusal("ExpiredToken"), "credentials have ended"),
    ],
)
def test_a_refusal_says_what_and_where(status: int, headers: dict[str, str], body: bytes, said: str) -> None:
    with Answers((status, headers, body)) as answers:
        with pytest.raises(object_store.StoreError, match=f"s3://results/a.*{said}"):
            store_at(answers.url).get_bytes("s3://results/a")
        assert len(answers.asked) == 1


def test_a_refusal_that_comes_before_all_is_sent() -> None:
    with Answers((403, {"Connection": "close"}, refusal("AccessDenied")), reads=False) as answers:
        with pytest.raises(object_store.StoreError) as caught:
            store_at(answers.url).put_bytes(b"x" * 30_000_000, "s3://results/a")
        assert caught.value.code in {"AccessDenied", "Broken"}  # the kernel may throw an answer away that was not read


def test_what_is_damaged_is_not_taken(tmp_path: Path) -> None:
    answers = Answers((200, {"x-amz-checksum-sha256": "AAAA"}, b"content"))
    with answers, pytest.raises(object_store.StoreError, match="damaged on the way"):
        store_at(answers.url).get_file("s3://results/a", str(tmp_path / "a"))
    assert list(tmp_path.iterdir()) == []


def test_what_was_stored_damaged_is_not_taken_for_saved() -> None:
    with Answers((200, {"x-amz-checksum-sha256": "AAAA"}, b"")) as answers:
        with pytest.raises(object_store.StoreError, match="what it stored has another SHA-256 than what was sent"):
            store_at(answers.url).put_bytes(b"content", "s3://results/a")
        assert len(answers.asked) == object_store.ATTEMPTS


def test_the_checksum_of_parts_is_not_that_of_the_whole() -> None:
    with Answers((200, {"x-amz-checksum-sha256": "AAAA-2"}, b"content")) as answers:
        assert store_at(answers.url).get_bytes("s3://results/a") == b"content"


def test_what_answers_is_not_s3() -> None:
    answers = Answers((200, {}, b"<html>Log in<br></html>"))
    with answers, pytest.raises(object_store.StoreError, match="what answers is not S3"):
        list(store_at(answers.url).list("s3://results/"))


def test_nobody_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_store, "ATTEMPTS", 2)
    with pytest.raises(object_store.StoreError, match=r"s3://results/a: 127\.0\.0\.1:9 cannot be used: .*refused"):
        store_at("http://127.0.0.1:9").get_bytes("s3://results/a")


def test_connections_that_break(server: S3Server, tmp_path: Path) -> None:
    server.client.put_object(Bucket=BUCKET, Key="a", Body=b"x" * 1_000_000)
    cuts = Cuts(left=3, after_bytes=100_000)
    with cutting_proxy(server.url, cuts) as url:
        store_at(url).get_file("s3://results/a", str(tmp_path / "a"))
    assert cuts.done == 3
    assert (tmp_path / "a").read_bytes() == b"x" * 1_000_000


def test_a_file_that_becomes_shorter_is_nobodys_fault_but_its_own(server: S3Server, tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"x" * 100)
    with path.open("rb") as stream, pytest.raises(OSError, match="became shorter"):
        list(object_wire.pieces(stream, 101))
    assert server.read(BUCKET) == {}


def test_a_certificate_of_nobody_knows_whom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = trustme.CA()
    answers = Answers((200, {}, b"content"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    answers.server.socket = context.wrap_socket(answers.server.socket, server_side=True)
    endpoint = f"127.0.0.1:{answers.server.server_port}"
    with answers:
        with pytest.raises(object_store.StoreError, match=r"CERTIFICATE_VERIFY_FAILED"):
            object_store.Store({**KEYS, "S3_ENDPOINT": endpoint}).get_bytes("s3://results/a")
        store = object_store.Store({**KEYS, "S3_ENDPOINT": endpoint, "S3_VERIFY_SSL": "0"})
        assert store.get_bytes("s3://results/a") == b"content"
        authority.cert_pem.write_to_path(tmp_path / "ca.pem")
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
        assert object_store.Store({**KEYS, "S3_ENDPOINT": endpoint}).get_bytes("s3://results/a") == b"content"
        assert len(answers.asked) == 2  # and nobody who was not trusted was told anything


# -- the Pythons of nodes ----------------------------------------------------------------------------------------------

ROUND = """
import sys; sys.path.insert(0, sys.argv[1])
import object_store
store = object_store.Store({"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_ENDPOINT_URL": sys.argv[2]})
store.put_file(sys.argv[3], "s3://results/a b~")
assert [entry.url for entry in store.list("s3://results/")] == ["s3://results/a b~"]
print(store.get_file("s3://results/a b~", sys.argv[3] + ".back"))
"""


@pytest.mark.parametrize("version", ["3.6", "3.8", "3.13"])
def test_other_pythons(server: S3Server, tmp_path: Path, version: str) -> None:
    (tmp_path / "a").write_bytes(b"12345")
    env = {**os.environ, "PYENV_VERSION": version}  # where pyenv's shims are what is found
    python = f"python{version}"
    if not shutil.which(python) or subprocess.run([python, "-V"], env=env, capture_output=True, check=False).returncode:
        pytest.skip(f"no Python {version} here")
    words = [python, "-c", ROUND, str(NODE), server.url, str(tmp_path / "a")]
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("5\n", "")
