import datetime as dt
import io
from typing import Any

import pytest
from botocore.auth import S3SigV4Auth, S3SigV4QueryAuth, SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from ec2_sandbox.api.refusals import RefusedError
from ec2_sandbox.iam.signatures import check_signature, read_signature

SECRET = "not a secret"
HOST = "10.1.0.1:4443"


def sign(
    service: str = "s3", *, path: str = "/bucket/key", method: str = "GET", body: bytes = b"",
    token: str | None = None, expires_s: int | None = None, headers: dict[str, str] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """The WSGI environment of a request that botocore has signed."""
    request = AWSRequest(method=method, url=f"https://{HOST}{path}", data=body, headers=headers or {})
    keys = (Credentials("AKIA", SECRET, token), service, "us-east-1")
    if expires_s is not None:
        S3SigV4QueryAuth(*keys, expires=expires_s).add_auth(request)
    else:
        (S3SigV4Auth(*keys) if service == "s3" else SigV4Auth(*keys)).add_auth(request)
    prepared = request.prepare()
    target = prepared.url.removeprefix(f"https://{HOST}")
    sent = {name.upper().replace("-", "_"): str(value) for name, value in prepared.headers.items()}
    sent = {name if name.startswith("CONTENT_") else f"HTTP_{name}": value for name, value in sent.items()}
    return {
        "REQUEST_METHOD": method, "REQUEST_URI": target, "QUERY_STRING": target.partition("?")[2], "HTTP_HOST": HOST,
        "CONTENT_LENGTH": str(len(body)), "wsgi.input": io.BytesIO(body), **sent,
    }  # fmt: skip


def check(environ: dict[str, Any], *, secret: str = SECRET, token: str | None = None, later_s: float = 0) -> None:
    now = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=later_s)
    check_signature(environ, read_signature(environ), secret, token, now)


def refused(environ: dict[str, Any], **given: Any) -> str:
    """Checks a request that is refused; returns the error code, S3's own if there is one."""
    with pytest.raises(RefusedError) as caught:
        check(environ, **given)
    return caught.value.refusal.s3_code or caught.value.refusal.code


def test_a_changed_call_is_refused() -> None:
    environ = sign(path="/bucket/key?prefix=a", headers={"x-amz-meta-of": "mine"})
    check(environ)
    for change in (
        {"REQUEST_METHOD": "DELETE"},
        {"REQUEST_URI": "/bucket/other?prefix=a"},
        {"REQUEST_URI": "/bucket/key?prefix=b"},
        {"HTTP_X_AMZ_META_OF": "another's"},
        {"HTTP_X_AMZ_CONTENT_SHA256": "0" * 64},
        {"HTTP_HOST": "elsewhere:443"},
    ):
        assert refused({**environ, **change}) == "SignatureDoesNotMatch", change
    form = sign("ec2", path="/", method="POST", body=b"Action=DescribeInstances")
    assert refused({**form, "wsgi.input": io.BytesIO(b"Action=TerminateInstance")}) == "SignatureDoesNotMatch"


def test_host_and_amz_headers_must_be_signed() -> None:
    assert refused({**sign(), "HTTP_X_AMZ_ACL": "public-read"}) == "AccessDenied"
    environ = sign()
    unsigned = environ["HTTP_AUTHORIZATION"].replace("SignedHeaders=host;", "SignedHeaders=")
    assert refused({**environ, "HTTP_AUTHORIZATION": unsigned}) == "AccessDenied"


def test_temporary_keys_need_their_token() -> None:
    assert refused(sign(token="one"), token="another") == "InvalidToken"
    assert refused(sign(), token="one") == "InvalidToken"
    assert refused(sign(token="one")) == "InvalidToken"
    check(sign(token="one", expires_s=60), token="one")


@pytest.mark.parametrize(
    ("expires_s", "later_s", "code"),
    [
        (None, 14 * 60, None),(None, 16 * 60, "RequestTimeTooSkewed"),
(60, 50, None), (60, 62, "AccessDenied"),
        (60, -16 * 60, "RequestTimeTooSkewed"),
    ],
)  # fmt: skip
def test_signatures_expire(expires_s: int | None, later_s: float, code: str | None) -> None:
    environ = sign(expires_s=expires_s)
    if code is None:
        check(environ, later_s=later_s)
    else:
        assert refused(environ, later_s=later_s) == code
