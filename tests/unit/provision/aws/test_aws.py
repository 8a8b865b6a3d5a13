"""AWS's refusals in our words, from botocore's own exceptions."""

import io
import socket
import threading
from getpass import getpass
from pathlib import Path
from typing import Any

import botocore.credentials
import pytest
from botocore.awsrequest import AWSResponse
from botocore.exceptions import (
    ClientError,
    ConfigParseError,
    ConnectTimeoutError,
    CredentialRetrievalError,
    EndpointConnectionError,
    LoginRefreshRequired,
    NoCredentialsError,
    ParamValidationError,
    PartialCredentialsError,
    ProfileNotFound,
    ProxyConnectionError,
    RefreshWithMFAUnsupportedError,
    SSLError,
    UnauthorizedSSOTokenError,
)
from moto import mock_aws

from foundation.errors import AwsError
from foundation.thread_pool import run_in_thread
from provision.aws.clients import aws_errors, find_credentials, make_clients
from provision.aws.error_hints import NOT_AWS, RETRY_CODES
from provision.describe import describe_cluster
from provision.membership import KnownInstances
from provision_world import World, make_config

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


def refusal(code: str, words: str = "no way") -> ClientError:
    return ClientError({"Error": {"Code": code, "Message": words}}, "RunInstances")


@pytest.mark.parametrize(
    ("code", "hint"),
    [
        ("AuthFailure", "check your credentials"),
        ("InvalidClientTokenId", "check your credentials"),
        ("ExpiredToken", "the session has ended"),
        ("RequestExpired", "the session has ended"),
        ("UnauthorizedOperation", "ec2:RunInstances"),
        ("InsufficientInstanceCapacity", "instance_type"),
        ("VcpuLimitExceeded", "higher limit"),
        ("Unsupported", "another zone"),
        ("OptInRequired", "the account"),
        ("PendingVerification", "verifying the account"),
        ("InvalidAMIID.NotFound", "[provision] ami"),
        ("InvalidKeyPair.NotFound", "makes it again"),
        *((code, "again in a minute") for code in sorted(RETRY_CODES)),
    ],
)
def test_awss_own_words_first_then_what_to_do(code: str, hint: str) -> None:
    error = translate(refusal(code))
    assert error.message == f"AWS says: no way ({code}, while trying it)"
    assert hint in (error.hint or "")


def test_a_code_that_nobody_knows_is_shown_without_advice() -> None:
    error = translate(refusal("Brand.New"))
    assert (error.message, error.hint) == ("AWS says: no way (Brand.New, while trying it)", None)


def test_the_missing_permission_is_the_one_that_aws_names() -> None:
    words = "User: arn:aws:iam::1:user/ada is not authorized to perform: ec2:CreateTags on resource: *"
    assert "ec2:CreateTags:" in (translate(refusal("UnauthorizedOperation", words)).hint or "")


def test_the_encoded_message_is_left_out() -> None:
    words = f"You are not authorized. Encoded authorization failure message: {'x9-_' * 300}"
    assert translate(refusal("UnauthorizedOperation", words)).message == (
        "AWS says: You are not authorized. (UnauthorizedOperation, while trying it)"
    )


@pytest.mark.parametrize(
    ("error", "hint"),
    [
        (NoCredentialsError(), "aws configure"),
        (CredentialRetrievalError(provider="sso", error_msg="x"), "check your credentials"),
        (ProfileNotFound(profile="x"), "list-profiles"),
        (PartialCredentialsError(provider="env", cred_var="AWS_SECRET_ACCESS_KEY"), "set what is missing"),
        (UnauthorizedSSOTokenError(), "aws sso login"),
        (LoginRefreshRequired(), "aws login"),
        (RefreshWithMFAUnsupportedError(), "check your credentials"),
        (ConfigParseError(path="/x/config", error=OSError("x")), "AWS_CONFIG_FILE"),
        (ProxyConnectionError(proxy_url="http://proxy"), "network"),
        (EndpointConnectionError(endpoint_url="https://ec2"), "network"),
        (
            EndpointConnectionError(endpoint_url="https://ec2.us-eats-1.amazonaws.com/"),
            'set [provision] region = "us-east-1"',
        ),
        (EndpointConnectionError(endpoint_url="https://ec2.us-east-1.amazonaws.com/"), "check the network"),
        (EndpointConnectionError(endpoint_url="https://ec2.xy-new-9.amazonaws.com/"), "check the network"),
        (ConnectTimeoutError(endpoint_url="https://ec2"), "network"),
        (SSLError(endpoint_url="https://ec2", error=OSError("x")), "AWS_CA_BUNDLE"),
    ],
)
def test_aws_was_not_reached(error: Exception, hint: str) -> None:
    translated = translate(error)
    assert translated.message.endswith("(while trying it)")
    assert hint in (translated.hint or "")


