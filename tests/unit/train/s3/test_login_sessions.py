"""Profiles of `aws login`, whose token is renewed at the sign-in service; a stand-in of that service answers."""

import base64
import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from http_server import judging_proxy, serve_http
from project import Project
from s3_server import S3Server, serve_s3_alone

BUCKET = "datasets"
SESSION = "arn:aws:iam::123456789012:user/me"
NEW = {"accessKeyId": "ASIANEW", "secretAccessKey": "s", "sessionToken": "t2"}


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with serve_s3_alone(AWS_EC2_METADATA_DISABLED="true") as server:
        server.put(BUCKET, {"a.rec": b"a"})
        yield server


class User:
    """A user whose login session ends in some seconds. `project` has their environment."""

    def __init__(self, folder: Path, *, ends_in_s: float) -> None:
        self.key = ec.generate_private_key(ec.SECP256R1())
        pem = self.key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption()).decode()
        ends = (datetime.now(UTC) + timedelta(seconds=ends_in_s)).strftime("%Y-%m-%dT%H:%M:%SZ")
        old = {"accessKeyId": "ASIAOLD", "secretAccessKey": "s", "sessionToken": "t", "accountId": "123456789012"}
        token = {"accessToken": {**old, "expiresAt": ends}, "refreshToken": "r1", "dpopKey": pem, "clientId": "c"}
        self.token = folder / f"{hashlib.sha256(SESSION.encode()).hexdigest()}.json"
        self.token.write_text(json.dumps(token))
        (folder / "config").write_text(f"[default]\nlogin_session = {SESSION}\n")
        self.project = Project(
            folder,
            {
                "AWS_CONFIG_FILE": str(folder / "config"),
                "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
                "AWS_LOGIN_CACHE_DIRECTORY": str(folder),
                "AWS_EC2_METADATA_DISABLED": "true",
            },
        )
        self.project.write('name = "x"\ncloud = "aws"\n')

    def has_signed(self, proof: str, *, url: str) -> bool:
        """Whether this user's key has signed the proof (RFC 9449) for a request to the URL. Raises InvalidSignature."""
        head, body, signature = proof.split(".")
        r, s = (int.from_bytes(half) for half in (decode(signature)[:32], decode(signature)[32:]))
        self.key.public_key().verify(encode_dss_signature(r, s), f"{head}.{body}".encode(), ec.ECDSA(SHA256()))
        claims = json.loads(decode(body))
        return (claims["htm"], claims["htu"]) == ("POST", url)


def decode(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


@contextmanager
def signing_in(user: User, status: int, answer: dict[str, Any]) -> Iterator[list[dict[str, str]]]:
    """Serves the sign-in service, which gives one answer; yields the requests so far."""
    asked: list[dict[str, str]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            url = f"http://{self.headers['Host']}{self.path}"
            assert user.has_signed(self.headers["DPoP"], url=url)
            body = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("x-amzn-ErrorType", "AccessDeniedException" if status == 403 else "ValidationException")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    with serve_http(Handler) as url:
        user.project.env["AWS_ENDPOINT_URL_SIGNIN"] = url
        yield asked


@pytest.mark.parametrize("words", [("get", f"s3://{BUCKET}/a.rec", "back"), ("ls", f"s3://{BUCKET}/")])
def test_an_ended_session_is_renewed(server: S3Server, tmp_path: Path, words: tuple[str, ...]) -> None:
    user = User(tmp_path, ends_in_s=-60)
    renewed = {"accessToken": NEW, "tokenType": "urn:aws:params:oauth:token-type:access_token_sigv4"}
    with (
        judging_proxy(server.url) as proxy,
        signing_in(user, 200, {**renewed, "expiresIn": 900, "refreshToken": "r2"}) as asked,
    ):
        user.project.env["AWS_ENDPOINT_URL"] = proxy.url
        with user.project.running("data", *words) as process:
            assert process.wait(60) == 0, user.project.messages.read_text()
    assert asked == [{"clientId": "c", "refreshToken": "r1", "grantType": "refresh_token"}]
    assert {one.key_id for one in proxy.asked} == {"ASIANEW"}
    kept = json.loads(user.token.read_text())
    assert (kept["accessToken"]["accessKeyId"], kept["refreshToken"]) == ("ASIANEW", "r2")


@pytest.mark.parametrize("code", ["TOKEN_EXPIRED", "INSUFFICIENT_PERMISSIONS"])
@pytest.mark.parametrize("words", [("data", "ls", f"s3://{BUCKET}/"), ("status",)], ids=["s3", "ec2"])
def test_a_refused_renewal_is_explained(server: S3Server, tmp_path: Path, *, code: str, words: tuple[str, ...]) -> None:
    user = User(tmp_path, ends_in_s=-60)
    with signing_in(user, 403, {"error": code, "message": "no"}):
        user.project.env["AWS_ENDPOINT_URL"] = server.url
        with user.project.running(*words) as process:
            assert process.wait(60) == 1
    said = user.project.messages.read_text().splitlines()
    assert len(said) == 2
    assert "sign in again: aws login" in said[-1]
