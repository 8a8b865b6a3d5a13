"""Profiles of `aws login` whose token is not renewed; a stand-in of the sign-in service refuses it."""

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
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from http_server import serve_http
from project import Project
from s3_server import S3Server, serve_s3_alone

BUCKET = "datasets"
SESSION = "arn:aws:iam::123456789012:user/me"


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with serve_s3_alone(AWS_EC2_METADATA_DISABLED="true") as server:
        server.put(BUCKET, {"a.rec": b"a"})
        yield server


class User:
    """A user whose login session ends in some seconds. `project` has their environment."""

    def __init__(self, folder: Path, *, ends_in_s: float) -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        pem = key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption()).decode()
        ends = (datetime.now(UTC) + timedelta(seconds=ends_in_s)).strftime("%Y-%m-%dT%H:%M:%SZ")
        old = {"accessKeyId": "ASIAOLD", "secretAccessKey": "s", "sessionToken": "t", "accountId": "123456789012"}
        token = {"accessToken": {**old, "expiresAt": ends}, "refreshToken": "r1", "dpopKey": pem, "clientId": "c"}
        (folder / f"{hashlib.sha256(SESSION.encode()).hexdigest()}.json").write_text(json.dumps(token))
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


@contextmanager
def signing_in(user: User, answer: dict[str, Any]) -> Iterator[None]:
    """Serves the sign-in service, which refuses with this answer."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            body = json.dumps(answer).encode()
            self.send_response(403)
            self.send_header("x-amzn-ErrorType", "AccessDeniedException")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    with serve_http(Handler) as url:
        user.project.env["AWS_ENDPOINT_URL_SIGNIN"] = url
        yield


@pytest.mark.parametrize(
    ("code", "words"),
    [("TOKEN_EXPIRED", ("data", "ls", f"s3://{BUCKET}/")), ("INSUFFICIENT_PERMISSIONS", ("status",))],
    ids=["s3", "ec2"],
)
def test_a_refused_renewal_is_explained(server: S3Server, tmp_path: Path, *, code: str, words: tuple[str, ...]) -> None:
    user = User(tmp_path, ends_in_s=-60)
    with signing_in(user, {"error": code, "message": "no"}):
        user.project.env["AWS_ENDPOINT_URL"] = server.url
        with user.project.running(*words) as process:
            assert process.wait(60) == 1
    said = user.project.messages.read_text().splitlines()
    assert len(said) == 2
    assert "sign in again: aws login" in said[-1]