def test_our_own_mistakes_are_not_dressed_up() -> None:
    with pytest.raises(ParamValidationError), aws_errors("trying it"):
        raise ParamValidationError(report="x")
    with pytest.raises(KeyError), aws_errors("trying it"):
        raise KeyError("x")


@pytest.mark.parametrize("status", [200, 404, 502])
def test_an_answer_that_is_none_of_aws(monkeypatch: pytest.MonkeyPatch, status: int) -> None:
    """A proxy's error page, or the login page of a hotel's network."""
    monkeypatch.setattr("botocore.endpoint.time.sleep", lambda _: None)

    def answer(request: Any, **_: Any) -> AWSResponse:
        page = io.BytesIO(b"<html><p>Sign in<br></html>")
        page.stream = lambda **_: iter([page.getvalue()])  # type: ignore[attr-defined]
        return AWSResponse(request.url, status, {}, page)

    client = make_clients("us-east-1").ec2
    client.meta.events.register("before-send", answer)
    with pytest.raises(AwsError) as caught:
        describe_cluster(client, name="demo", known=KnownInstances())
    assert caught.value.hint == NOT_AWS
    assert "while looking for the nodes of cluster demo" in caught.value.message


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ("no way", "need the permission GetParameter: "),
        ("is not authorized to perform: ssm:GetParameter on x", "need the permission ssm:GetParameter: "),
        (
            "is not authorized to perform: ssm:GetParameter with an explicit deny in a service control policy",
            "a policy of the account forbids ssm:GetParameter: ",
        ),
    ],
)
def test_what_is_denied_and_what_is_forbidden(words: str, hint: str) -> None:
    error = ClientError({"Error": {"Code": "AccessDeniedException", "Message": words}}, "GetParameter")
    assert hint in str(translate(error).hint)


def test_without_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")

    with pytest.raises(AwsError, match="Unable to locate credentials") as caught:
        describe_cluster(make_clients("us-east-1").ec2, name="demo", known=KnownInstances())
    assert "sandbox" in (caught.value.hint or "")


def test_a_profile_that_does_not_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    with pytest.raises(AwsError, match="nobody"):
        make_clients("us-east-1")


def test_an_endpoint_that_is_no_url(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "nonsense")
    with pytest.raises(AwsError, match="Invalid endpoint: nonsense") as caught:
        make_clients("us-east-1")
    assert "AWS_ENDPOINT_URL" in (caught.value.hint or "")


def test_authorities_that_are_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"https://127.0.0.1:{server.getsockname()[1]}")
        monkeypatch.setenv("AWS_CA_BUNDLE", "/nonexistent/ca.pem")
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        monkeypatch.setattr("botocore.retries.standard.time.sleep", lambda _: None)
        with pytest.raises(AwsError, match="No such file or directory") as caught:
            describe_cluster(make_clients("us-east-1").ec2, name="demo", known=KnownInstances())
    assert "AWS_CA_BUNDLE" in (caught.value.hint or "")


def test_an_endpoint_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "https://127.0.0.1:9")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr("botocore.retries.standard.time.sleep", lambda _: None)

    with pytest.raises(AwsError, match="Could not connect") as caught:
        describe_cluster(make_clients("us-east-1").ec2, name="demo", known=KnownInstances())
    assert "very-secret" not in f"{caught.value.message} {caught.value.hint}"


def test_the_launching_client_does_not_retry_by_itself() -> None:
    clients = make_clients("us-east-1")
    assert clients.run_ec2.meta.config.retries == {"mode": "standard", "total_max_attempts": 1}
    assert clients.ec2.meta.config.retries == {"mode": "standard", "total_max_attempts": 5}


# --- refused reads of a whole `up` ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("operation", "code"),
    [
        ("DescribeInstances", "UnauthorizedOperation"),
        ("DescribeSecurityGroups", "RequestExpired"),
        ("GetCallerIdentity", "ExpiredToken"),
        ("DescribeSubnets", "UnauthorizedOperation"),
        ("DescribeInstanceTypes", "AuthFailure"),
    ],
)
def test_any_refused_read_of_up_is_an_aws_error(world: World, operation: str, code: str) -> None:
    def refuse(**_: Any) -> None:
        raise ClientError({"Error": {"Code": code, "Message": "no way"}}, operation)

    clients = (world.clients.ec2, world.clients.sts)
    for client in clients:
        client.meta.events.register(f"before-call.*.{operation}", refuse)
    try:
        with pytest.raises(AwsError, match=f"no way \\({code}, while "):
            world.prepare(make_config())
    finally:
        for client in clients:
            client.meta.events.unregister(f"before-call.*.{operation}", refuse)
    assert not world.calls.mutating()


def test_a_profile_asks_for_its_mfa_code_where_the_credentials_are_looked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """In the caller's thread, which Ctrl-C reaches; later calls, in whatever thread, ask no more."""
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
        clients = make_clients("eu-west-1")
        find_credentials(clients)
        run_in_thread(clients.sts.get_caller_identity).result(timeout=10)
    assert asked == [threading.current_thread().name]
