"""moto's S3 behind real HTTP, in this process."""

import base64
import hashlib
import io
import json
import os
import ssl
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import boto3
import pytest
import trustme
from moto import settings
from moto.backends import get_backend
from moto.core.authorization import ActionAuthenticatorMixin
from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

from project import Project

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

REGION = "eu-west-1"


@dataclass(frozen=True, kw_only=True, slots=True)
class S3Server:
    """A server, and a plain client to inspect its content."""

    url: str
    client: Any

    def put(self, bucket: str, objects: dict[str, bytes]) -> None:
        """Creates a bucket with objects. Their keys may contain `..`, which HTTP clients would resolve."""
        self.client.create_bucket(Bucket=bucket, CreateBucketConfiguration={"LocationConstraint": REGION})
        for key, content in objects.items():
            self.put_object(bucket, key, content)

    def put_object(self, bucket: str, key: str, content: bytes) -> None:
        """Puts an object of any key."""
        get_backend("s3")[DEFAULT_ACCOUNT_ID]["aws"].put_object(bucket, key, content)

    def put_without_checksum(self, bucket: str, key: str, content: bytes) -> None:
        """Puts an object without a checksum, encrypted with a KMS key, so that its ETag is not an MD5."""
        backend = get_backend("s3")[DEFAULT_ACCOUNT_ID]["aws"]
        backend.put_object(bucket, key, content, etag="0" * 32, encryption="aws:kms")

    def read(self, bucket: str) -> dict[str, bytes]:
        """The content of every object in a bucket."""
        listed = self.client.list_objects_v2(Bucket=bucket).get("Contents", [])
        return {item["Key"]: self.client.get_object(Bucket=bucket, Key=item["Key"])["Body"].read() for item in listed}

    def reset(self) -> None:
        """Waits for the last requests of interrupted clients, then deletes everything."""
        for thread in threading.enumerate():
            if "process_request_thread" in thread.name:
                thread.join(timeout=10)
        get_backend("s3")[DEFAULT_ACCOUNT_ID]["aws"].reset()

    @contextmanager
    def caller_who_may(self, action: str) -> Iterator[None]:
        """In the block, the keys in the environment are of a user with only this permission, which S3 checks."""
        get_backend("iam")[DEFAULT_ACCOUNT_ID]["aws"].reset()
        iam = boto3.client("iam", endpoint_url=self.url, region_name=REGION)
        iam.create_user(UserName="user")
        statement = {"Effect": "Allow", "Action": action, "Resource": "*"}
        policy = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
        iam.put_user_policy(UserName="user", PolicyName="policy", PolicyDocument=policy)
        key = iam.create_access_key(UserName="user")["AccessKey"]
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("AWS_ACCESS_KEY_ID", key["AccessKeyId"])
            patch.setenv("AWS_SECRET_ACCESS_KEY", key["SecretAccessKey"])
            # As moto.core.set_initial_no_auth_action_count, which is for whole functions.
            patch.setattr(settings, "INITIAL_NO_AUTH_ACTION_COUNT", 0)
            patch.setattr(ActionAuthenticatorMixin, "request_count", 0)
            yield

    def unfinished(self, bucket: str) -> list[str]:
        """The keys of multipart uploads that were neither completed nor aborted."""
        return [item["Key"] for item in self.client.list_multipart_uploads(Bucket=bucket).get("Uploads", [])]


@contextmanager
def serve_s3() -> Iterator[S3Server]:
    """Runs a server until the block ends, and empties it afterwards."""
    with _serve(_verify_checksums(DomainDispatcherApplication(create_backend_app))) as port:
        url = f"http://127.0.0.1:{port}"
        server = S3Server(url=url, client=boto3.client("s3", endpoint_url=url, region_name=REGION))
        try:
            yield server
        finally:
            server.reset()


@contextmanager
def _serve(application: "WSGIApplication", context: ssl.SSLContext | None = None) -> Iterator[int]:
    """Runs a server until the block ends; yields its port."""
    server = make_server("127.0.0.1", 0, application, threaded=True, ssl_context=context)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()


def _verify_checksums(application: "WSGIApplication") -> "WSGIApplication":
    """Rejects a body that does not match its SHA-256, as S3 does and moto does not."""

    def verify(environ: "WSGIEnvironment", start_response: "StartResponse") -> "Iterable[bytes]":
        told = environ.get("HTTP_X_AMZ_CHECKSUM_SHA256")
        if told is not None and environ["REQUEST_METHOD"] == "PUT":
            body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
            environ["wsgi.input"] = io.BytesIO(body)
            if base64.b64encode(hashlib.sha256(body).digest()).decode() != told:
                start_response("400 Bad Request", [("Content-Type", "application/xml")])
                return [b"<Error><Code>BadDigest</Code><Message>It did not match.</Message></Error>"]
        return application(environ, start_response)

    return verify


@contextmanager
def serve_s3_alone(**env: str) -> Iterator[S3Server]:
    """Runs a server until the block ends, in an environment that points AWS at it. env: more variables."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            patch.delenv(name)
        for name, value in {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing", **env}.items():
            patch.setenv(name, value)
        with serve_s3() as server:
            patch.setenv("AWS_ENDPOINT_URL", server.url)
            yield server


@contextmanager
def serve_over_tls(folder: Path, application: "WSGIApplication | None" = None) -> Iterator[int]:
    """Runs an application behind TLS, by default moto's S3 with the same objects; yields its port.

    `ca.pem` in the folder is the authority to trust.
    """
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.cert_pem.write_to_path(folder / "ca.pem")
    with _serve(application or DomainDispatcherApplication(create_backend_app), context) as port:
        yield port


@pytest.fixture(scope="module")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """One server for all tests of a file; reset it after each."""
    with serve_s3_alone(XDG_STATE_HOME=str(tmp_path_factory.mktemp("state"))) as server:
        yield server


@pytest.fixture
def server(shared_server: S3Server) -> Iterator[S3Server]:
    """The shared server, empty again after the test."""
    yield shared_server
    shared_server.reset()


@pytest.fixture
def project(server: S3Server, tmp_path: Path) -> Project:
    """A project folder whose commands use the server."""
    keys = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing"}
    made = Project(tmp_path, {"AWS_ENDPOINT_URL": server.url, "HOME": str(tmp_path), **keys})
    made.write('name = "x"\ncloud = "aws"\n')
    return made
