"""The messages and hints for botocore's exceptions."""

import io
import socket
import ssl
import threading
from getpass import getpass
from pathlib import Path
from typing import Any

import botocore.credentials
import pytest
from botocore.awsrequest import AWSResponse
from botocore.compat import HTTPHeaders
from botocore.exceptions import (
    ConnectTimeoutError,
    CredentialRetrievalError,
    LoginRefreshRequired,
    NoCredentialsError,
    ProfileNotFound,
    ProxyConnectionError,
    RefreshWithMFAUnsupportedError,
    SSLError,
    UnauthorizedSSOTokenError,
)
from moto import mock_aws
from urllib3.exceptions import ProxyError

from foundation.errors import AwsError
from foundation.thread_pool import bounded_pool, run_in_thread
from provision.aws.clients import aws_errors, make_clients
from provision.aws.error_hints import NOT_AWS
from provision.describe import describe_cluster
from provision.membership import KnownInstances
from provision_world import aws_error, listening
from s3_server import serve_over_tls

WITH_MFA = """
[profile base]
aws_access_key_id = a
aws_secret_access_key = s
[profile me]
role_arn = arn:aws:iam::123456789012:role/trainer
mfa_serial = arn:aws:iam::123456789012:mfa/me
source_profile = base
"""


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_PROFILE", "AWS_DEFAULT_PROFILE", "AWS_SESSION_TOKEN", "AWS_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "very-secret")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


def translate(error: Exception) -> AwsError:
    with pytest.raises(AwsError) as caught, aws_errors("trying it"):
        raise error
    return caught.value


DENIED = "is not authorized to perform: ssm:GetParameter"


@pytest.mark.parametrize(
    ("error", "hint"),
    [
        (aws_error("AuthFailure"), "check your credentials"),
        (aws_error("ExpiredToken"), "get new credentials"),
        (aws_error("RequestExpired"), "the session has expired"),
        (aws_error("UnauthorizedOperation"), "ec2:RunInstances"),
        (aws_error("VcpuLimitExceeded"), "higher limit"),
        (aws_error("InvalidKeyPair.NotFound"), "run the command again"),
        (aws_error("AccessDeniedException", "GetParameter"), "need the permission GetParameter: "),
        (aws_error("AccessDeniedException", words=f"{DENIED} on x"), "need the permission ssm:GetParameter: "),
        (
            aws_error("AccessDeniedException", words=f"{DENIED} with an explicit deny in a service control policy"),
            "a policy of the account denies ssm:GetParameter: ",
        ),
        (aws_error("AccessDenied", "AssumeRole"), "which role AWS_PROFILE names"),
        (RuntimeError("the refreshed credentials are still expired"), "check your credentials"),
        (NoCredentialsError(), "sandbox"),
        (CredentialRetrievalError(provider="sso", error_msg="x"), "check your credentials"),
        (ProfileNotFound(profile="x"), "list-profiles"),
        (UnauthorizedSSOTokenError(), "aws sso login"),
        (LoginRefreshRequired(), "aws login"),
        (RefreshWithMFAUnsupportedError(), "at a terminal"),
        (ProxyConnectionError(proxy_url="http://proxy"), "correct or unset HTTPS_PROXY"),
        (ConnectTimeoutError(endpoint_url="https://ec2"), "network"),
        (SSLError(endpoint_url="https://ec2", error=OSError("x")), "AWS_CA_BUNDLE"),
    ],
)
def test_an_error_and_its_hint(error: Exception, hint: str) -> None:
    translated = translate(error)
    assert "while trying it)" in translated.message
    assert hint in (translated.hint or "")


def test_a_proxys_own_reason() -> None:
    refusal = ProxyError("Unable to connect", OSError("Tunnel connection failed: 407 Proxy Authentication Required"))
    assert "407 Proxy" in translate(ProxyConnectionError(proxy_url="http://proxy", error=refusal)).message


