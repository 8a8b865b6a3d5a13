"""The HTTPS server over real connections, with small applications in moto's place."""

import http.client
import io
import ssl
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from ec2_sandbox.api.log import ApiLog, describe_call, find_error_code
from ec2_sandbox.api.server import TlsServer, answer_checkip, catch_errors, make_tls_context
from ec2_sandbox.paths import SandboxPaths


def application(environ: dict[str, Any], start_response: Any) -> list[bytes]:
    """Answers with the request's body. /ignore does not read it, /broken raises an error, /chunked sends no length."""
    path = environ["PATH_INFO"]
    if path == "/broken":
        raise ValueError("broken on purpose")
    body = b"" if path == "/ignore" else environ["wsgi.input"].read()
    if path == "/missing":
        start_response("404 Not Found", [])
        return [b"<Error><Code>NoSuchKey</Code></Error>"]
    headers = [] if path == "/chunked" else [("Content-Length", str(len(body)))]
    start_response("200 OK", headers)
    return [body[:3], body[3:]]


def test_many_requests_on_one_connection(tmp_path: Path) -> None:
    paths = SandboxPaths(id="00000000", state_dir=tmp_path)
    tls = make_tls_context(paths, "127.0.0.1")
    server = TlsServer("127.0.0.1", answer_checkip(ApiLog(catch_errors(application), paths.api_log)), tls)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    trusted = ssl.create_default_context(cafile=str(paths.ca_file))
    with closing(http.client.HTTPSConnection("127.0.0.1", server.port, context=trusted, timeout=10)) as connection:
        connection.connect()
        first = connection.sock
        for path in ("/", "/ignore", "/chunked", "/missing", "/broken", "/"):
            connection.request("POST", path, b"hello world")
            answer = connection.getresponse()
            body = answer.read()
            assert answer.status == {"/missing": 404, "/broken": 500}.get(path, 200)
            if answer.status == 200:
                assert body == (b"" if path == "/ignore" else b"hello world")
        assert connection.sock is first
    server.shutdown()
    thread.join()


def environ_of(body: bytes, **headers: str) -> dict[str, Any]:
    return {"REQUEST_METHOD": "POST", "PATH_INFO": "/", "wsgi.input": io.BytesIO(body),
            "CONTENT_LENGTH": str(len(body)), **headers}  # fmt: skip


SCOPE = "AWS4-HMAC-SHA256 Credential=AKIA/20260101/eu-west-1/{}/aws4_request, SignedHeaders=host, Signature=00"


def test_a_call_in_the_json_protocol_has_no_secrets() -> None:
    body = b'{"Name": "/x", "Value": "secret"}'
    environ = environ_of(body, HTTP_X_AMZ_TARGET="AmazonSSM.GetParameter", HTTP_AUTHORIZATION=SCOPE.format("ssm"))
    described = describe_call(environ)
    assert (described["action"], described["parameters"]) == ("GetParameter", {"Name": "/x"})


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"<Response><Errors><Error><Code>A.B</Code></Error></Errors></Response>", "A.B"),
        (b'{"__type": "com.amazonaws.ssm#ParameterNotFound"}', "ParameterNotFound"),
        (b'{"__type":"ParameterNotFound"}', "ParameterNotFound"),
        (b"", None),
    ],
)
def test_error_code(body: bytes, code: str | None) -> None:
    assert find_error_code(body) == code


def test_a_daemon_without_unused_libraries() -> None:
    """What only tests and other programs need takes a quarter of its memory; services that need it have it later."""
    program = (
        "import sys, ec2_sandbox.daemon as daemon\n"
        "print(*{'asyncio', 'boto3.session', 'moto.s3', 'moto.ssm', 'responses', 'unittest'} & sys.modules.keys())\n"
        "daemon.unused.restore()\n"
        "import boto3.dynamodb.types\n"
        "from moto.core.models import MockAWS, responses_mock\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("\n", "")