def test_omits_the_encoded_message() -> None:
    words = f"You are not authorized. Encoded authorization failure message: {'x9-_' * 300}"
    assert translate(aws_error("UnauthorizedOperation", words=words)).message == (
        "AWS says: You are not authorized. (UnauthorizedOperation, while trying it)"
    )


def test_a_response_that_is_not_from_aws(monkeypatch: pytest.MonkeyPatch) -> None:
    """The response may be a proxy's error page, or the login page of a hotel's network."""
    monkeypatch.setattr("botocore.endpoint.time.sleep", lambda _: None)

    def answer(request: Any, **_: Any) -> AWSResponse:
        page = io.BytesIO(b"<html><p>Sign in<br></html>")
        page.stream = lambda **_: iter([page.getvalue()])  # type: ignore[attr-defined]
        return AWSResponse(request.url, 200, HTTPHeaders(), page)

    client = make_clients("us-east-1").ec2
    with (
        listening(client, "before-send", answer),
        pytest.raises(AwsError, match="while looking for the nodes of cluster demo") as caught,
    ):
        describe_cluster(client, name="demo", known=KnownInstances())
    assert caught.value.hint == NOT_AWS


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("AWS_PROFILE", "nobody", "nobody"),
        ("AWS_ENDPOINT_URL", "nonsense", "Invalid endpoint: nonsense"),
        ("AWS_ENDPOINT_URL", "https://127.0.0.1:9", "Could not connect"),
        ("AWS_CA_BUNDLE", "/nonexistent/ca.pem", "No such file or directory"),
    ],
)
def test_an_invalid_environment(monkeypatch: pytest.MonkeyPatch, variable: str, value: str, message: str) -> None:
    monkeypatch.setattr("botocore.retries.standard.time.sleep", lambda _: None)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"https://127.0.0.1:{server.getsockname()[1]}")
        monkeypatch.setenv(variable, value)
        with pytest.raises(AwsError, match=message) as caught:
            describe_cluster(make_clients("us-east-1").ec2, name="demo", known=KnownInstances())
    assert variable in str(caught.value.hint)
    assert "very-secret" not in f"{caught.value.message} {caught.value.hint}"


def test_mfa_code_asked_in_the_calling_thread(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Ctrl-C reaches that thread. Later calls in other threads do not prompt, nor other regions: a code counts once."""
    monkeypatch.setattr("provision.aws.credentials._ROLES", {})
    config = tmp_path / "config"
    config.write_text(WITH_MFA)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    monkeypatch.setenv("AWS_PROFILE", "me")
    asked: list[str] = []

    def ask(_prompt: str) -> str:
        asked.append(threading.current_thread().name)
        return "123456"

    makes = botocore.credentials.AssumeRoleProvider.__init__
    monkeypatch.setattr(makes, "__defaults__", tuple(ask if v is getpass else v for v in makes.__defaults__ or ()))
    with mock_aws():
        monkeypatch.delenv("AWS_ACCESS_KEY_ID")
        make_clients("eu-west-2")
        clients = make_clients("eu-west-1")
        run_in_thread(clients.sts.get_caller_identity).result(timeout=10)
    assert asked == [threading.current_thread().name]


@pytest.mark.slow
def test_the_connections_of_a_client_read_the_authorities_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second reading, while another thread connects, ends the process with SIGSEGV."""
    read: list[object] = []
    load = ssl.SSLContext.load_verify_locations

    def count(self: ssl.SSLContext, *files: Any) -> None:
        read.append(files[0])
        load(self, *files)

    monkeypatch.setattr(ssl.SSLContext, "load_verify_locations", count, raising=False)
    with serve_over_tls(tmp_path) as port:
        monkeypatch.setenv("AWS_CA_BUNDLE", str(tmp_path / "ca.pem"))
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"https://127.0.0.1:{port}")
        s3 = make_clients("us-east-1").s3
        with bounded_pool() as pool:
            done = [pool.submit(s3.list_buckets) for _ in range(8)]
    assert [result.result()["Buckets"] for result in done] == [[]] * 8
    assert read == [str(tmp_path / "ca.pem")]
